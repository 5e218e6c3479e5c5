package storm

import (
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
)

// Gate is what decides whether a call may be made.
type Gate string

const (
	NoGate  Gate = "off"     // nothing
	Classic Gate = "classic" // a breaker as in textbooks, see below
	Breaker Gate = "on"      // retry/breaker
	Limit   Gate = "limit"   // retry/flow for Concurrency calls at once, as in a worker
)

// A classic breaker opens when half of the last classicCalls have failed. After
// classicOpen it lets one call through, and closes if that succeeds.
const (
	classicCalls = 20
	classicOpen  = 10 * time.Second
)

// gate is a breaker or a limit.
type gate interface {
	Start(now time.Time) (ok bool, next time.Time)
	Done(now, began time.Time, of uint64, o flow.Outcome)
}

func (w *world) newGate() gate {
	switch w.client.Gate {
	case Classic:
		return &classic{}
	case Breaker:
		return breaker.New(breaker.Config{Random: w.chance.Float64})
	case Limit:
		return limit{flow.New(w.Concurrency, w.chance.Float64)}
	}
	return nil
}

// isOpen reports whether g lets nothing but probes through.
func isOpen(g gate, now time.Time) bool {
	b, ok := g.(*breaker.Breaker)
	if !ok {
		return false
	}
	state := b.Snapshot(now).State
	return state == breaker.Open || state == breaker.Isolated
}

type limit struct{ *flow.Limiter }

func (l limit) Done(now, began time.Time, of uint64, o flow.Outcome) {
	l.Limiter.Done(now, flow.End{Began: began, Who: of, Outcome: o})
}

type classic struct {
	failed [classicCalls]bool
	calls  int
	until  time.Time // open; zero if closed
	trial  bool      // a call tries it out
}

func (c *classic) Start(now time.Time) (ok bool, next time.Time) {
	switch {
	case c.until.IsZero():
		return true, time.Time{}
	case now.Before(c.until):
		return false, c.until
	case c.trial:
		return false, time.Time{}
	}
	c.trial = true
	return true, time.Time{}
}

func (c *classic) Done(now, began time.Time, _ uint64, o flow.Outcome) {
	if !c.until.IsZero() {
		if !c.trial || began.Before(c.until) { // it began before the breaker opened
			return
		}
		c.trial = false
		if o == flow.Success {
			*c = classic{}
			return
		}
		c.until = now.Add(classicOpen)
		return
	}
	c.failed[c.calls%classicCalls] = o != flow.Success
	c.calls++
	failures := 0
	for _, failed := range c.failed {
		if failed {
			failures++
		}
	}
	if 2*failures >= classicCalls {
		c.until = now.Add(classicOpen)
	}
}
