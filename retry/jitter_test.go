package retry

import (
	"math"
	"slices"
	"testing"
	"time"
)

const draws = 20000

// requireEven fails the test unless the samples, numbers in [0, 1), look as if
// drawn evenly: by their mean and ends, by Kolmogorov and Smirnov's distance,
// and by chi-square over 64 bins. The limits let one in a thousand true
// samples fail; with fixed seeds that is decided once.
func requireEven(t *testing.T, samples []float64) {
	t.Helper()
	n := float64(len(samples))
	slices.Sort(samples)
	least, most := samples[0], samples[len(samples)-1]
	if least < 0 || least > 10/n || most > 1 || most < 1-10/n {
		t.Errorf("samples reach from %v to %v, want all of 0 to 1", least, most)
	}
	var sum, distance float64
	bins := make([]float64, 64)
	for i, s := range samples {
		sum += s
		distance = max(distance, math.Abs(s-float64(i)/n), math.Abs(s-float64(i+1)/n))
		bins[min(int(s*64), 63)]++
	}
	if mean := sum / n; math.Abs(mean-0.5) > 3.3*math.Sqrt(1/(12*n)) {
		t.Errorf("mean %v, want 0.5", mean)
	}
	if k := distance * math.Sqrt(n); k > 1.95 {
		t.Errorf("Kolmogorov-Smirnov statistic %.2f, want at most 1.95", k)
	}
	var chi float64
	for _, seen := range bins {
		chi += (seen - n/64) * (seen - n/64) / (n / 64)
	}
	if chi > 103.4 { // 63 degrees of freedom
		t.Errorf("chi-square %.1f, want at most 103.4", chi)
	}
}

// drawEvenly calls delay with random numbers, and demands that the delays are drawn
// evenly from low to high.
func drawEvenly(t *testing.T, seed uint64, low, high time.Duration, delay func(random float64) time.Duration) {
	t.Helper()
	rng := generator(t, seed)
	samples := make([]float64, draws)
	for i := range samples {
		samples[i] = float64(delay(rng.Float64())-low) / float64(high-low)
	}
	requireEven(t, samples)
}

func TestJitterIsEven(t *testing.T) {
	const env = 12800 * ms
	tests := []struct {
		name      string
		backoff   Backoff
		low, high time.Duration
	}{
		{"full", Backoff{Base: 100 * ms}, 0, env},
		{"full, floor", Backoff{Base: 100 * ms, Floor: 5 * time.Second}, 5 * time.Second, env},
		{"full, capped", Backoff{Base: 100 * ms, Cap: 7 * time.Second}, 0, 7 * time.Second},
		{"equal", Backoff{Base: 100 * ms, Jitter: EqualJitter}, env / 2, env},
		{"equal, floor", Backoff{Base: 100 * ms, Floor: 9 * time.Second, Jitter: EqualJitter}, 9 * time.Second, env},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			drawEvenly(t, uint64(10+i), tt.low, tt.high, func(random float64) time.Duration { return tt.backoff.Delay(8, time.Hour, random) })
		})
	}
}

// A decorrelated delay depends on the one before, so each is measured by its
// own range; the mean then follows from the mean of the delays before.
func TestDecorrelatedJitterIsEvenInEachStep(t *testing.T) {
	b := Backoff{Base: 100 * ms, Cap: 30 * time.Second, Jitter: DecorrelatedJitter}
	rng := generator(t, 20)
	samples := make([]float64, 0, draws)
	var delays, middles float64
	atCap := 0
	for len(samples) < draws {
		var prev time.Duration
		for attempt := 1; attempt <= 10; attempt++ {
			high := min(b.Cap, 3*max(prev, b.Base))
			prev = b.Delay(attempt, prev, rng.Float64())
			samples = append(samples, float64(prev-b.Base)/float64(high-b.Base))
			delays += float64(prev)
			middles += float64(b.Base+high) / 2
			if prev == b.Cap {
				atCap++
			}
		}
	}
	if math.Abs(delays/middles-1) > 0.02 {
		t.Errorf("mean delay is %.3f of the mean of the ranges' middles, want 1", delays/middles)
	}
	if atCap > 0 {
		t.Errorf("%d delays fall on the cap itself: lockstep", atCap)
	}
	requireEven(t, samples)
}

// A thousand clients that failed in the same instant: how many return within
// the fullest 50 ms. This is what jitter is for.
func TestJitterFlattensTheHerd(t *testing.T) {
	const clients = 1000
	fullest := func(j Jitter) int {
		rng := generator(t, 30)
		b := Backoff{Base: 100 * ms, Jitter: j}
		bins := make(map[time.Duration]int)
		for range clients {
			bins[b.Delay(6, time.Second, rng.Float64())/(50*ms)]++
		}
		most := 0
		for _, n := range bins {
			most = max(most, n)
		}
		return most
	}
	none, equal, full, decorrelated := fullest(NoJitter), fullest(EqualJitter), fullest(FullJitter), fullest(DecorrelatedJitter)
	if none != clients {
		t.Errorf("without jitter %d of %d clients return together, want all", none, clients)
	}
	// 3.2 s hold 64 bins: about 16 clients each, twice that in half the range.
	if full > 40 || decorrelated > 40 || equal > 60 || equal <= full {
		t.Errorf("fullest 50ms: full %d, decorrelated %d, equal %d of %d clients", full, decorrelated, equal, clients)
	}
}

// The jitter on top of a hint must be even also among those messages whose
// backoff was too short to matter, although both come from one number.
func TestHintJitterIsIndependentOfBackoff(t *testing.T) {
	const hint = 10 * time.Second
	rng := generator(t, 40)
	samples := make([]float64, 0, draws)
	for len(samples) < draws {
		random := rng.Float64()
		if (Backoff{}).Delay(5, 0, random) >= hint { // of 0 … 16 s
			continue
		}
		d := Policy{}.Decide(failure("throttled", 5, asks(hint)), random)
		samples = append(samples, float64(d.Delay-hint)/float64(hint/10))
	}
	requireEven(t, samples)
}

// A hint beyond MaxRetryAfter is cut, but must not gather all messages on it.
func TestCutHintKeepsItsJitter(t *testing.T) {
	drawEvenly(t, 41, 15*time.Minute-5*time.Second, 15*time.Minute, func(random float64) time.Duration {
		return Policy{}.Decide(failure("throttled", 1, asks(time.Hour)), random).Delay
	})
}

func TestEnvironmentDelayIsEven(t *testing.T) {
	drawEvenly(t, 42, 30*time.Second, time.Minute, func(random float64) time.Duration {
		return Policy{}.Decide(failure("environment", 1), random).Delay
	})
}
