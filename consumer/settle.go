package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry"
)

// final reports whether an error of Settle or Extend says that the delivery is
// not ours any more.
func final(err error) bool {
	return errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) || errors.Is(err, brokers.ErrClosed)
}

// settlers end deliveries at the source, and tell the owner how that ended. What
// fails is repeated with backoff.
// Retries have a sender of their own, because they may have to wait for a copy to
// be confirmed, and so has what is rejected, which the broker may refuse for ever.
type settlers struct {
	*reporter
	source       brokers.Source
	longestDelay time.Duration // that the broker was told of
	owner        owner

	settler, retrier, rejecter *sender[*delivery]
}

// owner is told how the settlement of deliveries ended.
type owner interface {
	settled(ds []*delivery)                      // the source has taken it over
	forget(ds ...*delivery)                      // another worker has them
	refused(d *delivery, err error) (again bool) // the broker will never take it
}

func newSettlers(r *reporter, source brokers.Source, longestDelay time.Duration, o owner, ps *pulses) *settlers {
	s := &settlers{reporter: r, source: source, longestDelay: longestDelay, owner: o}
	s.settler, s.retrier, s.rejecter = s.sender(settleBackoff, ps.add("settle")), s.sender(settleBackoff, ps.add("retry")), s.sender(letterBackoff, ps.add("reject"))
	return s
}

func (s *settlers) sender(backoff retry.Backoff, p *pulse.Pulse) *sender[*delivery] {
	var batch []brokers.Settlement // reused
	return newSender(backoff, p, func(ctx context.Context, ds []*delivery) (failed []*delivery) {
		batch, failed = s.settle(ctx, batch[:0], ds)
		return failed
	})
}

// send ends d by action.
func (s *settlers) send(d *delivery, action brokers.Action) {
	d.action = d.keepMeta(action)
	switch d.action {
	case brokers.Retry:
		s.retrier.add(d)
	case brokers.Reject:
		s.rejecter.add(d)
	default:
		s.settler.add(d)
	}
}

// sendLate ends d by action in a drain, when the retrier and the rejecter may have
// stopped.
func (s *settlers) sendLate(d *delivery, action brokers.Action) {
	d.action = action
	s.settler.add(d)
}

// keepMeta returns Retry instead of Release for a message that has failed or died
// in this process. A release would forget its attempts and its death.
func (d *delivery) keepMeta(action brokers.Action) brokers.Action {
	if action == brokers.Release && (d.letter != nil || d.changed) {
		return brokers.Retry
	}
	return action
}

// settle settles ds and returns those to settle again, and the batch for the next.
func (s *settlers) settle(ctx context.Context, batch []brokers.Settlement, ds []*delivery) (_ []brokers.Settlement, failed []*delivery) {
	now := time.Now()
	for _, d := range ds {
		entry := brokers.Settlement{Delivery: d.Delivery, Action: d.action}
		if d.action == brokers.Retry {
			// It may have to wait for longer than the broker was told of: it then
			// comes back before, with its due time, and is sent on.
			entry.Meta, entry.Delay = d.metaToKeep(), min(max(0, d.meta.DueAt.Sub(now)), s.longestDelay)
		}
		batch = append(batch, entry)
	}
	expectAnswer(ctx)
	errs := s.source.Settle(ctx, batch)
	answered(ctx)
	clear(batch)
	if errs == nil {
		s.owner.settled(ds)
		return batch, nil
	}
	done := make([]*delivery, 0, len(ds))
	for i, d := range ds {
		err := brokers.ErrUnknownOutcome
		if len(errs) == len(ds) {
			err = errs[i]
		}
		if err == nil || errors.Is(err, brokers.ErrSettled) {
			done = append(done, d) // now, or by an earlier call whose answer got lost
		} else if s.unsettled(d, err) {
			failed = append(failed, d)
		}
	}
	s.owner.settled(done)
	return batch, failed
}

// unsettled deals with a settlement that failed. It reports whether to settle
// again. Where only an operator can help, this goes on until then: the message
// takes room in the window of its own topic, and stops no other topic.
func (s *settlers) unsettled(d *delivery, err error) bool {
	err = fmt.Errorf("%s: %w", d.action, err)
	switch {
	case final(err):
		s.observe(d, Event{Kind: EventLeaseLost, Err: err})
		s.owner.forget(d)
		return false
	case errors.Is(err, brokers.ErrRefused) && (d.action == brokers.Reject || d.action == brokers.Retry):
		return s.owner.refused(d, err)
	}
	s.observe(d, Event{Kind: EventError, Operation: d.action.String(), Err: err})
	return true
}

// sender sends deliveries, or receipts, on in batches, in their order. What the
// flush could not send stays and is tried again with backoff; if no new one could
// be sent either, the target is taken to be down, and those that follow wait as
// well.
type sender[T any] struct {
	flush   func(ctx context.Context, batch []T) (failed []T)
	backoff retry.Backoff
	pulse   *pulse.Pulse
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

func newSender[T any](backoff retry.Backoff, p *pulse.Pulse, flush func(context.Context, []T) []T) *sender[T] {
	return &sender[T]{flush: flush, backoff: backoff, pulse: p, wake: make(chan struct{}, 1), emptied: make(chan struct{})}
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
	defer s.pulse.End()
	ctx = pulse.With(ctx, s.pulse)
	for ctx.Err() == nil {
		now := time.Now()
		s.pulse.Expect(now)
		batch, wait, done := s.next(now)
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

// expectAnswer has the loop of ctx tick when ctx ends at the latest: it is about to wait
// for the broker.
func expectAnswer(ctx context.Context) {
	if by, ok := ctx.Deadline(); ok {
		pulse.Of(ctx).Expect(by)
	}
}

// answered has the loop of ctx tick soon: the broker has answered.
func answered(ctx context.Context) { pulse.Of(ctx).Expect(time.Now()) }

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
		elapsed = time.After(wait)
		s.pulse.Expect(time.Now().Add(wait))
	} else {
		s.pulse.Rest()
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-elapsed:
	}
}
