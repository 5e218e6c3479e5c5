package retry

import (
	"math"
	"time"
)

const (
	defaultBase       = time.Second
	defaultCap        = 15 * time.Minute
	defaultMultiplier = 2
)

// Jitter is how a [Backoff] picks a delay inside its envelope. It keeps
// messages that failed together from coming back together.
type Jitter uint8

const (
	FullJitter         Jitter = iota // anywhere in the envelope: spreads best; the default
	EqualJitter                      // the upper half of the envelope: never a very short delay
	DecorrelatedJitter               // between Base and three times the previous delay; Multiplier and Step are ignored
	NoJitter                         // exactly the envelope: messages that failed together return together
)

// Backoff says how long to wait before each further attempt. It is a plain
// value without state: the same arguments give the same delay, and one value
// serves any number of messages and goroutines.
//
// Its zero value waits 1 s, 2 s, 4 s … up to 15 minutes, with full jitter. A
// field that [Policy.Validate] refuses counts as unset.
//
// The strategies are those of "Exponential Backoff And Jitter" (AWS
// Architecture Blog, 2015), except that limits are applied to the range of a
// draw and not to its result. Clamping the result would gather the draws on
// the limit, and so bring back the lockstep that jitter is there to break.
type Backoff struct {
	// Base is the envelope of attempt 1. Zero means 1 s.
	Base time.Duration
	// Cap is the longest delay. Zero means 15 minutes.
	Cap time.Duration
	// Floor is the shortest delay, at most Cap. Zero means none.
	Floor time.Duration
	// Multiplier is what the envelope of each attempt is multiplied by for the
	// next, 1 or more; with 1 it stays the same. Zero means 2.
	Multiplier float64
	// Step widens the envelope by the same time for each attempt, instead of
	// Multiplier. Zero means not.
	Step time.Duration
	// Jitter draws the delay. The zero value is FullJitter.
	Jitter Jitter
}

// Envelope returns the widest delay after attempt, before jitter and without
// regard to Floor. Attempts count runs from 1, so that Envelope(1) is the wait
// between the first run and the second; attempts below 1 count as 1. It never
// exceeds Cap, at any attempt.
func (b Backoff) Envelope(attempt int) time.Duration {
	return b.withDefaults().envelope(attempt)
}

// Delay returns how long to wait after attempt. It is pure: random, a number
// in [0, 1), is the only source of chance, and a value outside that range
// (NaN too) is moved to the nearest end of it. The delay before this one,
// prev, matters to DecorrelatedJitter only; there, anything shorter than Base
// counts as Base.
//
// The delay is drawn evenly from
//
//	FullJitter          Floor … envelope
//	EqualJitter         envelope/2 … envelope
//	DecorrelatedJitter  Base … min(Cap, 3×prev)
//	NoJitter            the envelope itself
//
// and is never below Floor nor above Cap.
func (b Backoff) Delay(attempt int, prev time.Duration, random float64) time.Duration {
	b = b.withDefaults()
	low, high := b.bounds(attempt, prev)
	return low + share(high-low, random)
}

func (b Backoff) bounds(attempt int, prev time.Duration) (low, high time.Duration) {
	high = b.envelope(attempt)
	switch b.Jitter {
	case EqualJitter:
		low = high / 2
	case DecorrelatedJitter:
		low = min(max(b.Base, b.Floor), b.Cap)
		high = b.Cap
		if prev = max(prev, low); prev < b.Cap/3 {
			high = 3 * prev
		}
	case NoJitter:
		low = high
	}
	low = max(low, b.Floor)
	return low, max(low, high)
}

func (b Backoff) envelope(attempt int) time.Duration {
	further := max(attempt, 1) - 1
	switch {
	case b.Base >= b.Cap:
		return b.Cap
	case b.Step > 0:
		if int64(further) > int64((b.Cap-b.Base)/b.Step) {
			return b.Cap
		}
		return b.Base + b.Step*time.Duration(further)
	}
	env := math.Round(float64(b.Base) * math.Pow(b.Multiplier, float64(further)))
	if env >= float64(b.Cap) {
		return b.Cap
	}
	return time.Duration(env)
}

func (b Backoff) withDefaults() Backoff {
	if b.Base <= 0 {
		b.Base = defaultBase
	}
	if b.Cap <= 0 {
		b.Cap = defaultCap
	}
	if !validMultiplier(b.Multiplier) {
		b.Multiplier = defaultMultiplier
	}
	b.Floor = min(max(b.Floor, 0), b.Cap)
	return b
}

func validMultiplier(m float64) bool { return m >= 1 && !math.IsInf(m, 1) }

// share returns the part of span, which is not negative, that random selects.
func share(span time.Duration, random float64) time.Duration {
	// Above 2^53 ns a span is rounded on its way through float64.
	return min(time.Duration(clampUnit(random)*float64(span)), span)
}

// clampUnit moves random into [0, 1).
func clampUnit(random float64) float64 {
	switch {
	case random >= 1:
		return 1 - 0x1p-53
	case random > 0:
		return random
	default: // negative or NaN
		return 0
	}
}
