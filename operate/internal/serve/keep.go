package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/retry"
)

// keeper reads topics of a broker. The topics share a source. If the source
// fails, the keeper opens each topic alone. Topics that fail then get a source
// of their own: see parts. So no topic stops another topic, on any broker.
type keeper struct {
	server *Server
	broker string
	what   string // for the log
	lasts  bool   // it tries failed topics again, until the context ends

	// work receives from the source of topics until ctx ends. If lasts is
	// false, it may return earlier: with nil when the topics are empty.
	work func(ctx context.Context, source brokers.Source, topics []string) error

	// tell, unless it is nil, is called when topics are not read, with the
	// reason.
	tell func(topics []string, err error)
}

const (
	// remind is how often the log repeats a lasting failure.
	remind = 5 * time.Minute

	// outages is how often in a row topics must fail together before each is
	// opened alone, if the error may be temporary. So topics still share a
	// source after their broker restarts.
	outages = 3

	// opening is how many topics are opened alone at the same time.
	opening = 8
)

var again = retry.Backoff{Base: 2 * time.Second, Cap: time.Minute, Jitter: retry.EqualJitter}

// sourceError is a failure of a source. Perhaps only one of its topics is the
// cause.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// run reads topics until ctx ends, and then returns nil. If lasts is false, it
// also returns when all topics are empty or have failed. Its error names the
// topics that failed.
func (k *keeper) run(ctx context.Context, topics []string) error {
	said := reminder{}
	for failures := 0; ; {
		began := time.Now()
		err := k.once(ctx, topics)
		if ctx.Err() != nil || err == nil {
			return nil
		}
		if time.Since(began) > 10*again.Cap {
			failures = 0
		}
		failures++
		if k.tell != nil {
			k.tell(topics, err)
		}
		if parts := k.parts(ctx, topics, err, failures); parts != nil {
			return k.runAll(ctx, parts)
		}
		if !k.lasts {
			return fmt.Errorf("%s of %s on %s has failed: %w", k.what, strings.Join(topics, ", "), k.broker, err)
		}
		if why := text.Line(err.Error(), 2048); said.isDue(why) {
			k.server.log().Warn(k.what+" does not work: nothing is lost, and it is tried again",
				slog.String("broker", k.broker), slog.Any("topics", topics), slog.String("error", why))
		}
		sleep(ctx, again.Delay(failures, 0, rand.Float64()))
	}
}

// runAll reads several groups of topics at the same time.
func (k *keeper) runAll(ctx context.Context, groups [][]string) error {
	errs := make([]error, len(groups))
	var running sync.WaitGroup
	for i, topics := range groups {
		running.Go(func() { errs[i] = k.run(ctx, topics) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// once opens a source and works with it.
func (k *keeper) once(ctx context.Context, topics []string) error {
	source, err := k.open(ctx, topics...)
	if err != nil {
		return &sourceError{err}
	}
	err = k.work(ctx, source, topics)
	if isLasting(err) {
		err = &sourceError{err}
	}
	return err
}

// isLasting reports whether err may be of one topic alone, and lasts until an
// operator has done something.
func isLasting(err error) bool {
	_, ofTopic := errors.AsType[*brokers.TopicError](err)
	return ofTopic || errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, collect.ErrRefused)
}

func (k *keeper) open(ctx context.Context, topics ...string) (brokers.Source, error) {
	b, err := k.server.Brokers.Open(ctx, k.broker)
	if err != nil {
		return nil, err
	}
	return b.Open(ctx, collect.Subscription(Group(k.server.Config.Brokers[k.broker]), topics...))
}

// parts returns the groups in which to read topics that failed together, after
// so many failures in a row; nil means to try them together again. It opens
// each topic alone. If no topic opens, the broker is the cause, and it returns
// nil. If some fail, each of them becomes a group, and the others stay
// together. If none fails, every topic becomes a group.
func (k *keeper) parts(ctx context.Context, topics []string, err error, failures int) (groups [][]string) {
	if _, ofSource := errors.AsType[*sourceError](err); !ofSource || len(topics) == 1 {
		return nil
	}
	if k.lasts && failures < outages && !isLasting(err) {
		return nil
	}
	opens := make([]bool, len(topics))
	slots := make(chan struct{}, opening)
	var looking sync.WaitGroup
	for i, topic := range topics {
		slots <- struct{}{}
		looking.Go(func() {
			if source, err := k.open(ctx, topic); err == nil {
				opens[i] = true
				_ = closeSource(ctx, source)
			}
			<-slots
		})
	}
	looking.Wait()
	var good []string
	for i, topic := range topics {
		if opens[i] {
			good = append(good, topic)
		} else {
			groups = append(groups, []string{topic})
		}
	}
	switch len(good) {
	case 0:
		return nil
	case len(topics):
		return slices.Collect(slices.Chunk(topics, 1))
	}
	return append(groups, good)
}

// reminder says when to log a failure: when its text changes, and then every 5
// minutes.
type reminder struct {
	said string
	at   time.Time
}

func (r *reminder) isDue(why string) bool {
	if why == r.said && time.Since(r.at) < remind {
		return false
	}
	r.said, r.at = why, time.Now()
	return true
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
