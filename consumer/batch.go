package consumer

import (
	"errors"
	"time"
)

// Batch says how the messages of a topic are collected for a BatchHandler.
type Batch struct {
	// Size is the most messages of one batch. Required; at least 1.
	Size int

	// Wait is how long the first message waits for others. Default 100 ms.
	Wait time.Duration
}

const defaultBatchWait = 100 * time.Millisecond

func (b Batch) faults(field string) error {
	return errors.Join(
		below(field+".Size", b.Size, 1, "use 1 or more"),
		below(field+".Wait", b.Wait, 0, "use a positive duration, or 0 for 100ms"),
	)
}

// collector gathers the next batch of a route.
type collector struct {
	runs  []*run
	timer *time.Timer
}

// collect adds r to the batch of its route and hands the batch over when it is
// full. mu is held.
func (p *pipeline) collect(r *run) {
	c := p.batches[r.route]
	if c == nil {
		c = &collector{}
		p.batches[r.route] = c
	}
	c.runs = append(c.runs, r)
	switch len(c.runs) {
	case r.route.size:
		p.complete(c)
	case 1:
		c.timer = time.AfterFunc(r.route.wait, func() { p.expire(c) })
	}
}

// expire ends the wait of a batch.
func (p *pipeline) expire(c *collector) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete(c)
}

// complete hands the batch over as it is. mu is held.
func (p *pipeline) complete(c *collector) {
	if c.timer != nil {
		c.timer.Stop()
	}
	if len(c.runs) > 0 {
		p.crew.add(c.runs)
		c.runs = nil
	}
}
