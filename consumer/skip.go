package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// ErrSkipped is the cause with which a handler's context ends when a person skips its
// message ([Consumer.Skip]). The message becomes a dead letter. Other messages of its
// batch are given back, and their run is not counted.
var ErrSkipped = errors.New("the message is skipped by hand")

const reasonSkipped = "skipped-by-hand"

var skippedVerdict = classify.Verdict{Class: classify.ClassUnknown, Rule: "skipped by hand"}

// Skip makes a message a dead letter, with the reason "skipped-by-hand". Why is for
// its error text. The message must be in this worker: one that waits in the broker for
// its next attempt is not.
//
// A message that waits dies at once, and one that is queued for a slot when it gets
// one. The context of a handler that runs ends with the cause ErrSkipped. If the
// handler succeeds all the same, the message is done, and no dead letter. If it has
// ignored the end of its context for 10 s, the message dies while the handler still
// runs and keeps its slot; the next message of its key may start then.
//
// Skip does not wait for any of that. It does nothing more for a message that it has
// skipped before. Its error wraps health.ErrUnknown if the worker does not have the
// message, and it fails unless the worker is running.
func (c *Consumer) Skip(topic, id, why string) error {
	control, err := c.control("skip", health.ByHand{Topic: topic})
	if err != nil {
		return err
	}
	return control.skip(topic, id, why)
}

func (c *control) skip(topic, id, why string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errDraining
	}
	if c.p.skips.has(topic, id) {
		return nil
	}
	err := ErrSkipped
	if why != "" {
		err = fmt.Errorf("%w: %s", ErrSkipped, why)
	}
	found := false
	for _, d := range c.p.find(topic, id) {
		found = c.p.skip(d, &skipping{err, c.p.letters.write(d, err, skippedVerdict)}) || found
	}
	if !found {
		return fmt.Errorf("consumer: skip: message %q of topic %q is %w: it waits in the broker, another worker has it, or it has ended", id, topic, health.ErrUnknown)
	}
	return nil
}

// find returns the deliveries of a message that wait, are queued or run.
func (p *pipeline) find(topic, id string) []*delivery {
	p.mu.Lock()
	ds := append(p.admission.waiting(), p.waitlist.all()...)
	for _, behind := range p.keys {
		ds = append(ds, behind...)
	}
	for i := range p.byTopic[topic].batches {
		ds = append(ds, p.byTopic[topic].batches[i].waiting()...)
	}
	p.mu.Unlock()
	ds = append(ds, p.pool.all()...)
	ds = slices.DeleteFunc(ds, func(d *delivery) bool { return d.Message.ID != id || d.Message.Topic != topic })
	for i, d := range ds { // on its way from one of these to the next
		if slices.Contains(ds[:i], d) {
			ds[i] = nil
		}
	}
	return slices.DeleteFunc(ds, func(d *delivery) bool { return d == nil })
}

// skip skips d, and reports whether its end was open.
func (p *pipeline) skip(d *delivery, why *skipping) bool {
	p.mu.Lock()
	at := state(d.state.Load())
	open := !p.draining.Load() && (at == queued || at == running || at == waiting)
	if open && (p.keys.leave(d) || at == waiting) { // nobody else looks at it
		if open = at == queued || p.to(d, queued); open {
			p.skips.set(d, why)
			d.refundSoon(time.Now())
			d.own().judgement = nil
			p.deadLetter(d, reasonSkipped, why.letter)
		}
		p.mu.Unlock()
		return open
	}
	if open {
		p.skips.set(d, why)
	}
	p.mu.Unlock()
	if open {
		for _, w := range p.pool.members() {
			w.interrupt(d, why.err)
		}
	}
	return open
}

// skipped ends the run of d, which a person has skipped. Err is what its handler
// returned; nil if it has not.
func (p *pipeline) skipped(d *delivery, why *skipping, err error, began, now time.Time) {
	p.admission.done(d, began, now, flow.Neutral)
	decision := retry.Decision{DeadLetter: true, Reason: reasonSkipped, Counted: true}
	if err == nil {
		err = fmt.Errorf("%w; its handler ignores that its context has ended, and runs on", why.err)
	} else {
		err = fmt.Errorf("%w; its handler returned: %w", why.err, err)
	}
	p.carryOut(d, decision, circumstances{excused: d.meta.Excused}, Event{Kind: EventFailed, Time: now, Duration: now.Sub(began), Verdict: skippedVerdict, Decision: decision, Err: err}, nil)
}

// takeAway ends the run of d, which a person has skipped and whose handler is stuck.
func (p *pipeline) takeAway(d *delivery, began, now time.Time) {
	if why := p.skips.of(d); why != nil { // nil if a drain was faster
		p.hang(d.sub, -1, 0)
		p.skipped(d, why, nil, began, now)
	}
}
