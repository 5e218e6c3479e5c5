package retry

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const (
	ms         = time.Millisecond
	lastRandom = 1 - 0x1p-53 // the largest number that a random source returns
)

func TestEnvelopeSchedules(t *testing.T) {
	tests := []struct {
		name    string
		backoff Backoff
		want    []time.Duration
	}{
		{"unset in Do", Policy{}.inline().Backoff,
			[]time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2 * time.Second, 2 * time.Second}},
		{"zero value", Backoff{},
			[]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second,
				64 * time.Second, 128 * time.Second, 256 * time.Second, 512 * time.Second, 15 * time.Minute, 15 * time.Minute}},
		{"multiplier 1.1", Backoff{Base: time.Second, Multiplier: 1.1},
			[]time.Duration{time.Second, 1100 * ms, 1210 * ms, 1331 * ms}},
		{"rounded to the nearest ns", Backoff{Base: 3, Multiplier: 1.3},
			[]time.Duration{3, 4, 5, 7, 9}},
		{"multiplier 1", Backoff{Base: time.Second, Multiplier: 1},
			[]time.Duration{time.Second, time.Second, time.Second}},
		{"linear", Backoff{Base: 2 * time.Second, Cap: 7 * time.Second, Step: 2 * time.Second},
			[]time.Duration{2 * time.Second, 4 * time.Second, 6 * time.Second, 7 * time.Second, 7 * time.Second}},
		{"linear from a base of its own", Backoff{Base: 5 * time.Second, Step: time.Second},
			[]time.Duration{5 * time.Second, 6 * time.Second, 7 * time.Second}},
		{"a step goes before a multiplier", Backoff{Base: time.Second, Step: time.Second, Multiplier: 3},
			[]time.Duration{time.Second, 2 * time.Second, 3 * time.Second}},
		{"fixed", Backoff{Base: 3 * time.Second, Multiplier: 1},
			[]time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second}},
		{"fixed above cap", Backoff{Base: 3 * time.Second, Cap: time.Second, Multiplier: 1},
			[]time.Duration{time.Second}},
		{"unusable fields count as unset", Backoff{Base: -1, Cap: -1, Multiplier: math.NaN(), Step: -1},
			[]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}},
	}
	for _, tt := range tests {
		for i, want := range tt.want {
			if got := tt.backoff.Envelope(i + 1); got != want {
				t.Errorf("%s: Envelope(%d) = %v, want %v", tt.name, i+1, got, want)
			}
		}
	}
}

// Without a cap, delays soon leave the human scale.
func TestEnvelopeNearlyUncapped(t *testing.T) {
	b := Backoff{Base: 100 * ms, Cap: math.MaxInt64}
	for attempt, want := range map[int]time.Duration{
		15:          1638400 * ms,   // 27 min
		16:          3276800 * ms,   // 55 min
		21:          104857600 * ms, // 29 h
		37:          100 * ms << 36, // 218 years: the last that fits
		38:          math.MaxInt64,
		1 << 30:     math.MaxInt64,
		math.MaxInt: math.MaxInt64,
	} {
		if got := b.Envelope(attempt); got != want {
			t.Errorf("Envelope(%d) = %v, want %v", attempt, got, want)
		}
	}
}

func TestEnvelopeAtTheEndsOfInt(t *testing.T) {
	const linear = time.Second + 1<<29
	for want, b := range map[time.Duration]Backoff{
		time.Hour:     {Cap: time.Hour},
		time.Hour + 1: {Cap: time.Hour + 1, Step: math.MaxInt64},
		linear:        {Cap: linear, Step: 1},
		time.Second:   {Cap: time.Hour, Multiplier: 1},
	} {
		b.Base = time.Second
		for _, attempt := range []int{1 << 30, 1<<31 - 1, math.MaxInt - 1, math.MaxInt} {
			if got := b.Envelope(attempt); got != want {
				t.Errorf("%+v: Envelope(%d) = %v, want %v", b, attempt, got, want)
			}
		}
		for _, attempt := range []int{0, -1, math.MinInt} {
			if got := b.Envelope(attempt); got != time.Second {
				t.Errorf("%+v: Envelope(%d) = %v, want that of attempt 1", b, attempt, got)
			}
		}
	}
}

// The comparison of strategies: the least and the most that each one waits
// after attempt k, given the delay before it.
func TestStrategyRanges(t *testing.T) {
	b := Backoff{Base: 100 * ms, Cap: 2 * time.Second}
	const prev = 300 * ms
	tests := []struct {
		name     string
		jitter   Jitter
		floor    time.Duration
		attempt  int
		prev     time.Duration
		min, max time.Duration
	}{
		{"none", NoJitter, 0, 4, prev, 800 * ms, 800 * ms},
		{"none, floor above envelope", NoJitter, time.Second, 4, prev, time.Second, time.Second},
		{"full", FullJitter, 0, 4, prev, 0, 800 * ms},
		{"full, floor", FullJitter, 50 * ms, 4, prev, 50 * ms, 800 * ms},
		{"full, floor above envelope", FullJitter, 500 * ms, 1, prev, 500 * ms, 500 * ms},
		{"full, capped", FullJitter, 0, 40, prev, 0, 2 * time.Second},
		{"equal", EqualJitter, 0, 4, prev, 400 * ms, 800 * ms},
		{"equal, floor below the half", EqualJitter, 300 * ms, 4, prev, 400 * ms, 800 * ms},
		{"equal, floor above the half", EqualJitter, 500 * ms, 4, prev, 500 * ms, 800 * ms},
		{"decorrelated", DecorrelatedJitter, 0, 4, prev, 100 * ms, 900 * ms},
		{"decorrelated, first", DecorrelatedJitter, 0, 1, 0, 100 * ms, 300 * ms},
		{"decorrelated, negative prev", DecorrelatedJitter, 0, 1, -time.Hour, 100 * ms, 300 * ms},
		{"decorrelated, prev below base", DecorrelatedJitter, 0, 1, ms, 100 * ms, 300 * ms},
		{"decorrelated, capped", DecorrelatedJitter, 0, 4, time.Second, 100 * ms, 2 * time.Second},
		{"decorrelated, prev beyond cap", DecorrelatedJitter, 0, 4, math.MaxInt64, 100 * ms, 2 * time.Second},
		{"decorrelated, floor above base", DecorrelatedJitter, 150 * ms, 1, 0, 150 * ms, 450 * ms},
		{"floor above cap", FullJitter, time.Hour, 4, prev, 2 * time.Second, 2 * time.Second},
		{"unknown strategy is full", Jitter(99), 0, 4, prev, 0, 800 * ms},
	}
	for _, tt := range tests {
		b.Jitter, b.Floor = tt.jitter, tt.floor
		if got := b.Delay(tt.attempt, tt.prev, 0); got != tt.min {
			t.Errorf("%s: shortest delay %v, want %v", tt.name, got, tt.min)
		}
		got := b.Delay(tt.attempt, tt.prev, lastRandom)
		if got > tt.max || got < tt.max-1 { // the range is half open
			t.Errorf("%s: longest delay %v, want %v", tt.name, got, tt.max)
		}
	}
}

func TestDelayMovesRandomIntoRange(t *testing.T) {
	b := Backoff{Base: time.Second}
	tests := []struct{ random, want float64 }{
		{math.NaN(), 0}, {math.Inf(-1), 0}, {-0.5, 0}, {0, 0}, {0.5, 0.5},
		{lastRandom, lastRandom}, {1, lastRandom}, {7, lastRandom}, {math.Inf(1), lastRandom},
	}
	for _, tt := range tests {
		if got, want := b.Delay(1, 0, tt.random), b.Delay(1, 0, tt.want); got != want {
			t.Errorf("Delay with random %v = %v, want %v as with %v", tt.random, got, want, tt.want)
		}
	}
}

// generator returns a source of random numbers and reports its seed if the
// test fails.
func generator(t testing.TB, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}
