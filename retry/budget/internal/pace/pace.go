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

// Line is what there is of retries that wait for a token.
type Line struct {
	Waiting float64
	Age     time.Duration // for which there has been a line
	Rate    float64       // tokens a second, lately
	Ceiling float64       // retries a second at most
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
