// Package pace has the arithmetic that a budget of one process and one of a
// fleet have in common.
package pace

import (
	"math"
	"time"
)

const (
	// Span is how long deliveries are counted for a rate.
	Span = 10 * time.Second
	// Saved is how much income is saved up.
	Saved = 5 * time.Second
	// HalfLife is the time in which the peak rate of deliveries falls by half.
	HalfLife = 5 * time.Minute
	// LeastPeak is the lowest peak, in multiples of the floor.
	LeastPeak = 10
	// Longest is the longest wait.
	Longest = 15 * time.Minute

	shortest = 250 * time.Millisecond
)

// How a Limit judges.
const (
	Sample  = 12      // retries over which the share of successes is averaged
	Failing = 0.5     // share of successes below which the limit falls
	Passing = 0.7     // share above which it rises again
	Smooth  = 2.0 / 3 // part of the rate of successes that a second keeps
	Forget  = 0.99    // part of the best rate that a second keeps
	Quiet   = 0.5     // best rate below which a success is a new beginning
	Trial   = 20      // seconds after a rise in which a failure is its fault
	Backoff = 3       // by which the limit is divided then
	Growth  = 1.01    // by which it grows again in a second
)

// Rates are what a budget gives, each in retries a second.
type Rates struct {
	Share, Floor float64
	Peak         float64 // deliveries a second, the highest lately
}

// Ceiling is the highest rate at which retries may start.
func (r Rates) Ceiling() float64 { return r.Peak + r.Floor }

// Capacity is how many tokens are saved at most.
func (r Rates) Capacity() float64 {
	return max(1, (r.Share*r.Peak+r.Floor)*Saved.Seconds())
}

// left is what a second leaves of a peak.
var left = math.Exp2(-1 / HalfLife.Seconds())

// Fade returns what is left of the peak after elapsed, but not less than the
// lowest peak.
func (r Rates) Fade(elapsed time.Duration) float64 {
	part := left
	if elapsed != time.Second {
		part = math.Pow(left, elapsed.Seconds())
	}
	return max(r.Peak*part, LeastPeak*r.Floor)
}

// Limit is how many retries may start in a second: no more than the budget earns
// while most of them fail, and otherwise up to the ceiling. A limit at which they
// began to fail soon after it rose is divided, and then grows slowly, so that a
// dependency without room to spare is not kept down by retries.
//
// That they fail is seen in two ways together: few succeed of those that start,
// and fewer succeed than did. So handlers that take long, whose successes come
// later than more retries start, are not taken for failures.
type Limit struct {
	Now    float64
	known  float64 // the limit that does no harm; infinite if none is known to do any
	failed bool
	share  float64 // of the latest retries that succeeded
	rate   float64 // successes a second, lately
	best   float64 // the highest rate lately
	rose   int64   // the second in which retries began to succeed
}

// NewLimit returns a limit that is as high as it may be.
func NewLimit(highest float64) Limit {
	return Limit{Now: highest, share: 1, known: math.Inf(1), rose: -Trial}
}

// Adapt takes in a second, in which so many retries started and so many
// succeeded. It reports whether retries have begun to fail or to succeed.
func (l *Limit) Adapt(second int64, started, succeeded, lowest, highest float64) (changed bool) {
	l.observe(second, started, succeeded)
	failed := l.failed
	switch {
	case !failed && l.share < Failing && l.rate <= l.best/2:
		l.failed = true
		if second-l.rose < Trial || !math.IsInf(l.known, 1) {
			l.known = l.Now / Backoff
		}
	case failed && l.share > Passing:
		l.failed, l.rose, l.best = false, second, l.rate
	case !failed:
		l.known *= Growth
	}
	if l.known = max(l.known, lowest); l.known > highest {
		l.known = math.Inf(1)
	}
	l.Now = min(l.known, highest)
	if l.failed {
		l.Now = min(lowest, highest)
	}
	return l.failed != failed
}

func (l *Limit) observe(second int64, started, succeeded float64) {
	if n := max(started, succeeded); n > 0 {
		l.share += (succeeded/n - l.share) * (1 - math.Exp(-n/Sample))
	}
	if succeeded > 0 && l.best < Quiet {
		l.rose = second
	}
	l.rate += (succeeded - l.rate) * (1 - Smooth)
	l.best = max(l.best*Forget, l.rate)
}

// Best returns the limit while retries succeed.
func (l *Limit) Best(highest float64) float64 { return min(l.known, highest) }

// Line is what there is of retries that wait for a token.
type Line struct {
	Waiting float64
	Age     time.Duration // for which there has been a line
	Rate    float64       // tokens a second, lately
	Ceiling float64       // tokens a second at most
}

// Wait returns when the next retry is to ask again: at random between a half
// and all of the time that the line takes at its rate. That is no longer than
// most, nor than half the line's age unless the line is too long for that at
// its highest rate.
func (l Line) Wait(most time.Duration, random float64) time.Duration {
	if !(random >= 0 && random < 1) {
		random = 0
	}
	ahead := l.Waiting + 1
	wait := min(ahead/l.Rate, max(ahead/l.Ceiling, l.Age.Seconds()/2))
	wait = min(max(wait, shortest.Seconds()), Longest.Seconds(), most.Seconds())
	return min(max(time.Duration(wait*(1+random)/2*float64(time.Second)), 1), most)
}
