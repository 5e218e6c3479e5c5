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

// letter begins the dead letter of d, in case it comes to that.
func (p *pipeline) letter(d *delivery, err error, v classify.Verdict) dlq.Entry {
	letter := dlq.Entry{Message: d.Message}
	letter.SetError(err, v, p.cfg.Redact, p.cfg.Stacks)
	return letter
}

var refusedVerdict = classify.Verdict{Class: classify.ClassPoison, Rule: "refused"}

// deadLetter sends d to the dead letters of its topic, and acks it when the dead
// letter is durable. It waits outside the window, so that a dead-letter topic
// that is down stops no other message. What finds no place there goes back to
// its queue for some minutes, and is then dead-lettered without another run.
func (p *pipeline) deadLetter(d *delivery, reason string, letter dlq.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.roomToDie(d) {
		p.dieLater(d, reason)
		return
	}
	p.die(d, reason, letter)
}

// die is deadLetter with mu held, and room for d.
func (p *pipeline) die(d *delivery, reason string, letter dlq.Entry) {
	if !p.to(d, dying) {
		return
	}
	letter.Reason, letter.Meta, letter.Abandoned = reason, *d.meta, d.Abandoned
	letter.Group, letter.DeadBy, letter.DeadAt = p.cfg.Group, p.cfg.Instance, time.Now()
	d.letter = &letter
	p.lettersTo(d.sub.deadLetter).add(d)
	p.advance(d, true)
}

// roomToDie reports whether one more dead letter of its topic may wait. There is
// always room for as many as the window holds. mu is held.
func (p *pipeline) roomToDie(d *delivery) bool {
	s := d.sub
	return s.dying < s.window || s.waiting+s.dying < s.maxHeld && s.held+size(d) <= s.maxBytes
}

// dieLater has the broker bring d again, with no attempts left unless it is
// refused for the same reason again. mu is held.
func (p *pipeline) dieLater(d *delivery, reason string) {
	m := *d.meta
	if reason != reasonOversize && reason != reasonUnroutable {
		m.Attempt = max(m.Attempt, d.sub.attempts)
	}
	if reason == reasonCrashLoop && m.FirstFailedAt.IsZero() { // which a broker may not count on
		m.FirstFailedAt, m.LastFailedAt, m.Class = time.Now(), time.Now(), poisonClass
	}
	m.DueAt = time.Now().Add(time.Minute + time.Duration(p.cfg.Random()*float64(2*time.Minute)))
	d.setMeta(m)
	p.settleLocked(d, brokers.Retry)
}

// deadLetterRefused dead-letters a message whose retry copy the broker will
// never take. The reason is the broker's, not the handler's.
func (p *pipeline) deadLetterRefused(d *delivery, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.die(d, reasonRefused, p.letter(d, err, refusedVerdict))
}

// lettersTo returns the sender to a dead-letter topic. mu is held.
func (p *pipeline) lettersTo(topic string) *sender {
	s := p.letters[topic]
	if s == nil {
		s = newSender(func(ctx context.Context, ds []*delivery) []*delivery { return p.publishLetters(ctx, topic, ds) })
		p.letters[topic] = s
		p.stages.Go(func() { s.run(p.life) })
	}
	return s
}

// publishLetters publishes the dead letters of ds and returns those to publish
// again. The originals are acked only after the confirmation.
func (p *pipeline) publishLetters(ctx context.Context, topic string, ds []*delivery) (failed []*delivery) {
	kept := ds[:0]
	for _, d := range ds {
		if loss := d.lost(); loss != nil {
			p.drop(d, loss)
			continue
		}
		kept = append(kept, d)
	}
	if len(kept) == 0 {
		return nil
	}
	if topic == "" {
		p.dead(kept, EventDiscarded)
		return nil
	}
	letters := make([]brokers.Message, len(kept))
	for i, d := range kept {
		letters[i] = d.letter.Encode(p.headerLimit(d))
	}
	causes := publishErrors(p.broker.Publish(ctx, topic, letters...), len(kept))
	if causes == nil {
		p.dead(kept, EventDeadLettered)
		return nil
	}
	confirmed := make([]*delivery, 0, len(kept))
	for i, d := range kept {
		if causes[i] == nil {
			confirmed = append(confirmed, d)
			continue
		}
		d.tooBig = d.tooBig || errors.Is(causes[i], brokers.ErrRefused)
		p.observe(d, Event{Kind: EventError, Operation: "dead-letter", DeadLetter: d.letter,
			Err: fmt.Errorf("dead letter to %q: %w; the message is kept and the dead letter tried again", topic, causes[i])})
		failed = append(failed, d)
	}
	p.dead(confirmed, EventDeadLettered)
	return failed
}

// headerLimit is the room for the metadata of d: next to none once the broker
// has refused the dead letter.
func (p *pipeline) headerLimit(d *delivery) int {
	if d.tooBig {
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

// dead acks deliveries whose dead letter is durable, or not wanted.
func (p *pipeline) dead(ds []*delivery, kind EventKind) {
	for _, d := range ds {
		p.observe(d, Event{Kind: kind, DeadLetter: d.letter})
		p.send(d, brokers.Ack)
	}
}
