package retry

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

func FuzzDecide(f *testing.F) {
	f.Add("transient", 1, 0, 0, int64(0), int64(0), int64(0), int64(0), 0.5, uint64(0))
	f.Add("throttled", 9, 5, 0, int64(time.Second), int64(time.Second), int64(30*time.Second), int64(time.Hour), 0.0, uint64(1))
	f.Add("environment", math.MaxInt, math.MaxInt, math.MaxInt, int64(-1), int64(-1), int64(math.MaxInt64), int64(math.MaxInt64), 1.0, uint64(2))
	f.Add("poison", math.MinInt, math.MinInt, 2, int64(math.MinInt64), int64(math.MinInt64), int64(math.MinInt64), int64(math.MinInt64), math.NaN(), uint64(3))
	f.Add("lost", 1, 0, 0, int64(0), int64(0), int64(0), int64(0), -1.0, uint64(4))
	f.Add("shutdown", 1, 0, 0, int64(0), int64(0), int64(0), int64(0), math.Inf(1), uint64(5))
	f.Add("", 1, 0, -1, int64(0), int64(0), int64(0), int64(0), 0.9, uint64(6))
	rng := generator(f, 51)
	for _, class := range []string{"poison", "transient", "throttled", "environment", "shutdown", "lost", "skipped", "unknown", "", "no such class"} {
		for range 100 {
			f.Add(class, int(rng.Uint64()), int(rng.Uint64()), int(rng.Uint64()), rng.Int64(), rng.Int64(), rng.Int64(), rng.Int64(), rng.NormFloat64(), rng.Uint64())
			f.Add(class, rng.IntN(12), rng.IntN(7), rng.IntN(9), int64(0), rng.Int64N(1e12), rng.Int64N(1e12), int64(0), rng.Float64(), rng.Uint64())
		}
	}
	f.Fuzz(func(t *testing.T, class string, attempt, throttles, maxAttempts int, ran, prev, hint, elapsed int64, random float64, policySeed uint64) {
		p := anyPolicy(rand.New(rand.NewPCG(policySeed, 0)))
		v := classify.Verdict{Class: class, RetryAfter: time.Duration(hint), MaxAttempts: maxAttempts}
		checkDecision(t, p, FailedRun{
			Attempt: attempt, Throttles: throttles, Ran: time.Duration(ran), PrevDelay: time.Duration(prev),
			FirstFailedAt: noon, Now: noon.Add(time.Duration(elapsed)), Verdict: v,
		}, random)

		if v.Class == classify.ClassEnvironment {
			return // not counted: MaxAge ends it, not a number of runs
		}
		full := p.withDefaults()
		m := newMessage(p)
		for range full.MaxAttempts + max(full.FreeThrottles, 0) {
			if d := m.fail(v, max(time.Duration(ran)%time.Minute, 0), random); !d.Retry {
				return
			}
		}
		t.Fatalf("policy %+v\nverdict %+v\nretries for ever", p, v)
	})
}

func FuzzBackoff(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), 0.0, int64(0), uint8(0), 1, int64(0), 0.5)
	f.Add(int64(time.Second), int64(time.Hour), int64(ms), 1.5, int64(ms), uint8(1), 1<<30, int64(time.Minute), lastRandom)
	f.Add(int64(1), int64(math.MaxInt64), int64(0), 2.0, int64(0), uint8(2), math.MaxInt, int64(math.MaxInt64), 1.0)
	f.Add(int64(math.MaxInt64), int64(1), int64(math.MaxInt64), math.Inf(1), int64(math.MaxInt64), uint8(3), math.MinInt, int64(-1), math.NaN())
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), math.MaxFloat64, int64(-1), uint8(9), 2, int64(1), -1.0)
	rng := generator(f, 1)
	for range 1000 {
		jitter, attempt := uint8(rng.IntN(4)), 1+rng.IntN(70)
		base := 1 + rng.Int64N(int64(time.Minute))
		limit := base + rng.Int64N(int64(time.Hour))
		f.Add(base, limit, rng.Int64N(limit), 1+rng.ExpFloat64(), int64(0), jitter, attempt, rng.Int64(), rng.Float64())
		f.Add(base, limit, int64(0), 0.0, 1+rng.Int64N(int64(time.Minute)), jitter, attempt, rng.Int64(), rng.Float64())
	}
	f.Fuzz(func(t *testing.T, base, limit, floor int64, multiplier float64, step int64, jitter uint8, attempt int, prev int64, random float64) {
		b := Backoff{
			Base: time.Duration(base), Cap: time.Duration(limit), Floor: time.Duration(floor),
			Multiplier: multiplier, Step: time.Duration(step), Jitter: Jitter(jitter),
		}
		full := b.withDefaults()
		d := b.Delay(attempt, time.Duration(prev), random)
		if d < full.Floor || d > full.Cap {
			t.Fatalf("%+v: Delay(%d, %d, %v) = %d", b, attempt, prev, random, d)
		}
		if less := b.Delay(attempt, time.Duration(prev), random/2); less > d {
			t.Fatalf("%+v: Delay(%d, %d, …) is %v at %v but %v at half of it", b, attempt, prev, d, random, less)
		}
		env := b.Envelope(attempt)
		if env < 1 || env > full.Cap {
			t.Fatalf("%+v: Envelope(%d) = %d", b, attempt, env)
		}
		// Nearer to 1, rounding can be larger than the growth.
		steep := full.Multiplier == 1 || full.Multiplier > 1.000001
		if next := b.Envelope(max(attempt, 1)/2 + 1); steep && attempt > 1 && next > env {
			t.Fatalf("%+v: envelope shrinks from %d at attempt %d to %d at %d", b, next, attempt/2+1, env, attempt)
		}
	})
}
