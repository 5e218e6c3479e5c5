package breaker

import (
	"math"
	"testing"
	"time"
)

func TestOpenTimeGrows(t *testing.T) {
	b := newBreaker(t, Config{})
	now := noon
	b.Trip(now, Permit{}, "test", 0.999999999)
	for i, longest := range []time.Duration{10, 20, 40, 80, 160, 300, 300, 300} {
		longest *= time.Second
		s := b.Snapshot(now)
		if got := s.Next.Sub(now); got < longest-time.Millisecond || got > longest || s.Openings != i+1 {
			t.Errorf("opening %d lasts %v with the highest draw, want %v", s.Openings, got, longest)
		}
		now = s.Next
		b.Done(now, start(t, b, now), Failure, 0.999999999)
	}
}

func TestOpenTimeIsWithinItsRange(t *testing.T) {
	for _, random := range []float64{0, -1, math.NaN(), math.Inf(-1), 1, 2, math.Inf(1)} {
		b := newBreaker(t, Config{})
		b.Trip(noon, Permit{}, "test", random)
		want := 5 * time.Second
		if random >= 1 {
			want = 10 * time.Second
		}
		if got := b.Snapshot(noon).Next.Sub(noon); got != want {
			t.Errorf("random %v: open for %v, want %v", random, got, want)
		}
	}
}

// Workers that trip together do not probe together.
func TestFleetDoesNotProbeInLockstep(t *testing.T) {
	rng := generator(t, 1)
	bins := make([]int, 10)
	for range 10_000 {
		b := newBreaker(t, Config{})
		b.Trip(noon, Permit{}, "test", rng.Float64())
		open := b.Snapshot(noon).Next.Sub(noon)
		bins[int((open-5*time.Second)*10/(5*time.Second))]++
	}
	for _, n := range bins {
		if n < 900 || n > 1100 {
			t.Fatalf("probes by tenth of the range: %v, want about 1000 each", bins)
		}
	}
}

func TestOpeningsStartAgain(t *testing.T) {
	for _, tt := range []struct {
		healthy time.Duration
		want    int
	}{{29 * time.Second, 2}, {30 * time.Second, 1}} {
		b := newBreaker(t, Config{Successes: 1})
		b.Trip(noon, Permit{}, "test", 0)
		b.Restore(noon)
		b.Done(noon, start(t, b, noon), Success, 0)
		b.Trip(noon.Add(tt.healthy), Permit{}, "test", 0)
		if got := b.Snapshot(noon.Add(tt.healthy)).Openings; got != tt.want {
			t.Errorf("tripped %v after closing: opening %d in a row, want %d", tt.healthy, got, tt.want)
		}
	}
}

func TestClockStepsBack(t *testing.T) {
	for _, back := range []time.Duration{time.Millisecond, time.Second, time.Hour, 300 * 24 * time.Hour} {
		earlier := noon.Add(-back)

		b := inState(t, Open)
		refused(t, b, earlier, Permit{})
		if left := b.Snapshot(earlier).Next.Sub(earlier); left != 7500*time.Millisecond {
			t.Errorf("clock set back by %v: open for another %v, want the 7.5s that were drawn", back, left)
		}

		b = inState(t, HalfOpen)
		start(t, b, noon)
		start(t, b, earlier.Add(time.Minute+time.Second))

		b = newBreaker(t, Config{})
		for range 19 {
			b.Done(noon, start(t, b, noon), Failure, 0)
		}
		b.Done(earlier, start(t, b, earlier), Ignored, 0)
		if s := b.Snapshot(earlier); s.Runs != 19 {
			t.Errorf("clock set back by %v: %d runs, want 19", back, s.Runs)
		}
		if s := b.Snapshot(earlier.Add(time.Minute + back%time.Minute)); s.Runs != 0 {
			t.Errorf("clock set back by %v: %d runs a minute later, want 0", back, s.Runs)
		}
	}
}
