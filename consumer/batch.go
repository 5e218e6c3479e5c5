package consumer

import (
	"errors"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// collector gathers the next batch of a topic.
type collector struct {
	members []*delivery
	timer   *time.Timer
}

// collect adds d to the batch of its topic and rank, and hands the batch over when
// it is full. So a row that fails its batch again and again fails no fresh one. A
// message that was split off a batch before runs alone. mu is held.
func (p *pipeline) collect(d *delivery) {
	s := d.sub
	c := &s.batches[d.rank()]
	if d.split {
		p.pool.add(s.line, d.alone())
		return
	}
	c.members = append(c.members, d)
	switch len(c.members) {
	case s.batchSize:
		p.complete(s, c)
	case 1:
		c.timer = time.AfterFunc(s.batchWait, func() { p.expire(s, c) })
	}
}

// expire ends the wait of a batch.
func (p *pipeline) expire(s *subscription, c *collector) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete(s, c)
}

// complete hands the batch over as it is. mu is held.
func (p *pipeline) complete(s *subscription, c *collector) {
	if c.timer != nil {
		c.timer.Stop()
	}
	if members := c.members; len(members) > 0 {
		c.members = nil
		p.pool.add(s.line, members)
	}
}

// split runs the members of a batch that failed as a whole again, in two parts,
// before that counts against any of them: one may fail the others. After a timeout
// each runs alone. It reports whether it did. A part of one has failed by itself.
func (p *pipeline) split(a *attempt, results []error, cause error, now time.Time) bool {
	if len(a.runs()) < 2 || !asWhole(results) {
		return false
	}
	v := verdict(results[0], cause, a.runs()[0].sub.rules)
	alike := func(err error) bool {
		other := verdict(err, cause, a.runs()[0].sub.rules)
		return other.Class == v.Class && other.Skip == v.Skip && other.Deferred == v.Deferred
	}
	if a.runs()[0].sub.noRepeat && v.Ambiguous || slices.ContainsFunc(results, func(err error) bool { return !alike(err) }) {
		return false
	}
	if v.Skip || v.Deferred || v.Class != classify.ClassPoison && v.Class != classify.ClassTransient && v.Class != classify.ClassUnknown {
		return false
	}
	again := retry.Decision{Action: retry.ActionRetry, Reason: reasonBatch}
	timedOut := errors.Is(cause, classify.ErrAttemptTimeout)
	o := outcomeOf(v, timedOut)
	for i, d := range a.runs() {
		token := d.token
		d.token = false
		p.tell(d, a.started, now, o)
		d.token = token  // it still has to spend it
		o = flow.Neutral // one run is evidence once
		p.observe(d, Event{Kind: EventFailed, Time: now, Duration: now.Sub(a.started), Verdict: v, Decision: again, Err: results[i]})
	}
	if timedOut { // halves would hang one after the other
		for i := range a.runs() {
			p.requeue(a.runs()[i : i+1 : i+1])
		}
		return true
	}
	half := len(a.runs()) / 2
	for _, part := range [][]*delivery{a.runs()[:half:half], a.runs()[half:]} {
		p.requeue(part)
	}
	return true
}

// requeue has a part of a batch run again.
func (p *pipeline) requeue(part []*delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range part {
		d.split = true
		p.to(d, queued)
		if p.draining.Load() {
			p.settleLocked(d, brokers.Release)
		}
	}
	if !p.draining.Load() {
		p.pool.add(part[0].sub.line, part)
	}
}

// asWhole reports whether all results are the same failure.
func asWhole(results []error) (yes bool) {
	defer func() {
		if recover() != nil { // methods of errors may panic
			yes = false
		}
	}()
	for _, err := range results {
		if err == nil || results[0] == nil || err.Error() != results[0].Error() {
			return false
		}
	}
	return true
}
