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

// settle decides how d ends, unless that is decided already, and lets its key
// go on.
func (p *pipeline) settle(d *delivery, action brokers.Action) {
	if !d.turn {
		if p.to(d, settling) {
			p.send(d, action)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked(d, action)
}

// settleLocked is settle for what waits, or has the turn of its key. mu is held.
func (p *pipeline) settleLocked(d *delivery, action brokers.Action) {
	if !p.to(d, settling) {
		return
	}
	p.send(d, action)
	p.advance(d, action == brokers.Ack)
}

// send hands d to the settlers. Retries have one of their own, because they
// may have to wait for a copy to be confirmed, and so has what is rejected, which
// the broker may refuse for ever.
func (p *pipeline) send(d *delivery, action brokers.Action) {
	d.action = d.keepMeta(action)
	switch d.action {
	case brokers.Retry:
		p.retrier.add(d)
	case brokers.Reject:
		p.rejecter.add(d)
	default:
		p.settler.add(d)
	}
}

// actionOnStop is how a delivery ends that waits in the process when that stops:
// one that waits for its time is rescheduled, one for its guard was not handled.
func (d *delivery) actionOnStop() brokers.Action {
	if d.meta.DueAt.After(time.Now()) {
		return brokers.Retry
	}
	return brokers.Release
}

// keepMeta returns Retry instead of Release for a message that has failed or died
// in this process. A release would forget its attempts and its death.
func (d *delivery) keepMeta(action brokers.Action) brokers.Action {
	if action == brokers.Release && (d.letter != nil || d.changed) {
		return brokers.Retry
	}
	return action
}

// settler is a sender to the source.
type settler struct {
	*sender[*delivery]
	p     *pipeline
	batch []brokers.Settlement // reused
}

func newSettler(p *pipeline, backoff retry.Backoff) *settler {
	s := &settler{p: p}
	s.sender = newSender(backoff, s.settle)
	return s
}

// settle settles ds and returns those to settle again.
func (s *settler) settle(ctx context.Context, ds []*delivery) (failed []*delivery) {
	now := time.Now()
	for _, d := range ds {
		entry := brokers.Settlement{Delivery: d.Delivery, Action: d.action}
		if d.action == brokers.Retry {
			// It may have to wait for longer than the broker was told of: it then
			// comes back before, with its due time, and is sent on.
			entry.Meta, entry.Delay = d.metaToKeep(), min(max(0, d.meta.DueAt.Sub(now)), s.p.longestDelay)
		}
		s.batch = append(s.batch, entry)
	}
	errs := s.p.source.Settle(ctx, s.batch)
	clear(s.batch)
	s.batch = s.batch[:0]
	if errs == nil {
		s.p.settled(ds)
		return nil
	}
	done := make([]*delivery, 0, len(ds))
	for i, d := range ds {
		err := brokers.ErrUnknownOutcome
		if len(errs) == len(ds) {
			err = errs[i]
		}
		if err == nil || errors.Is(err, brokers.ErrSettled) {
			done = append(done, d) // now, or by an earlier call whose answer got lost
		} else if s.p.unsettled(d, err) {
			failed = append(failed, d)
		}
	}
	s.p.settled(done)
	return failed
}

// unsettled deals with a settlement that failed. It reports whether to settle
// again. Where only an operator can help, this goes on until then: the message
// takes room in the window of its own topic, and stops no other topic.
func (p *pipeline) unsettled(d *delivery, err error) bool {
	err = fmt.Errorf("%s: %w", d.action, err)
	switch {
	case final(err):
		p.observe(d, Event{Kind: EventLeaseLost, Err: err})
		p.forget(d)
		return false
	case errors.Is(err, brokers.ErrRefused) && d.action == brokers.Reject:
		return p.unburied(d, err)
	case errors.Is(err, brokers.ErrRefused) && d.action == brokers.Retry:
		p.retryRefused(d, err)
		return false
	}
	p.observe(d, Event{Kind: EventError, Operation: d.action.String(), Err: err})
	return true
}

// settled ends the life of deliveries whose settlement is durable.
func (p *pipeline) settled(ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	for _, d := range ds {
		if kind := settledKind[d.action]; p.observed() || !kind.routine() {
			e := Event{Kind: kind}
			if kind == EventRetried && d.letter != nil {
				e.DeadLetter = d.letter
			}
			p.observe(d, e)
		}
		if d.action == brokers.Reject {
			p.stubs.forget(d.stub)
		}
		if d.action == brokers.Ack || d.action == brokers.Reject {
			p.receiptOfEnd(d)
		}
	}
	p.forget(ds...)
}

var settledKind = [...]EventKind{brokers.Ack: EventAcked, brokers.Retry: EventRetried, brokers.Release: EventReleased, brokers.Reject: EventRejected}

// extend is the keeper's way to the source.
func (p *pipeline) extend(ctx context.Context, lease time.Duration, ds []*delivery) []error {
	deliveries := make([]*brokers.Delivery, len(ds))
	for i, d := range ds {
		deliveries[i] = d.Delivery
	}
	errs := p.source.Extend(ctx, lease, deliveries)
	for i, d := range ds {
		switch {
		case errs == nil || i < len(errs) && errs[i] == nil:
			p.observe(d, Event{Kind: EventExtended})
		case i < len(errs) && !final(errs[i]):
			p.leases.failed(time.Now())
			p.observe(d, Event{Kind: EventError, Operation: "extend", Err: fmt.Errorf("extend the lease: %w", errs[i])})
		}
	}
	return errs
}
