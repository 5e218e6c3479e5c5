package breaker

import (
	"cmp"
	"time"
)

// advance returns the state at now. A clock that was set back takes the open
// time with it, so that it does not last longer than was drawn.
func (b *Breaker) advance(now time.Time) State {
	if b.state != Open {
		return b.state
	}
	if back := b.since.Sub(now); back > 0 {
		b.since, b.until = now, b.until.Add(-back)
	}
	if !now.Before(b.until) {
		b.enter(HalfOpen, now)
	}
	return b.state
}

// enter begins a state. All permits are void from then on.
func (b *Breaker) enter(s State, now time.Time) {
	b.state, b.since = s, now
	b.era++
	b.closed.Store(0)
	b.healthy.Store(0)
	if s == Closed {
		b.closed.Store(b.era)
	}
	b.leases, b.successes = [maxProbes]lease{}, 0
}

// open opens the breaker, for the longer the more often it has in a row.
func (b *Breaker) open(now time.Time, reason string, random float64) {
	if b.state == Closed && now.Sub(b.since) >= b.cfg.MinOpen {
		b.openings = 0
	}
	b.openings++
	b.enter(Open, now)
	b.reason, b.until = reason, now.Add(b.openTime(random))
}

// openTime draws a time between MinOpen and an end that doubles with each
// opening, up to MaxOpen.
func (b *Breaker) openTime(random float64) time.Duration {
	longest := b.cfg.MinOpen
	for n := 0; n < b.openings && longest < b.cfg.MaxOpen; n++ {
		longest += min(longest, b.cfg.MaxOpen-longest)
	}
	switch {
	case random >= 1:
		return longest
	case random > 0: // and not NaN
		return b.cfg.MinOpen + time.Duration(random*float64(longest-b.cfg.MinOpen))
	}
	return b.cfg.MinOpen
}

// ran takes the report of a run in a closed breaker.
func (b *Breaker) ran(now time.Time, of uint64, o Outcome, random float64) (changed bool) {
	w := &b.window
	switch o {
	case Success:
		w.succeeded(of)
		if w.healthy() {
			b.healthy.Store(b.era)
		}
	case Failure, Severe:
		b.healthy.Store(0)
		w.failed(of, o == Severe)
		if reason := w.verdict(&b.cfg); reason != "" {
			b.open(now, reason, random)
			return true
		}
	}
	return false
}

// probed takes the report of a probe.
func (b *Breaker) probed(now time.Time, p Permit, of uint64, o Outcome, random float64) {
	b.leases[p.slot] = lease{}
	switch o {
	case Failure, Severe:
		b.open(now, cmp.Or(b.reason, "the probe failed"), random)
	case Success:
		b.successes++
		if b.successes >= b.cfg.Successes {
			b.enter(Closed, now)
			b.reason = ""
			b.window.reset(of)
		}
	}
}

// current reports whether a report under p counts.
func (b *Breaker) current(p Permit) bool {
	if b.state == HalfOpen {
		return b.holds(p)
	}
	return b.state == Closed && p.era == b.era
}

// holds reports whether p is a probe whose lease nobody else has taken over.
func (b *Breaker) holds(p Permit) bool {
	return p.id != 0 && b.leases[p.slot].id == p.id
}

// allowed returns how many probes may be out at once.
func (b *Breaker) allowed() int {
	return min(b.cfg.Probes+b.successes, maxProbes)
}

// free reports whether the lease in slot i can be taken. One that lasts longer
// than any can is from before the clock was set back.
func (b *Breaker) free(i int, now time.Time) bool {
	l := &b.leases[i]
	left := l.until.Sub(now)
	return l.id == 0 || left <= 0 || left > b.cfg.Lease
}

// spare returns a slot whose lease can be taken, or -1.
func (b *Breaker) spare(now time.Time) int {
	for i := range b.allowed() {
		if b.free(i, now) {
			return i
		}
	}
	return -1
}

// lend leases a probe, if one is free.
func (b *Breaker) lend(now time.Time) (Permit, bool) {
	i := b.spare(now)
	if i < 0 {
		return Permit{}, false
	}
	b.lastLease++
	b.leases[i] = lease{id: b.lastLease, until: now.Add(b.cfg.Lease)}
	return Permit{era: b.era, id: b.lastLease, slot: uint8(i)}, true
}

// next returns when Start may grant a run though nothing is reported.
func (b *Breaker) next(now time.Time) time.Time {
	switch b.state {
	case Open:
		return b.until
	case HalfOpen:
		first := b.leases[0].until
		for i := range b.allowed() {
			if until := b.leases[i].until; until.Before(first) {
				first = until
			}
		}
		return first
	}
	return time.Time{}
}
