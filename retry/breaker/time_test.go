package breaker

import (
	"math"
	"testing"
	"time"
)

func TestOpenTimeGrows(t *testing.T) {
	b := newBreaker(t, Config{})
	now := noon
	b.Trip(now, "test", 0.999999999)
	for i, longest := range []time.Duration{10, 20, 30, 30, 30} {
		longest *= time.Second
		s := b.Snapshot(now)
		if got := s.Next.Sub(now); got < longest-time.Millisecond || got > longest || s.Openings != i+1 {
			t.Errorf("opening %d lasts %v with the highest draw, want %v", s.Openings, got, longest)
		}
		now = s.Next
		b.Done(now, start(t, b, now), 0, Failure, 0.999999999)
	}
}

func TestOpenTimeIsWithinItsRange(t *testing.T) {
	for _, random := range []float64{0, -1, math.NaN(), math.Inf(-1), 1, 2, math.Inf(1)} {
		b := newBreaker(t, Config{})
		b.Trip(noon, "test", random)
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
		b.Trip(noon, "test", rng.Float64())
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
	}{{5*time.Second - 1, 2}, {5 * time.Second, 1}} {
		b := newBreaker(t, Config{})
		b.Trip(noon, "test", 0)
		b.Restore(noon)
		b.Done(noon, start(t, b, noon), 0, Success, 0)
		b.Trip(noon.Add(tt.healthy), "test", 0)
		if got := b.Snapshot(noon.Add(tt.healthy)).Openings; got != tt.want {
			t.Errorf("tripped %v after closing: opening %d in a row, want %d", tt.healthy, got, tt.want)
		}
	}
}

func TestClockStepsBack(t *testing.T) {
	for _, back := range []time.Duration{time.Millisecond, time.Second, time.Hour, 300 * 24 * time.Hour} {
		earlier := noon.Add(-back)

		b := inState(t, Open)
		refused(t, b, earlier)
		if left := b.Snapshot(earlier).Next.Sub(earlier); left != 7500*time.Millisecond {
			t.Errorf("clock set back by %v: open for another %v, want the 7.5s that were drawn", back, left)
		}

		b = inState(t, HalfOpen)
		start(t, b, noon)
		start(t, b, earlier.Add(time.Minute+time.Second))

		b = inState(t, Open)
		b.NotBefore(noon, noon.Add(time.Minute))
		if left := b.Snapshot(earlier).Next.Sub(earlier); left != time.Minute {
			t.Errorf("clock set back by %v: open for another %v, want the minute that was asked for", back, left)
		}
	}
}

func TestDefaultMaxOpen(t *testing.T) {
	for _, tt := range []struct{ minOpen, want time.Duration }{
		{0, 30 * time.Second}, {time.Second, 30 * time.Second}, {15 * time.Second, 30 * time.Second}, {time.Minute, 2 * time.Minute},
	} {
		if got := newBreaker(t, Config{MinOpen: tt.minOpen}).cfg.MaxOpen; got != tt.want {
			t.Errorf("MinOpen %v: MaxOpen %v, want %v", tt.minOpen, got, tt.want)
		}
	}
}
