package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-go/redrive/retry"
)

// outbox sends runs on in batches, in their order. What the flush could not
// send stays and is tried again with backoff; if no new run could be sent
// either, the target is taken to be down, and those that follow wait as well.
type outbox struct {
	flush   func(ctx context.Context, runs []*run) (failed []*run)
	wake    chan struct{}
	emptied chan struct{} // closed when run has returned

	mu       sync.Mutex
	fresh    []*run
	spare    []*run // the buffer of the batch before
	failed   []*run
	failures int       // flushes in a row that failed in part
	retryAt  time.Time // when failed is tried again
	down     bool
	news     bool // the batch under way has new runs
	closed   bool
	flushing int
}

// outboxBackoff keeps calls to a failing target at one a second or less.
var outboxBackoff = retry.Backoff{Base: 2 * time.Second, Cap: 15 * time.Second, Floor: time.Second}

// flushTimeout bounds one call to the broker; its outcome is unknown then.
const flushTimeout = 30 * time.Second

func newOutbox(flush func(context.Context, []*run) []*run) *outbox {
	return &outbox{flush: flush, wake: make(chan struct{}, 1), emptied: make(chan struct{})}
}

func (o *outbox) add(r *run) {
	o.mu.Lock()
	o.fresh = append(o.fresh, r)
	first := len(o.fresh) == 1
	o.mu.Unlock()
	if first {
		o.signal()
	}
}

// close lets run return once everything is sent, and has it try at once.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.retryAt = true, time.Time{}
	o.mu.Unlock()
	o.signal()
}

// abandon takes back what is not being sent at this moment.
func (o *outbox) abandon() []*run {
	o.mu.Lock()
	left := append(o.failed, o.fresh...)
	o.failed, o.fresh = nil, nil
	o.mu.Unlock()
	o.signal()
	return left
}

// unsent returns how many runs are not known to be sent.
func (o *outbox) unsent() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.fresh) + len(o.failed) + o.flushing
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends until the outbox is closed and empty, or ctx ends.
func (o *outbox) run(ctx context.Context) {
	defer close(o.emptied)
	for ctx.Err() == nil {
		batch, wait, done := o.next(time.Now())
		switch {
		case done:
			return
		case len(batch) > 0:
			o.send(ctx, batch)
		default:
			o.await(ctx, wait)
		}
	}
}

// send flushes batch, within the time that any broker should need.
func (o *outbox) send(ctx context.Context, batch []*run) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	n := len(batch)
	o.sent(batch, n, o.flush(ctx, batch))
}

// next returns what to send now; failing that, how long to wait before the
// next look, 0 if only for a signal.
func (o *outbox) next(now time.Time) (batch []*run, wait time.Duration, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	again := len(o.failed) > 0 && !now.Before(o.retryAt)
	down := o.down && len(o.failed) > 0
	if len(o.fresh) > 0 && (again || !down) {
		batch, o.fresh = o.fresh, o.spare[:0]
	}
	o.news = len(batch) > 0
	if again {
		batch, o.failed = append(batch, o.failed...), nil
	}
	o.flushing = len(batch)
	if len(batch) > 0 {
		return batch, 0, false
	}
	if len(o.failed) > 0 {
		return nil, o.retryAt.Sub(now), false
	}
	return nil, 0, o.closed
}

// sent records the outcome of a flush of n runs.
func (o *outbox) sent(batch []*run, n int, failed []*run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(batch)
	o.spare, o.flushing = batch, 0
	o.down = len(failed) == n && (o.news || o.down)
	if len(failed) == 0 {
		if len(o.failed) == 0 {
			o.failures = 0
		}
		return
	}
	now := time.Now()
	soonest := now.Add(outboxBackoff.Floor)
	switch {
	case len(o.failed) == 0:
		o.failures++
		o.retryAt = now.Add(outboxBackoff.Delay(o.failures, 0, rand.Float64()))
	case o.down && o.retryAt.Before(soonest):
		o.retryAt = soonest
	}
	o.failed = append(o.failed, failed...)
}

func (o *outbox) await(ctx context.Context, wait time.Duration) {
	var elapsed <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-ctx.Done():
	case <-o.wake:
	case <-elapsed:
	}
}
