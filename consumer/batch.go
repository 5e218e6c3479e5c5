package consumer

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// collector gathers the next batch of a topic, of one rank, and hands it to the
// pool when it is full or old enough. So a row that fails its batch again and again
// fails no fresh one.
type collector struct {
	sub  *subscription
	pool *pool

	mu      sync.Mutex
	members []*delivery
	timer   *time.Timer
}

// waiting returns what is in the batch.
func (c *collector) waiting() []*delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.members)
}

// add adds d to the batch.
func (c *collector) add(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, d)
	switch len(c.members) {
	case c.sub.batchSize:
		c.complete()
	case 1:
		c.timer = time.AfterFunc(c.sub.batchWait, c.flush)
	}
}

// flush hands the batch over as it is.
func (c *collector) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete()
}

// complete is flush with mu held.
func (c *collector) complete() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if members := c.members; len(members) > 0 {
		c.members = nil
		c.pool.add(c.sub.queue, members)
	}
}

// split runs the members of a batch that failed as a whole again, in two parts,
// before that counts against any of them: one may fail the others. After a timeout
// each runs alone. It reports whether it did.
func (p *pipeline) split(runs []*delivery, results []error, cause error, began, now time.Time) bool {
	if !asWhole(results) {
		return false
	}
	v := verdict(results[0], cause, runs[0].sub.rules)
	alike := func(err error) bool {
		other := verdict(err, cause, runs[0].sub.rules)
		return other.Class == v.Class && other.Deferred == v.Deferred
	}
	switch {
	case v.Deferred, runs[0].sub.noRepeat && v.Ambiguous, slices.ContainsFunc(results, func(err error) bool { return !alike(err) }):
		return false
	case v.Class != classify.ClassPoison && v.Class != classify.ClassTransient && v.Class != classify.ClassUnknown:
		return false
	}
	again := retry.Decision{Retry: true, Reason: reasonBatch}
	timedOut := errors.Is(cause, classify.ErrAttemptTimeout)
	o := outcomeOf(v, timedOut)
	for i, d := range runs {
		token := d.token
		d.token = false
		p.admission.done(d, began, now, o)
		d.token = token  // it still has to spend it
		o = flow.Neutral // one run is evidence once
		if p.tracer != nil {
			d.note(p.traced(d, d.metaNow()))
		}
		p.observe(d, Event{Kind: EventFailed, Time: now, Duration: now.Sub(began), Verdict: v, Decision: again, Err: results[i]})
	}
	size := (len(runs) + 1) / 2
	if timedOut { // halves would hang one after the other
		size = 1
	}
	for part := range slices.Chunk(runs, size) {
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
			p.settle(brokers.Release, d)
		}
	}
	if !p.draining.Load() {
		p.pool.add(part[0].sub.queue, part)
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
