package breaker

import (
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
	Severe                 // a Failure that counts twice in a streak: a run that timed out, or whose credentials were rejected
)

// Permit is the leave to run. It is a plain value; the zero Permit is none.
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

	closed  atomic.Uint64 // era while it is closed, else 0: Start then needs no lock
	healthy atomic.Uint64 // era while a success changes nothing, else 0: Done then needs no lock

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
// a *consumer.ConfigError.
func New(c Config) (*Breaker, error) {
	c = c.withDefaults()
	if err := c.faults(); err != nil {
		return nil, err
	}
	b := &Breaker{cfg: c, era: 1, window: window{size: c.Window}}
	b.closed.Store(b.era)
	return b, nil
}

// Start asks whether a run may begin, and returns the permit to report it with.
// A half-open breaker grants a few probes at a time, each a lease.
func (b *Breaker) Start(now time.Time) (p Permit, ok bool) {
	if era := b.closed.Load(); era != 0 {
		return Permit{era: era}, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.advance(now) {
	case Closed:
		return Permit{era: b.era}, true
	case HalfOpen:
		return b.lend(now)
	}
	return Permit{}, false
}

// Closed reports whether everything passes.
func (b *Breaker) Closed() bool { return b.closed.Load() != 0 }

// Allows reports whether Start would grant a run now, without taking a permit.
// If it would not, next is when to ask again: the end of the open time, or of
// the lease that ends first. A call that returns changed may make it sooner.
// Next is zero if only Restore can change the answer, or if ok.
func (b *Breaker) Allows(now time.Time) (ok bool, next time.Time) {
	if b.closed.Load() != 0 {
		return true, time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if state := b.advance(now); state == Closed || state == HalfOpen && b.spare(now) >= 0 {
		return true, time.Time{}
	}
	return false, b.next(now)
}

// Done reports how a run ended, or with Ignored that there was none. Of
// identifies the message, such as a hash of its ID, so that one which fails
// again and again counts as one; with 0, each report is about another message.
// Random, a number in [0, 1), sets the time that the breaker stays open if this
// opens it. A permit counts once, and only in the state that it was given in;
// otherwise nothing happens.
//
// Changed reports whether Start may answer differently now, so that who was
// refused should ask again.
func (b *Breaker) Done(now time.Time, p Permit, of uint64, o Outcome, random float64) (changed bool) {
	if !p.Probe() && (o == Ignored || o == Success && b.healthy.Load() == p.era) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.advance(now)
	if !b.current(p) {
		return false
	}
	if state == HalfOpen {
		b.probed(now, p, of, o, random)
		return true
	}
	return b.ran(now, of, o, random)
}

// NotBefore keeps an open breaker open until the given time at least, for a
// dependency that said when to come back. Changed reports whether that is later
// than it would have been; in other states nothing happens. The breaker sets no
// limit to it.
func (b *Breaker) NotBefore(now, until time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.advance(now) != Open || !until.After(b.until) {
		return false
	}
	b.until = until
	return true
}

// Trip opens the breaker at once, by hand or because the caller knows what the
// outcomes of runs cannot tell. Random is as for Done. Changed reports whether
// the breaker was closed or half-open.
func (b *Breaker) Trip(now time.Time, reason string, random float64) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state := b.advance(now); state != Closed && state != HalfOpen {
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
	switch b.advance(now) {
	case Open:
	case Isolated:
		b.reason = "" // it was that of the isolation
	default:
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
	// Reason is why it opened last, or is isolated; empty if it is closed.
	Reason string
	// Next is when Start may answer differently though nothing is reported: the
	// end of the open time, or of a lease if all probes are out. Zero if there
	// is no such time.
	Next time.Time
	// Openings is how often it has opened in a row. The row ends once the breaker
	// stays closed for MinOpen; the next opening is then the first.
	Openings int
	// Messages is how many different messages are known, at most Config.Window,
	// and Failures how many of them failed last. While the breaker is not closed
	// these and Streak are those of the last time that it was.
	Messages, Failures int
	// Streak is the failed runs since the last success, Severe ones counted
	// twice.
	Streak int
	// Probes is how many probes are out.
	Probes int
}

// Snapshot returns the state at now, for metrics and people.
func (b *Breaker) Snapshot(now time.Time) Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	s := Snapshot{
		State: b.state, Since: b.since, Reason: b.reason, Openings: b.openings,
		Messages: len(b.window.entries), Failures: b.window.failures, Streak: b.window.streak(),
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
