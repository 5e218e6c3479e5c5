package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
)

// final reports whether an error of Settle or Extend says that the delivery is
// not ours any more.
func final(err error) bool {
	return errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) || errors.Is(err, brokers.ErrClosed)
}

// settle decides how r ends, unless that is decided already, and lets its key
// go on.
func (p *pipeline) settle(r *run, action brokers.Action) {
	if r.laned {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	p.settleLocked(r, action)
}

// settleLocked is settle with mu held, which only runs with a lane need.
func (p *pipeline) settleLocked(r *run, action brokers.Action) {
	if !r.settled.CompareAndSwap(false, true) {
		return
	}
	p.send(r, action)
	p.advance(r, action == brokers.Ack)
}

// send hands r to the settlers. Retries have one of their own, because they
// may have to wait for a copy to be confirmed.
func (p *pipeline) send(r *run, action brokers.Action) {
	r.action = r.unhandled(action)
	if r.action == brokers.Retry {
		p.retrier.add(r)
		return
	}
	p.settler.add(r)
}

// parting is how a run ends that waits in the process when that stops: one that
// waits for its time is rescheduled, one at the gate was not handled.
func (r *run) parting() brokers.Action {
	if r.meta.DueAt.After(time.Now()) {
		return brokers.Retry
	}
	return brokers.Release
}

// unhandled returns Retry instead of Release for what has failed in this
// process, because a release would forget its attempts.
func (r *run) unhandled(action brokers.Action) brokers.Action {
	if action == brokers.Release && r.meta != &r.delivery.Meta {
		return brokers.Retry
	}
	return action
}

// settler is an outbox to the source.
type settler struct {
	*outbox
	p     *pipeline
	batch []brokers.Settlement // reused
}

func newSettler(p *pipeline) *settler {
	s := &settler{p: p}
	s.outbox = newOutbox(s.settle)
	return s
}

// settle settles runs and returns those to settle again.
func (s *settler) settle(ctx context.Context, runs []*run) (failed []*run) {
	now := time.Now()
	for _, r := range runs {
		entry := brokers.Settlement{Delivery: r.delivery, Action: r.action}
		if r.action == brokers.Retry {
			// The budget may have moved it further than the broker was told of: it
			// then comes back before, with its due time, and is sent on.
			entry.Meta, entry.Delay = *r.meta, min(max(0, r.meta.DueAt.Sub(now)), s.p.delay)
		}
		s.batch = append(s.batch, entry)
	}
	errs := s.p.source.Settle(ctx, s.batch)
	clear(s.batch)
	s.batch = s.batch[:0]
	if errs == nil {
		s.p.settledRuns(runs)
		return nil
	}
	done := make([]*run, 0, len(runs))
	for i, r := range runs {
		err := brokers.ErrUnknownOutcome
		if len(errs) == len(runs) {
			err = errs[i]
		}
		if err == nil || errors.Is(err, brokers.ErrSettled) {
			done = append(done, r) // now, or by an earlier call whose answer got lost
		} else if s.p.unsettled(r, err) {
			failed = append(failed, r)
		}
	}
	s.p.settledRuns(done)
	return failed
}

// unsettled deals with a settlement that failed. It reports whether to settle
// again.
func (p *pipeline) unsettled(r *run, err error) bool {
	err = fmt.Errorf("%s: %w", r.action, err)
	switch {
	case final(err):
		p.refund(r)
		p.observe(r, Event{Kind: EventLeaseLost, Err: err})
		p.forget(r)
		return false
	case errors.Is(err, brokers.ErrRefused) && r.action == brokers.Retry:
		p.buryRefused(r, err)
		return false
	}
	p.troubled(r, Operation(r.action.String()), err)
	return true
}

// settledRuns ends the life of runs whose settlement is durable.
func (p *pipeline) settledRuns(runs []*run) {
	if len(runs) == 0 {
		return
	}
	for _, r := range runs {
		if kind := settledKind[r.action]; p.observed() || !kind.routine() {
			p.observe(r, Event{Kind: kind})
		}
	}
	p.forget(runs...)
}

var settledKind = [...]EventKind{brokers.Ack: EventAcked, brokers.Retry: EventRetried, brokers.Release: EventReleased}

// troubled reports a failed operation on r, which is tried again, and stops
// the worker if trying again cannot help.
func (p *pipeline) troubled(r *run, op Operation, err error) {
	p.observe(r, Event{Kind: EventError, Operation: op, Err: err})
	if errors.Is(err, brokers.ErrMisconfigured) {
		p.stop(fmt.Errorf("consumer: topic %q: %w", r.delivery.Message.Topic, err))
	}
}

// extend is the keeper's way to the source.
func (p *pipeline) extend(ctx context.Context, lease time.Duration, runs []*run) []error {
	deliveries := make([]*brokers.Delivery, len(runs))
	for i, r := range runs {
		deliveries[i] = r.delivery
	}
	errs := p.source.Extend(ctx, lease, deliveries)
	for i, r := range runs {
		switch {
		case errs == nil || i < len(errs) && errs[i] == nil:
			p.observe(r, Event{Kind: EventExtended})
		case i < len(errs) && !final(errs[i]):
			p.troubled(r, OperationExtend, fmt.Errorf("extend the lease: %w", errs[i]))
		}
	}
	return errs
}

// bury sends r to the dead letters of its topic, and acks it when the dead
// letter is durable. It waits outside the window, so that one dead-letter topic
// that is down does not stop the others at once.
func (p *pipeline) bury(r *run, reason string, entry dlq.Entry) {
	if !r.settled.CompareAndSwap(false, true) {
		return
	}
	entry.Reason, entry.Meta, entry.Abandoned = reason, *r.meta, r.delivery.Abandoned
	entry.Group, entry.DeadBy, entry.DeadAt = p.cfg.Group, p.cfg.Instance, time.Now()
	r.entry = &entry
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.roomToHold() {
		r.parked = true
		p.parked++
		p.leave(1)
	}
	p.grave(r.route.deadLetter).add(r)
	p.advance(r, true)
}

// buryRefused dead-letters a message whose retry copy the broker will never
// take. The reason is the broker's, not the handler's.
func (p *pipeline) buryRefused(r *run, err error) {
	r.settled.Store(false)
	p.refund(r)
	p.bury(r, reasonRefused, p.entry(r, err, refusedVerdict))
}

var refusedVerdict = classify.Verdict{Class: classify.ClassPoison, Rule: "refused"}

// grave returns the outbox of a dead-letter topic. mu is held.
func (p *pipeline) grave(topic string) *outbox {
	o := p.letters[topic]
	if o == nil {
		o = newOutbox(func(ctx context.Context, runs []*run) []*run { return p.flushLetters(ctx, topic, runs) })
		p.letters[topic] = o
		p.stages.Go(func() { o.run(p.life) })
	}
	return o
}

// flushLetters publishes the dead letters of runs and returns those to publish
// again. The originals are acked only after the confirmation.
func (p *pipeline) flushLetters(ctx context.Context, topic string, runs []*run) (failed []*run) {
	kept := runs[:0]
	for _, r := range runs {
		if loss := r.lost(); loss != nil {
			p.observe(r, Event{Kind: EventLeaseLost, Err: loss})
			p.forget(r)
			continue
		}
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		return nil
	}
	if topic == "" {
		p.buried(kept, EventDiscarded)
		return nil
	}
	letters := make([]brokers.Message, len(kept))
	for i, r := range kept {
		letters[i] = r.entry.Encode(p.headerLimit(r))
	}
	causes := publishErrors(p.broker.Publish(ctx, topic, letters...), len(kept))
	if causes == nil {
		p.buried(kept, EventDeadLettered)
		return nil
	}
	confirmed := make([]*run, 0, len(kept))
	for i, r := range kept {
		if causes[i] == nil {
			confirmed = append(confirmed, r)
			continue
		}
		r.tooBig = r.tooBig || errors.Is(causes[i], brokers.ErrRefused)
		p.observe(r, Event{Kind: EventError, Operation: OperationDeadLetter, DeadLetter: r.entry,
			Err: fmt.Errorf("dead letter to %q: %w; the message is kept and the dead letter tried again", topic, causes[i])})
		failed = append(failed, r)
	}
	p.buried(confirmed, EventDeadLettered)
	return failed
}

// headerLimit is the room for the story of r: next to none once the broker has
// refused the dead letter.
func (p *pipeline) headerLimit(r *run) int {
	if r.tooBig {
		return 1
	}
	return p.caps.HeaderLimit
}

// publishErrors returns one error per message, nil if all are durable.
func publishErrors(err error, n int) []error {
	if err == nil {
		return nil
	}
	causes := make([]error, n)
	partial, ok := errors.AsType[*brokers.PublishError](err)
	for i := range causes {
		causes[i] = err
		if ok {
			causes[i] = partial.Failed[i]
		}
	}
	return causes
}

// buried acks runs whose dead letter is durable, or not wanted.
func (p *pipeline) buried(runs []*run, kind EventKind) {
	for _, r := range runs {
		p.observe(r, Event{Kind: kind, DeadLetter: r.entry})
		p.send(r, brokers.Ack)
	}
}
