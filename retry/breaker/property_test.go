package breaker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// walk takes a breaker through random calls, and checks each answer.
type walk struct {
	*testing.T
	b    *Breaker
	now  time.Time
	held []Permit
}

// step does one call; op picks it, and d moves the clock.
func (w *walk) step(op, outcome byte, random float64, d time.Duration) {
	before := w.b.Snapshot(w.now)
	var changed, mayChange bool
	switch op % 8 {
	case 0, 1:
		p, n, next := w.b.Fetch(w.now, 8)
		w.checkFetch(p, n, next)
		if n > 0 {
			w.held = append(w.held, p)
		}
	case 2, 3:
		p := w.pick(op)
		run, ok := w.b.Start(w.now, p)
		if ok != (run != Permit{}) || ok && before.State != Closed && before.State != HalfOpen {
			w.Fatalf("Start = %+v, %v in %v", run, ok, before.State)
		}
		if ok {
			w.held = append(w.held, run)
		}
	case 4:
		changed, mayChange = w.b.Done(w.now, w.pick(op), Outcome(outcome%3), random), true
	case 5:
		changed, mayChange = w.b.Trip(w.now, w.pick(op), "test", random), true
	case 6:
		if outcome%4 == 0 {
			changed, mayChange = w.b.Isolate(w.now, "test"), true
		} else {
			changed, mayChange = w.b.Restore(w.now), true
		}
	case 7:
		w.now = w.now.Add(d)
		return
	}
	after := w.b.Snapshot(w.now)
	if after.State != before.State && !(mayChange && changed) {
		w.Fatalf("op %d led from %v to %v, but changed is %v", op%8, before.State, after.State, changed)
	}
	w.check(after)
}

func (w *walk) pick(op byte) Permit {
	if len(w.held) == 0 {
		return Permit{}
	}
	return w.held[int(op/8)%len(w.held)]
}

func (w *walk) checkFetch(p Permit, n int, next time.Time) {
	state := w.b.Snapshot(w.now).State
	want := map[State]int{Closed: 8, HalfOpen: 1}[state]
	if n != 0 && n != want || n == 0 && state == Closed {
		w.Fatalf("%d granted in %v", n, state)
	}
	if n > 0 && (p == Permit{} || !next.IsZero()) || n == 0 && p != (Permit{}) {
		w.Fatalf("Fetch = %+v, %d, %v", p, n, next)
	}
	if n == 0 && next.IsZero() != (state == Isolated) || n == 0 && state != Isolated && !next.After(w.now) {
		w.Fatalf("%v: nothing granted at %v, but ask again at %v", state, w.now, next)
	}
}

func (w *walk) check(s Snapshot) {
	if s.Failures < 0 || s.Failures > s.Runs || s.Probes < 0 || s.Probes > maxProbes || s.Openings < 0 {
		w.Fatalf("snapshot %+v", s)
	}
	if (s.State == Open) && (!s.Next.After(w.now) || s.Next.Sub(w.now) > w.b.cfg.MaxOpen) {
		w.Fatalf("open until %v at %v", s.Next, w.now)
	}
}

// recovers checks that whatever happened, a dependency that is up gets back to
// Closed, though every permit that is out is lost.
func (w *walk) recovers() {
	w.b.Restore(w.now)
	for range 10 * w.b.cfg.Successes {
		p, n, next := w.b.Fetch(w.now, 1)
		if n == 0 {
			w.now = next
			continue
		}
		w.b.Done(w.now, p, Success, 0)
		if w.b.Snapshot(w.now).State == Closed {
			return
		}
	}
	w.Fatalf("the breaker is jammed: %+v", w.b.Snapshot(w.now))
}

func TestRandomWalks(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := generator(t, seed)
			w := &walk{T: t, b: newBreaker(t, Config{MinRuns: 1 + rng.IntN(10), Probes: 1 + rng.IntN(16), Successes: 1 + rng.IntN(20)}), now: noon}
			for range 2000 {
				w.step(byte(rng.IntN(256)), byte(rng.IntN(256)), rng.Float64(), randomStep(rng))
				if len(w.held) > 20 {
					w.held = w.held[10:]
				}
			}
			w.recovers()
		})
	}
}

func randomStep(rng *rand.Rand) time.Duration {
	d := time.Duration(rng.Int64N(int64(10 * time.Second)))
	switch rng.IntN(20) {
	case 0:
		return -d
	case 1:
		return 100 * d
	}
	return d
}

// At no time are more leases held than probes are allowed.
func TestLeasesAreBounded(t *testing.T) {
	rng := generator(t, 5)
	b := newBreaker(t, Config{Probes: 3, Successes: 1000})
	b.Trip(noon, Permit{}, "test", 0)
	b.Restore(noon)
	now := noon
	ends := map[Permit]time.Time{}
	for range 20_000 {
		now = now.Add(time.Duration(rng.Int64N(int64(5 * time.Second))))
		for p, end := range ends {
			if !now.Before(end) {
				delete(ends, p)
			}
		}
		if p, ok := b.Start(now, Permit{}); ok {
			ends[p] = now.Add(time.Minute)
		}
		if len(ends) > 3 {
			t.Fatalf("%d leases held at once, want at most 3", len(ends))
		}
		for p := range ends {
			if rng.IntN(20) == 0 {
				b.Done(now, p, Ignored, 0)
				delete(ends, p)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	b := newBreaker(t, Config{})
	var wg sync.WaitGroup
	for g := range uint64(8) {
		rng := generator(t, g)
		wg.Go(func() {
			now := noon
			for i := range 2000 {
				now = now.Add(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
				fetched, n, _ := b.Fetch(now, 4)
				if n == 0 {
					continue
				}
				run, ok := b.Start(now, fetched)
				if !ok {
					continue
				}
				switch {
				case i%500 == 499:
					b.Trip(now, run, "test", rng.Float64())
				case rng.IntN(3) > 0:
					b.Done(now, run, Success, rng.Float64())
				default:
					b.Done(now, run, Failure, rng.Float64())
				}
				b.Snapshot(now)
			}
		})
	}
	wg.Wait()
	(&walk{T: t, b: b, now: noon.Add(time.Hour)}).recovers()
}

func FuzzBreaker(f *testing.F) {
	f.Add([]byte{0, 2, 4, 2, 5, 0, 6, 1, 0, 0, 7, 40})
	f.Add([]byte{0, 0, 5, 0, 7, 63, 0, 0, 7, 191, 0, 0, 7, 62, 2, 0, 4, 1})
	f.Add([]byte{6, 0, 7, 62, 7, 62, 0, 0, 6, 1, 0, 0, 0, 0, 7, 190, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := &walk{T: t, b: newBreaker(t, Config{MinRuns: 2}), now: noon}
		for len(script) >= 2 && len(script) < 4096 {
			op, size := script[0], script[1]
			script = script[2:]
			d := time.Duration(1) << (size % 63)
			if size >= 128 {
				d = -d
			}
			w.step(op, size, float64(size)/200, d)
		}
		w.recovers()
	})
}
