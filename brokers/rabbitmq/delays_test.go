package rabbitmq

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestPlanDelays(t *testing.T) {
	for _, tt := range []struct {
		maxDelay time.Duration
		queues   int
	}{
		{0, 0},
		{249 * time.Millisecond, 0},
		{250 * time.Millisecond, 1},
		{time.Second, 3},
		{15 * time.Minute, 31},
		{3 * time.Hour, 37},
		{24 * time.Hour, 40},
		{365 * 24 * time.Hour, 40},
	} {
		plan := planDelays(tt.maxDelay)
		if len(plan) != tt.queues {
			t.Errorf("planDelays(%v) has %d delay queues, want %d", tt.maxDelay, len(plan), tt.queues)
		}
		for i, queue := range plan {
			if i > 0 && queue <= plan[i-1] {
				t.Errorf("planDelays(%v): %v follows %v", tt.maxDelay, queue, plan[i-1])
			}
			if queue%time.Millisecond != 0 {
				t.Errorf("planDelays(%v): %v is not in whole milliseconds", tt.maxDelay, queue)
			}
		}
		if n := len(plan); n > 0 && tt.maxDelay <= longestDelay && plan[n-1] <= tt.maxDelay/2 {
			t.Errorf("planDelays(%v) ends at %v", tt.maxDelay, plan[n-1])
		}
	}
}

// hops counts the delay queues on the way to a delay, if each adds late, and the
// rest that is held at the end.
func (p delayPlan) hops(delay, late time.Duration) (n int, rest time.Duration) {
	for n = 0; n == 0 || delay > tail; n++ {
		queue := p.pick(delay)
		if queue == 0 {
			break
		}
		delay -= queue + late
	}
	return n, delay
}

// The figures of the documentation.
func TestHops(t *testing.T) {
	plan := planDelays(3 * time.Hour)
	for _, tt := range []struct {
		from, to time.Duration
		mean     float64 // at most
		most     int
	}{
		{500 * time.Millisecond, 16 * time.Second, 1, 1},
		{16 * time.Second, time.Minute, 1.7, 2},
		{time.Minute, 15 * time.Minute, 2.6, 4},
		{15 * time.Minute, 3 * time.Hour, 4, 6},
	} {
		const samples = 5000
		total, most := 0, 0
		var held time.Duration
		for i := range samples {
			delay := tt.from + (tt.to-tt.from)*time.Duration(i)/samples
			n, rest := plan.hops(delay, 15*time.Millisecond)
			total, most, held = total+n, max(most, n), held+max(rest, 0)
			if rest > tail {
				t.Errorf("a delay of %v ends with %v to hold", delay, rest)
			}
		}
		mean := float64(total) / samples
		t.Logf("%v to %v: %.2f hops in the mean, %d at most, %v held in the mean", tt.from, tt.to, mean, most, (held / samples).Round(time.Millisecond))
		if mean > tt.mean || most > tt.most {
			t.Errorf("%v to %v: %.2f hops in the mean, %d at most; want %.2f and %d", tt.from, tt.to, mean, most, tt.mean, tt.most)
		}
	}
}

func TestPickIsNeverLate(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		plan := planDelays(time.Duration(random.Int64N(int64(48 * time.Hour))))
		checkPick(t, plan, time.Duration(random.Int64N(int64(30*24*time.Hour))))
	}
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

func checkPick(t *testing.T, plan delayPlan, delay time.Duration) {
	t.Helper()
	queue := plan.pick(delay)
	if queue > max(delay, 0) {
		t.Errorf("pick(%v) = %v, which is late", delay, queue)
	}
	if n := len(plan); n > 0 && delay >= shortestDelay && queue < min(delay/2, plan[n-1]) {
		t.Errorf("pick(%v) = %v, which is less than half, and the plan goes to %v", delay, queue, plan[n-1])
	}
}

func FuzzPick(f *testing.F) {
	f.Add(int64(0), int64(0))
	f.Add(int64(15*time.Minute), int64(3*time.Second))
	f.Add(int64(time.Hour), int64(time.Hour))
	f.Add(int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, maxDelay, delay int64) {
		checkPick(t, planDelays(time.Duration(maxDelay)), time.Duration(delay))
	})
}

func TestHoldable(t *testing.T) {
	for _, tt := range []struct {
		held, most int
		want       time.Duration
	}{
		{0, 1, tail}, {1, 1, 0}, {0, 1000, tail}, {250, 1000, tail / 2}, {499, 1000, tail / 500}, {500, 1000, 0}, {1500, 1000, 0},
	} {
		if got := holdable(tt.held, tt.most); got != tt.want {
			t.Errorf("holdable(%d, %d) = %v, want %v", tt.held, tt.most, got, tt.want)
		}
	}
}
