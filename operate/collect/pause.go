package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/retry"
)

// troubleError is why collecting pauses: it may go on by itself.
type troubleError struct {
	kind string // of the trouble, for the log
	err  error
}

func (e *troubleError) Error() string { return "collect: " + e.err.Error() }

func (e *troubleError) Unwrap() error { return e.err }

func isTrouble(err error) bool {
	_, ok := errors.AsType[*troubleError](err)
	return ok
}

func storeFails(err error) error {
	return &troubleError{"store", fmt.Errorf("nothing is taken out of the broker, because the store fails: %w", err)}
}

// brokerFails is an error of Receive. It is no trouble if only an operator can cure
// it, or if it is about one topic: another source may read the others.
func (c *Collector) brokerFails(err error) error {
	err = fmt.Errorf("from %s: %w", c.cfg.Broker, err)
	_, ofTopic := errors.AsType[*brokers.TopicError](err)
	if ofTopic || errors.Is(err, brokers.ErrClosed) || errors.Is(err, brokers.ErrMisconfigured) {
		return fmt.Errorf("collect: %w", err)
	}
	return &troubleError{"broker", err}
}

func limitReached(format string, args ...any) error {
	return &troubleError{"limit", fmt.Errorf("%w: "+format, append([]any{ErrLimit}, args...)...)}
}

// recount is after how many letters the store is asked anew how many it has.
const recount = 20_000

// ready returns how many letters may be collected now, at least one. It makes sure
// that the store can be written, by as much as what it did not take before.
func (c *Collector) ready(ctx context.Context) (room int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	if err := c.cfg.Store.Probe(ctx, c.failed); err != nil {
		return 0, storeFails(err)
	}
	stats, err := c.cfg.Store.Stats(ctx, time.Now())
	if err != nil {
		return 0, storeFails(err)
	}
	letters := stats.Letters()
	if letters >= c.cfg.Limits.Letters {
		return 0, limitReached("the store has %d letters, the limit is %d: send or discard some and let retention end, or raise the limit, and collect again", letters, c.cfg.Limits.Letters)
	}
	return min(c.cfg.Limits.Letters-letters, recount), nil
}

func (c *Collector) checkDisk() error {
	free, size, err := c.cfg.Store.Disk()
	if err != nil {
		return storeFails(err)
	}
	if size > 0 && float64(free) < c.cfg.Limits.FreeDisk*float64(size) {
		return limitReached("the disk of the store has %.1f %% free, the limit is %.1f %%: make room on it, or lower the limit, and collect again",
			100*float64(free)/float64(size), 100*c.cfg.Limits.FreeDisk)
	}
	return nil
}

// trouble is what keeps letters from being collected. It is used by the goroutine of
// Run alone.
type trouble struct {
	kind     string
	since    time.Time
	failures int
	logged   time.Time
}

// backoff is how long to wait before the next try.
var backoff = retry.Backoff{Base: 2 * time.Second, Cap: time.Minute, Floor: time.Second}

const (
	patience  = time.Minute     // without Follow
	logPace   = 5 * time.Minute // of a trouble that lasts
	calmAfter = 2 * time.Minute // it is over, even if no letter has come
)

// pause waits before the next try, or returns why there is none.
func (c *Collector) pause(ctx context.Context, err error) error {
	e, ok := errors.AsType[*troubleError](err)
	if !ok {
		return err
	}
	now := time.Now()
	t := &c.trouble
	if t.failures == 0 {
		t.since = now
	}
	if !c.cfg.Follow && (errors.Is(err, ErrLimit) || now.Sub(t.since) >= patience) {
		return err
	}
	if t.failures == 0 || t.kind != e.kind || now.Sub(t.logged) >= logPace {
		t.kind, t.logged = e.kind, now
		c.cfg.Logger.Warn("collecting pauses", c.attributes(err, slog.Time("since", t.since))...)
	}
	t.failures++
	c.note(func(s *Status) { s.Paused, s.Since = err, t.since })
	sleep(ctx, backoff.Delay(t.failures, 0, rand.Float64()))
	return nil
}

// goesOn ends a trouble.
func (c *Collector) goesOn() {
	if c.trouble.failures == 0 {
		return
	}
	c.cfg.Logger.Info("collecting goes on", c.attributes(nil, slog.Duration("after", time.Since(c.trouble.since)))...)
	c.trouble = trouble{}
	c.note(func(s *Status) { s.Paused, s.Since = nil, time.Time{} })
}

// Bounds of texts in the log, in bytes.
const (
	maxLog  = 2048 // errors
	maxName = 256  // topics and IDs
)

// attributes are those of a line in the log. An error may have texts of letters in
// it, which may be anything.
func (c *Collector) attributes(err error, more ...slog.Attr) (args []any) {
	args = append(args, slog.String("broker", c.cfg.Broker))
	for _, a := range more {
		args = append(args, a)
	}
	if err != nil {
		args = append(args, slog.String("error", text.Line(err.Error(), maxLog)))
	}
	return args
}
