package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
)

// letter begins the dead letter of d, in case it comes to that.
func (p *pipeline) letter(d *delivery, err error, v classify.Verdict) dlq.Entry {
	letter := dlq.Entry{Message: d.Message}
	letter.SetError(err, v, p.cfg.Redact, p.cfg.Stacks)
	return letter
}

var refusedVerdict = classify.Verdict{Class: classify.ClassPoison, Rule: "refused"}

// deadLetter ends the life of d: d has no more runs, and the worker publishes its
// dead letter.
func (p *pipeline) deadLetter(d *delivery, reason string, letter dlq.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadLetterLocked(d, reason, letter)
}

// deadLetterLocked is deadLetter with mu held.
func (p *pipeline) deadLetterLocked(d *delivery, reason string, letter dlq.Entry) {
	p.kill(d, reason, letter)
	p.bury(d)
}

// kill records why d is dead. Its dead letter may be published much later.
func (p *pipeline) kill(d *delivery, reason string, letter dlq.Entry) {
	letter.Reason, letter.Meta, letter.Abandoned = reason, d.metaNow(), d.Abandoned
	letter.Group, letter.DeadBy, letter.DeadAt = p.group(), p.cfg.Instance, time.Now()
	d.own().letter = &letter
}

// bury publishes the dead letter of d, and acks d when the dead letter is durable.
// Until then d waits outside the window, so that a dead-letter topic that is down
// stops no other message. If there is no room for d, it waits in its queue, with
// its Death. mu is held.
func (p *pipeline) bury(d *delivery) {
	if p.roomToDie(d) {
		p.die(d)
		return
	}
	p.pauseDead(d, forRoom)
	p.settleLocked(d, brokers.Retry)
}

// die is bury for a delivery that has room. mu is held.
func (p *pipeline) die(d *delivery) {
	if p.to(d, dying) {
		p.lettersTo(d.sub.deadLetter).add(d)
		p.advance(d, true)
	}
}

// group names the workers that share the messages: as the source says, where the
// broker has such a notion.
func (p *pipeline) group() string { return cmp.Or(p.caps.Group, p.cfg.Group) }

// roomToDie reports whether one more dead letter of its topic may wait. There is
// always room for as many as the window holds. mu is held.
func (p *pipeline) roomToDie(d *delivery) bool {
	s := d.sub
	return s.dying < s.window || s.waiting+s.dying < s.maxHeld && s.held+size(d) <= s.maxBytes
}

// retryRefused deals with a message whose retry the broker will never take. A
// message that was alive is dead now, with the broker's reason and not the
// handler's. A dead message is retried once more with a shortened Death. If the
// broker refuses that, too, the message waits in the worker; if it came from
// there, it stays there or is left to its lease.
func (p *pipeline) retryRefused(d *delivery, err error) {
	p.mu.Lock()
	kept := true
	switch {
	case d.letter != nil && !d.short:
		d.own().short = true
		p.sendBack(d)
	case state(d.state.Load()) == dying:
		kept = p.stay(d)
	case d.letter != nil:
		p.die(d)
	default:
		p.kill(d, reasonRefused, p.letter(d, err, refusedVerdict))
		p.die(d)
	}
	p.mu.Unlock()
	if !kept {
		p.drop(d, leaseLost(errLeftToItsLease))
	}
}

// sendBack has the broker deliver the dead message d again.
func (p *pipeline) sendBack(d *delivery) {
	if d.action = brokers.Retry; p.draining.Load() { // the retrier may have stopped
		p.settler.add(d)
	} else {
		p.retrier.add(d)
	}
}

// lettersTo returns the sender to a dead-letter topic. mu is held.
func (p *pipeline) lettersTo(topic string) *sender[*delivery] {
	s := p.letters[topic]
	if s == nil {
		s = newSender(letterBackoff, func(ctx context.Context, ds []*delivery) []*delivery { return p.publishLetters(ctx, topic, ds) })
		p.letters[topic] = s
		p.stages.Go(func() { s.run(p.life) })
	}
	return s
}

// publishLetters publishes the dead letters of ds and returns those to publish
// again. The originals are settled only after the confirmation. What is refused
// is published with less, at once.
func (p *pipeline) publishLetters(ctx context.Context, topic string, ds []*delivery) (failed []*delivery) {
	ds = p.unpublished(ds)
	if topic == "" {
		return p.discard(ds)
	}
	for len(ds) > 0 {
		letters := make([]brokers.Message, len(ds))
		for i, d := range ds {
			letters[i] = p.encode(d)
		}
		causes := publishErrors(p.broker.Publish(ctx, topic, letters...), len(ds))
		if causes == nil {
			p.dead(ds, EventDeadLettered)
			return failed
		}
		var confirmed, smaller []*delivery
		for i, d := range ds {
			cause := causes[i]
			switch refused := errors.Is(cause, brokers.ErrRefused); {
			case cause == nil:
				confirmed = append(confirmed, d)
			case refused && d.form < stub:
				p.unpublishedFor(d, topic, cause)
				d.own().form++
				smaller = append(smaller, d)
			case !refused && p.lasts(d, time.Now().Add(letterBackoff.Cap)):
				p.unpublishedFor(d, topic, cause)
				failed = append(failed, d)
			case !refused: // its lease would end, and another worker would run it
				p.unpublishedFor(d, topic, cause)
				p.pauseDead(d, forRoom)
				p.sendBack(d)
			case p.unburied(d, fmt.Errorf("stub in %q: %w", topic, cause)):
				failed = append(failed, d)
			}
		}
		p.dead(confirmed, EventDeadLettered)
		ds = smaller
	}
	return failed
}

var errNotDiscarded = errors.New("it is a dead letter itself, and dlq.Discard would destroy what is left of its message: " +
	`name a topic for it, as DeadLetter: dlq.Suffix("-refused") does`)

// discard drops ds, as dlq.Discard asks, but for those that are dead letters
// themselves: these are kept. It returns those to deal with again.
func (p *pipeline) discard(ds []*delivery) (failed []*delivery) {
	var dropped []*delivery
	for _, d := range ds {
		if _, err := dlq.Decode(d.Message); err != nil {
			dropped = append(dropped, d)
		} else if p.unburied(d, errNotDiscarded) {
			failed = append(failed, d)
		}
	}
	p.dead(dropped, EventDiscarded)
	return failed
}

// unpublishedFor reports a dead letter that is tried again.
func (p *pipeline) unpublishedFor(d *delivery, topic string, cause error) {
	p.observe(d, Event{Kind: EventError, Operation: "dead-letter", DeadLetter: d.published(),
		Err: fmt.Errorf("dead letter to %q: %w; the message is kept and the dead letter tried again", topic, cause)})
}

// unpublished returns those of ds whose dead letter is to be published: what is
// lost is somebody else's, and that of which a stub is out needs no other.
func (p *pipeline) unpublished(ds []*delivery) []*delivery {
	kept := ds[:0:0]
	for _, d := range ds {
		if loss := d.lost(); loss != nil {
			p.drop(d, loss)
			continue
		}
		if p.stubs.has(d) {
			d.own().form = stub
			p.send(d, brokers.Reject)
			continue
		}
		kept = append(kept, d)
	}
	return kept
}

// form is how much of a dead letter is published. With each refusal it is less.
type form uint8

const (
	whole form = iota
	bare       // the message with next to no metadata
	stub       // what stands for the message
)

// published returns the dead letter of d, or the stub that stands for d.
func (d *delivery) published() *dlq.Entry {
	if d.form != stub {
		return d.letter
	}
	letter := d.letter.Stub()
	return &letter
}

// encode returns the dead letter of d to publish.
func (p *pipeline) encode(d *delivery) brokers.Message {
	if d.form == bare {
		return d.letter.Encode(1)
	}
	return d.published().Encode(p.caps.HeaderLimit)
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

// dead settles deliveries whose dead letter is durable, or not wanted. The
// original of a stub is left to the broker's own dead-lettering.
func (p *pipeline) dead(ds []*delivery, kind EventKind) {
	for _, d := range ds {
		p.observe(d, Event{Kind: kind, DeadLetter: d.published()})
		if d.form == stub {
			p.stubs.add(d)
			p.send(d, brokers.Reject)
			continue
		}
		p.send(d, brokers.Ack)
	}
}
