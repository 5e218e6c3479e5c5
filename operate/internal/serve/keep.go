package serve

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/retry"
)

// keeper keeps a source of topics of a broker open, as far as these can be read.
type keeper struct {
	server *Server
	broker string
	topics []string
	what   string // for the log

	// work receives from a source until ctx ends.
	work func(ctx context.Context, source brokers.Source) error

	// tell, unless it is nil, hears why there is no source, and which topics cannot
	// be read.
	tell func(err error, missing []string)

	said string // to the log, and when
	at   time.Time
}

// remind is how often the log has a trouble that goes on.
const remind = 5 * time.Minute

// errMore ends work when a topic that was missing can be read.
var errMore = errors.New("there are more topics to read")

var again = retry.Backoff{Base: 2 * time.Second, Cap: time.Minute, Jitter: retry.EqualJitter}

// run does so until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := k.once(ctx)
		if ctx.Err() != nil || errors.Is(err, errMore) {
			continue
		}
		if time.Since(began) > 10*again.Cap {
			failures = 0
		}
		failures++
		k.say(err, nil)
		sleep(ctx, again.Delay(failures, 0, rand.Float64()))
	}
}

// once opens a source and works with it.
func (k *keeper) once(ctx context.Context) error {
	b, err := k.server.Brokers.Open(ctx, k.broker)
	if err != nil {
		return err
	}
	source, missing, err := openSource(ctx, b, k.server.subscribe(k.broker), k.topics)
	if source == nil {
		return err
	}
	if missing != nil {
		k.say(err, missing)
	} else if k.tell != nil {
		k.tell(nil, nil)
	}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var looking sync.WaitGroup
	looking.Go(func() { k.await(work, b, missing, stop) })
	err = k.work(work, source)
	if errors.Is(context.Cause(work), errMore) {
		err = errMore
	}
	stop(nil)
	looking.Wait()
	return err
}

// await stops the work when one of the topics can be read that were missing.
func (k *keeper) await(ctx context.Context, b brokers.Broker, missing []string, stop context.CancelCauseFunc) {
	for len(missing) > 0 && ctx.Err() == nil {
		sleep(ctx, again.Cap)
		for _, topic := range missing {
			source, err := b.Open(ctx, k.server.subscribe(k.broker)(topic))
			if err != nil {
				continue
			}
			if err := closeSource(ctx, source); err == nil {
				stop(errMore)
				return
			}
		}
	}
}

// say tells of a trouble.
func (k *keeper) say(err error, missing []string) {
	if k.tell != nil {
		k.tell(err, missing)
	}
	topics := k.topics
	if missing != nil {
		topics = missing
	}
	why, _ := text.Line(err.Error(), 2048)
	if why == k.said && time.Since(k.at) < remind {
		return
	}
	k.said, k.at = why, time.Now()
	k.server.log().Warn(k.what+" does not work: nothing is lost, and it is tried again", slog.String("broker", k.broker), slog.Any("topics", slices.Clone(topics)), slog.String("error", why))
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reader is the receipts of a broker that are read.
type reader struct {
	mu     sync.Mutex
	now    *job.Receipts
	before job.ReceiptCounts
}

func (r *reader) counts() job.ReceiptCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.before
	if r.now != nil {
		n := r.now.Counts()
		c = job.ReceiptCounts{Believed: c.Believed + n.Believed, Forged: c.Forged + n.Forged, Unreadable: c.Unreadable + n.Unreadable}
	}
	return c
}

// receiptCounts are what was read, by broker.
func (s *Server) receiptCounts() map[string]job.ReceiptCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]job.ReceiptCounts{}
	for broker, r := range s.readers {
		all[broker] = r.counts()
	}
	return all
}

func (r *reader) set(now *job.Receipts) {
	before := r.counts()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.before = now, before
}
