package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
)

// final reports whether an error of Settle or Extend says that the delivery is
// not ours any more.
func final(err error) bool {
	return errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) || errors.Is(err, brokers.ErrClosed)
}

// settlers end deliveries at the source, and tell the owner how that went.
// Retries have a sender of their own, because they may have to wait for a copy to
// be confirmed, and so has what is rejected, which the broker may refuse for ever.
type settlers struct {
	*reporter
	source       brokers.Source
	longestDelay time.Duration // that the broker was told of
	owner        owner

	settler, retrier, rejecter *sender[*delivery]
}

// owner is told the ends of deliveries.
type owner interface {
	settled(ds []*delivery)                      // they are durable
	forget(ds ...*delivery)                      // others have them
	refused(d *delivery, err error) (again bool) // for good
}

func newSettlers(r *reporter, source brokers.Source, longestDelay time.Duration, o owner) *settlers {
	s := &settlers{reporter: r, source: source, longestDelay: longestDelay, owner: o}
	s.settler, s.retrier, s.rejecter = s.sender(settleBackoff), s.sender(settleBackoff), s.sender(letterBackoff)
	return s
}

func (s *settlers) sender(backoff retry.Backoff) *sender[*delivery] {
	var batch []brokers.Settlement // reused
	return newSender(backoff, func(ctx context.Context, ds []*delivery) (failed []*delivery) {
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
	errs := s.source.Settle(ctx, batch)
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

var settledKind = [...]EventKind{brokers.Ack: EventAcked, brokers.Retry: EventRetried, brokers.Release: EventReleased, brokers.Reject: EventRejected}
