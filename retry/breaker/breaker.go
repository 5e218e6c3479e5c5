package breaker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// State is what a Breaker lets pass.
type State uint8

const (
	Closed   State = iota // everything
	Open                  // nothing, until its time is over
	HalfOpen              // a few probes at a time
	Isolated              // nothing, until Restore
)

// String returns the state as a word for logs and metrics, such as "half-open".
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half-open"
	case Isolated:
		return "isolated"
	}
	return "unknown"
}

// Outcome is what a run says about the dependency.
type Outcome uint8

const (
	Ignored Outcome = iota // nothing: it was poison, lost, stopped, or never started
	Success                // it is up
	Failure                // it is down, or too slow
)

// Permit is the leave to fetch or to run. It is a plain value; the zero Permit
// is none.
type Permit struct {
	era  uint64
	id   uint64 // of the lease, never used again; 0 if the breaker was closed
	slot uint8  // of the lease
}

// Probe reports whether the permit is one of the few of a half-open breaker.
func (p Permit) Probe() bool { return p.id != 0 }

// lease is a probe that is out. It is free if id is 0, and may be taken over
// from until on.
type lease struct {
	id    uint64
	until time.Time
}

// Breaker guards one dependency. Make one with [New]; its methods may be called
// from any number of goroutines.
type Breaker struct {
	cfg Config

	closed atomic.Uint64 // era while it is closed, else 0: Start then needs no lock

	mu        sync.Mutex
	state     State
	era       uint64    // number of states so far; a permit holds in its own only
	since     time.Time // when state began; zero if the breaker never tripped
	until     time.Time // when Open ends
	reason    string
	openings  int // in a row
	window    window
	leases    [maxProbes]lease
	lastLease uint64
	successes int // of probes in this half-open era
}

// New returns a closed breaker. The error names every fault of c at once, each
// a *[ConfigError].
func New(c Config) (*Breaker, error) {
	c = c.withDefaults()
	if err := c.faults(); err != nil {
		return nil, err
	}
	b := &Breaker{cfg: c, era: 1, window: window{width: max(c.Window/steps, 1)}}
	b.closed.Store(b.era)
	return b, nil
}

// Fetch asks how many of at most limit deliveries may be fetched. If the breaker
// is closed that is limit, and if it is half-open 1 as long as a probe is free.
// Pass the permit to Start, once for each delivery; if none came, give it back
// with Done and Ignored.
//
// If n is 0, next is when to ask again: the end of the open time, or of the
// lease that ends first. A call that returns changed may make it sooner. Next
// is zero if only Restore can change the answer.
func (b *Breaker) Fetch(now time.Time, limit int) (p Permit, n int, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit <= 0 {
		return Permit{}, 0, now
	}
	switch b.advance(now) {
	case Closed:
		return Permit{era: b.era}, limit, time.Time{}
	case HalfOpen:
		if p, ok := b.lend(now, b.cfg.FetchLease); ok {
			return p, 1, time.Time{}
		}
	}
	return Permit{}, 0, b.next(now)
}

// Start asks whether a run may begin, now that there is a delivery to run, and
// returns the permit to report it with. P is the permit that the delivery was
// fetched with, or the zero Permit if the caller did not ask before. If the
// breaker has become half-open since, or the lease of p went to another, a
// probe is taken if one is free.
//
// If ok is false, the delivery must not run now, and p is void.
func (b *Breaker) Start(now time.Time, p Permit) (run Permit, ok bool) {
	if era := b.closed.Load(); era != 0 {
		return Permit{era: era}, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.advance(now) {
	case Closed:
		return Permit{era: b.era}, true
	case HalfOpen:
		if b.holds(p) {
			b.leases[p.slot].until = now.Add(b.cfg.Lease)
			return p, true
		}
		return b.lend(now, b.cfg.Lease)
	}
	return Permit{}, false
}

// Done reports how a run ended, or with Ignored that there was none. Random, a
// number in [0, 1), sets the time that the breaker stays open if this trips it.
// A permit counts once, and only in the state that it was given in; otherwise
// nothing happens.
//
// Changed reports whether Fetch and Start may answer differently now, so that
// who was refused should ask again.
func (b *Breaker) Done(now time.Time, p Permit, o Outcome, random float64) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.advance(now)
	if !b.current(p) {
		return false
	}
	if state == HalfOpen {
		b.probed(now, p, o, random)
		return true
	}
	if o == Ignored {
		return false
	}
	b.window.add(now, o == Failure)
	runs, failures := b.window.runs, b.window.failures
	if o != Failure || runs < int64(b.cfg.MinRuns) || float64(failures) < b.cfg.Ratio*float64(runs) {
		return false
	}
	b.open(now, fmt.Sprintf("%d of %d runs failed within %v", failures, runs, b.cfg.Window), random)
	return true
}

// Trip opens the breaker at once, instead of Done, for a failure that every
// other run would meet too, such as rejected credentials. P is the permit of
// the run that met it; with the zero Permit, the report is from somewhere else,
// and holds in any state. Random is as for Done. Changed reports whether the
// breaker was closed or half-open, and p not outdated.
func (b *Breaker) Trip(now time.Time, p Permit, reason string, random float64) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.advance(now)
	if state != Closed && state != HalfOpen || p != (Permit{}) && !b.current(p) {
		return false
	}
	b.open(now, reason, random)
	return true
}

// Isolate keeps everything from the dependency until Restore, for reason.
// Changed reports whether the breaker was not isolated before.
func (b *Breaker) Isolate(now time.Time, reason string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reason = reason
	if b.state == Isolated {
		return false
	}
	b.enter(Isolated, now)
	return true
}

// Restore ends the open time, or the isolation, at once: the breaker becomes
// half-open and lets probes through. Changed reports whether it was open or
// isolated.
func (b *Breaker) Restore(now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state := b.advance(now); state != Open && state != Isolated {
		return false
	}
	b.enter(HalfOpen, now)
	return true
}

// Snapshot is what a Breaker was doing at one moment.
type Snapshot struct {
	State State
	// Since is when the state began; zero if the breaker never left Closed.
	Since time.Time
	// Reason is why it opened last; empty if it is closed.
	Reason string
	// Next is when Fetch may answer differently though nothing is reported: the
	// end of the open time, or of a lease if all probes are out. Zero if there
	// is no such time.
	Next time.Time
	// Openings is how often it has opened in a row. It starts again once the
	// breaker stays closed for the length of a window.
	Openings int
	// Runs and Failures are the counts of the window. While the breaker is not
	// closed they are those of the last time that it was.
	Runs, Failures int
	// Probes is how many probes are out.
	Probes int
}

// Snapshot returns the state at now, for metrics and people.
func (b *Breaker) Snapshot(now time.Time) Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.advance(now) == Closed {
		b.window.advance(now)
	}
	s := Snapshot{
		State: b.state, Since: b.since, Reason: b.reason, Openings: b.openings,
		Runs: int(b.window.runs), Failures: int(b.window.failures),
	}
	if b.state == HalfOpen {
		for i := range b.leases {
			if !b.free(i, now) {
				s.Probes++
			}
		}
	}
	if b.state == Open || s.Probes >= b.allowed() {
		s.Next = b.next(now)
	}
	return s
}
