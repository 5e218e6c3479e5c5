package breaker

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// State is what a Breaker does with the next call.
type State uint8

const (
	Closed   State = iota // it may start, and so may any number
	Open                  // it is refused until Snapshot.Next, or until another ends
	HalfOpen              // it may start, but not any number
	Isolated              // it is refused until Restore
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

// Config is how a [Breaker] is made. The zero Config suits every dependency.
type Config struct {
	// Random returns numbers in [0, 1), from any number of goroutines. They spread
	// the calls of a fleet. Nil means [rand.Float64].
	Random func() float64
}

// Breaker guards one dependency. Make one with [New]. Its methods may be called
// from any number of goroutines.
type Breaker struct {
	limiter   *flow.Limiter
	anonymous atomic.Uint64 // reports of no message
}

// New returns a closed breaker.
func New(c Config) *Breaker {
	if c.Random == nil {
		c.Random = rand.Float64
	}
	return &Breaker{limiter: flow.Unbounded(c.Random)}
}

// Start reports whether a call may start now, and counts it if so. Each call that
// starts must be reported to [Breaker.Done] once. If it may not start, next is when
// to ask again; it may start sooner if another ends. The zero time means that only
// [Breaker.Restore] lets it start.
func (b *Breaker) Start(now time.Time) (ok bool, next time.Time) { return b.limiter.Start(now) }

// Done takes in how a call ended that began at began, the time given to Start. Of
// identifies the message that it was for, such as a hash of its ID; with 0 it was
// for another message each time. [flow.Neutral] says nothing about the dependency,
// as for a call that was cancelled.
func (b *Breaker) Done(now, began time.Time, of uint64, o flow.Outcome) {
	if of == 0 {
		of = -b.anonymous.Add(1)
	}
	b.limiter.Done(now, flow.End{Began: began, Who: of, Outcome: o})
}

// Isolate refuses every call until [Breaker.Restore]. Reason is for logs.
func (b *Breaker) Isolate(reason string) {
	b.limiter.Adjust(time.Time{}, flow.Change{Pause: cmp.Or(reason, "by hand")})
}

// Restore ends an isolation. Calls come back slowly, as after an outage.
func (b *Breaker) Restore(now time.Time) { b.limiter.Adjust(now, flow.Change{Resume: true}) }

// Snapshot is what a Breaker knows at one time.
type Snapshot struct {
	State State
	// Reason is why calls are refused; empty if the breaker is closed.
	Reason string
	// Next is when a call may start though no other ends. It is zero if a call may
	// start now, or only after Restore.
	Next time.Time
	// Wait is for how long a refused call best waits, so that callers do not all
	// ask for each probe: half of the time for which nothing has succeeded, 1 s to
	// 30 s, and at least until Next. Zero if a call may start now.
	Wait time.Duration
	// Limit is how many calls may go at once. Below 1, single calls start at a
	// distance. It is +Inf while the breaker is closed.
	Limit float64
	// Messages is how many different messages the breaker knows, poison left out,
	// and Failures how many of them failed last.
	Messages, Failures int
}

// Between these times a refused call best waits.
const (
	shortestWait = time.Second
	longestWait  = 30 * time.Second
)

// Snapshot returns what is known at now, for metrics and people.
func (b *Breaker) Snapshot(now time.Time) Snapshot {
	known := b.limiter.Adjust(now, flow.Change{})
	s := Snapshot{Next: known.Next, Limit: known.Limit, Messages: known.Sampled, Failures: known.Failing}
	switch {
	case known.Paused != "":
		s.State, s.Reason = Isolated, known.Paused
	case known.Full():
		s.State, s.Limit = Closed, math.Inf(1)
		return s
	case known.Failing == 0:
		s.State, s.Reason = HalfOpen, "it serves again, and calls come back slowly"
	default:
		s.State, s.Reason = HalfOpen, fmt.Sprintf("%d of the last %d messages failed", known.Failing, known.Sampled)
	}
	if !known.Held {
		return s
	}
	if s.State == HalfOpen {
		s.State = Open
	}
	s.Wait = max(known.Next.Sub(now), min(max(known.Silence/2, shortestWait), longestWait))
	return s
}
