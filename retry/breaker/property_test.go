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
	case 0:
		w.checkAllows(before.State)
	case 1, 2:
		run, ok := w.b.Start(w.now)
		if ok != (run != Permit{}) || ok && before.State != Closed && before.State != HalfOpen {
			w.Fatalf("Start = %+v, %v in %v", run, ok, before.State)
		}
		if ok {
			w.held = append(w.held, run)
		}
	case 3, 4:
		changed, mayChange = w.b.Done(w.now, w.pick(op), uint64(op/16), Outcome(outcome%5), random), true
	case 5:
		changed, mayChange = w.b.Trip(w.now, "test", random), true
	case 6:
		switch outcome % 8 {
		case 0:
			changed, mayChange = w.b.Isolate(w.now, "test"), true
		case 1, 2:
			w.b.NotBefore(w.now, before.Since.Add(min(d, w.b.cfg.MaxOpen)))
		default:
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

// checkAllows asks twice whether a run may begin, and then begins one.
func (w *walk) checkAllows(state State) {
	ok, next := w.b.Allows(w.now)
	if again, _ := w.b.Allows(w.now); again != ok {
		w.Fatalf("Allows = %v, then %v", ok, again)
	}
	if ok && !next.IsZero() || !ok && state == Closed {
		w.Fatalf("Allows = %v, %v in %v", ok, next, state)
	}
	if !ok && next.IsZero() != (state == Isolated) || !ok && state != Isolated && !next.After(w.now) {
		w.Fatalf("%v: nothing granted at %v, but ask again at %v", state, w.now, next)
	}
	p, started := w.b.Start(w.now)
	if started != ok {
		w.Fatalf("Allows = %v, but Start = %v", ok, started)
	}
	if ok {
		w.held = append(w.held, p)
	}
}

func (w *walk) check(s Snapshot) {
	if s.Failures < 0 || s.Failures > s.Messages || s.Messages > w.b.cfg.Window || s.Streak < 0 || s.Probes < 0 || s.Probes > maxProbes || s.Openings < 0 {
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
		p, ok := w.b.Start(w.now)
		if !ok {
			_, w.now = w.b.Allows(w.now)
			continue
		}
		w.b.Done(w.now, p, 1, Success, 0)
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
			w := &walk{T: t, b: newBreaker(t, Config{Window: 1 + rng.IntN(30), MinRuns: 1, Streak: 1 + rng.IntN(10), Probes: 1 + rng.IntN(16), Successes: 1 + rng.IntN(20)}), now: noon}
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

// report is one that the model of the rule remembers.
type report struct {
	of uint64
	o  Outcome
}

// model is the rule as it is written down, over the whole history.
func model(history []report, c Config) (s Snapshot, opens bool) {
	failed := map[uint64]bool{} // messages of the streak, anonymous ones apart
	known, anonymous, succeeded := map[uint64]bool{}, 0, false
	for i := len(history) - 1; i >= 0; i-- {
		r := history[i]
		bad := r.o != Success
		succeeded = succeeded || !bad
		if !succeeded {
			s.Streak += int(r.o - Success)
			if failed[r.of] = true; r.of == 0 {
				anonymous++
			}
		}
		if s.Messages < c.Window && !known[r.of] {
			s.Messages++
			known[r.of] = r.of != 0
			if bad {
				s.Failures++
			}
		}
	}
	delete(failed, 0)
	ratio := s.Messages == c.Window && float64(s.Failures)/float64(s.Messages) >= c.Ratio || s.Messages >= c.MinRuns && s.Failures == s.Messages
	streak := c.Streak > 0 && s.Streak >= c.Streak && (len(failed)+anonymous >= 10 || s.Failures == s.Messages)
	return s, history[len(history)-1].o != Success && (ratio || streak)
}

// The breaker, which remembers little and takes a short cut when all is well,
// does what the rule says.
func TestRuleAgainstModel(t *testing.T) {
	for seed := range uint64(100) {
		rng := generator(t, seed)
		c := Config{Window: 1 + rng.IntN(25), Streak: []int{-1, 5, 20}[rng.IntN(3)], Ratio: 0.5 + rng.Float64()/2}
		b := newBreaker(t, c)
		messages, success := 1+rng.IntN(40), 0.05+rng.Float64()
		var history []report
		for range 400 {
			r := report{of: uint64(rng.IntN(messages)), o: Failure + Outcome(rng.IntN(2))}
			if rng.Float64() < success {
				r.o = Success
			}
			history = append(history, r)
			want, opens := model(history, b.cfg)
			if got := b.Done(noon, start(t, b, noon), r.of, r.o, 0); got != opens {
				t.Fatalf("seed %d, %+v: opened %v after %d reports, want %v: %+v", seed, c, got, len(history), opens, history)
			}
			if s := b.Snapshot(noon); s.Messages != want.Messages || s.Failures != want.Failures || s.Streak != want.Streak {
				t.Fatalf("seed %d, %+v: snapshot %+v, want %+v after %+v", seed, c, s, want, history)
			}
			if opens {
				b.Restore(noon)
				b.Done(noon, start(t, b, noon), r.of, Success, 0)
				history = []report{{of: r.of, o: Success}}
			}
		}
	}
}

// At no time are more leases held than probes are allowed.
func TestLeasesAreBounded(t *testing.T) {
	rng := generator(t, 5)
	b := newBreaker(t, Config{Probes: 3, Successes: 1000})
	b.Trip(noon, "test", 0)
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
		if p, ok := b.Start(now); ok {
			ends[p] = now.Add(time.Minute)
		}
		if len(ends) > 3 {
			t.Fatalf("%d leases held at once, want at most 3", len(ends))
		}
		for p := range ends {
			if rng.IntN(20) == 0 {
				b.Done(now, p, 0, Ignored, 0)
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
				b.Allows(now)
				run, ok := b.Start(now)
				if !ok {
					continue
				}
				switch {
				case i%500 == 499:
					b.Trip(now, "test", rng.Float64())
					b.NotBefore(now, now.Add(time.Second))
				case i/100%3 > 0 || rng.IntN(3) > 0:
					b.Done(now, run, uint64(i), Success, rng.Float64())
				default:
					b.Done(now, run, uint64(i%20), Failure, rng.Float64())
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
	f.Add([]byte("%07A&17\xa600")) // an open time that NotBefore made longer, and a clock that is set back
	f.Fuzz(func(t *testing.T, script []byte) {
		w := &walk{T: t, b: newBreaker(t, Config{Window: 8, MinRuns: 2, Streak: 3}), now: noon}
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
