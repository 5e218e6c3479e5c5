package consumer

import (
	"time"

	"github.com/redrive-go/redrive/retry/budget"
)

// What came back from a dead-letter queue failed before, for reasons that may be
// its own. So its runs have no leave, and say nothing about what handlers depend
// on; its retries have a budget of their own; and it uses at most half of the
// slots, and of the room, of its topic.

// returned reports whether d came back from a dead-letter queue.
func (d *delivery) returned() bool { return d.Meta.RedriveCount > 0 }

// bulkhead is the guard whose slots d uses, nil if it may use any.
func (d *delivery) bulkhead() *guard {
	if d.returned() {
		return d.sub.returned
	}
	return d.guard
}

// yields reports whether the messages behind d of its key go on while d waits.
func (d *delivery) yields() bool { return d.turn && d.returned() }

// budget is the one for retries of d; nil if they need no tokens.
func (d *delivery) budget() budget.Pacer {
	if d.returned() {
		return d.sub.returned.budget
	}
	return d.nearest().budget
}

// turnedAway is how long d waits in the broker, at least, if it finds no slot and
// no room to wait for one. What came back may be thousands, and in no hurry.
func (d *delivery) turnedAway() time.Duration {
	if d.returned() {
		return 15 * time.Second
	}
	return recheck
}

// grant is start for the run of d. What came back runs without a leave: if
// everything may run; or, to find out, beside the probes of a guard that would
// grant one more.
func (g *guard) grant(now time.Time, d *delivery) (l leave, ok bool) {
	if !d.returned() {
		return g.start(now)
	}
	if g.flows() {
		return leave{}, true
	}
	ok, _ = g.allows(now)
	d.permit.tried = d.permit.tried || ok
	return leave{}, ok
}

// vouch is report for what came back. Only that it succeeded, while g would grant
// a probe, says something: as much as that probe would.
func (p permit) vouch(g *guard, now time.Time, _ leave, of uint64, e evidence) (changed bool) {
	if !p.tried || e != healthy || g.flows() {
		return false
	}
	l, ok := g.start(now)
	return ok && g.report(now, l, of, e)
}
