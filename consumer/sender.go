package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-go/redrive/retry"
)

// sender sends deliveries, or receipts, on in batches, in their order. What the
// flush could not send stays and is tried again with backoff; if no new one could
// be sent either, the target is taken to be down, and those that follow wait as
// well.
type sender[T any] struct {
	flush   func(ctx context.Context, batch []T) (failed []T)
	backoff retry.Backoff
	wake    chan struct{}
	emptied chan struct{} // closed when run has returned

	mu       sync.Mutex
	fresh    []T
	spare    []T // the buffer of the batch before
	failed   []T
	failures int       // flushes in a row that failed in part
	since    time.Time // when the first of these flushes failed
	retryAt  time.Time // when failed is tried again
	down     bool
	news     bool // the batch under way has new ones
	closed   bool
	flushing int
	moved    time.Time // when a flush last began, or sent its whole batch
}

var (
	// settleBackoff keeps calls to a failing target at one a second or less.
	settleBackoff = retry.Backoff{Base: 2 * time.Second, Cap: 15 * time.Second, Floor: time.Second}

	// letterBackoff is for what can wait for long, and may never be taken.
	letterBackoff = retry.Backoff{Base: 2 * time.Second, Cap: 5 * time.Minute, Floor: time.Second}
)

// movesWithin is the longest time that a flush to a healthy target takes.
const movesWithin = time.Second

// flushTimeout bounds one call to the broker; its outcome is unknown then.
const flushTimeout = 30 * time.Second

func newSender[T any](backoff retry.Backoff, flush func(context.Context, []T) []T) *sender[T] {
	return &sender[T]{flush: flush, backoff: backoff, wake: make(chan struct{}, 1), emptied: make(chan struct{})}
}

func (s *sender[T]) add(v T) {
	s.mu.Lock()
	s.fresh = append(s.fresh, v)
	first := len(s.fresh) == 1
	s.mu.Unlock()
	if first {
		s.signal()
	}
}

// close lets run return once everything is sent, and has it try at once.
func (s *sender[T]) close() {
	s.mu.Lock()
	s.closed, s.retryAt = true, time.Time{}
	s.mu.Unlock()
	s.signal()
}

// abandon takes back what is not being sent at this moment.
func (s *sender[T]) abandon() []T {
	s.mu.Lock()
	left := append(s.failed, s.fresh...)
	s.failed, s.fresh = nil, nil
	s.mu.Unlock()
	s.signal()
	return left
}

// unsent returns how many are not known to be sent.
func (s *sender[T]) unsent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.fresh) + len(s.failed) + s.flushing
}

// moves reports whether the target takes batches, as far as the sender knows:
// nothing waits to be sent again, and a flush began or succeeded within
// movesWithin.
func (s *sender[T]) moves(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.down && len(s.failed) == 0 && now.Sub(s.moved) < movesWithin
}

func (s *sender[T]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run sends until the sender is closed and empty, or ctx ends.
func (s *sender[T]) run(ctx context.Context) {
	defer close(s.emptied)
	for ctx.Err() == nil {
		batch, wait, done := s.next(time.Now())
		switch {
		case done:
			return
		case len(batch) > 0:
			s.send(ctx, batch)
		default:
			s.await(ctx, wait)
		}
	}
}

// send flushes batch, within the time that any broker should need.
func (s *sender[T]) send(ctx context.Context, batch []T) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	n := len(batch)
	s.sent(batch, n, s.flush(ctx, batch))
}

// next returns what to send now; failing that, how long to wait before the
// next look, 0 if only for a signal.
func (s *sender[T]) next(now time.Time) (batch []T, wait time.Duration, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := len(s.failed) > 0 && !now.Before(s.retryAt)
	down := s.down && len(s.failed) > 0
	if len(s.fresh) > 0 && (again || !down) {
		batch, s.fresh = s.fresh, s.spare[:0]
	}
	s.news = len(batch) > 0
	if again {
		batch, s.failed = append(batch, s.failed...), nil
	}
	s.flushing = len(batch)
	if len(batch) > 0 {
		s.moved = now
		return batch, 0, false
	}
	if len(s.failed) > 0 {
		return nil, s.retryAt.Sub(now), false
	}
	return nil, 0, s.closed
}

// sent records the outcome of a flush of n.
func (s *sender[T]) sent(batch []T, n int, failed []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(batch)
	s.spare, s.flushing = batch, 0
	s.down = len(failed) == n && (s.news || s.down)
	now := time.Now()
	if len(failed) == 0 {
		s.moved = now
		if len(s.failed) == 0 {
			s.failures = 0
		}
		return
	}
	soonest := now.Add(s.backoff.Floor)
	switch {
	case len(s.failed) == 0:
		if s.failures == 0 {
			s.since = now
		}
		s.failures++
		backoff := s.backoff // at most as long as flushes have failed, so that a short outage causes a short delay
		backoff.Cap = min(backoff.Cap, max(backoff.Base, now.Sub(s.since)))
		s.retryAt = now.Add(backoff.Delay(s.failures, 0, rand.Float64()))
	case s.down && s.retryAt.Before(soonest):
		s.retryAt = soonest
	}
	s.failed = append(s.failed, failed...)
}

func (s *sender[T]) await(ctx context.Context, wait time.Duration) {
	var elapsed <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-elapsed:
	}
}
