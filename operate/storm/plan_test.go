package storm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry"
)

func plan(t *testing.T, in PlanInput) Plan {
	t.Helper()
	if in.Samples == 0 {
		in.Samples = 2000
	}
	if in.Retry.MaxAge == 0 {
		in.Retry.MaxAge = 24 * time.Hour
	}
	p, err := PlanOf(in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlanBounds draws policies and looks for a draw outside the bounds.
func TestPlanBounds(t *testing.T) {
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(seed, 4))
		c := client(retry.Jitter(chance.IntN(4)), 1+chance.IntN(12), time.Duration(1+chance.Int64N(int64(time.Minute))))
		switch chance.IntN(3) {
		case 0:
			c.Retry.Backoff.Multiplier = 1
		case 1:
			c.Retry.Backoff.Multiplier, c.Retry.Backoff.Step = 0, c.Retry.Backoff.Base
		}
		c.Retry.Backoff.Floor = time.Duration(chance.Int64N(int64(c.Retry.Backoff.Base)))
		c.Retry.MaxAge = time.Duration(1+chance.IntN(100)) * time.Minute
		p := plan(t, PlanInput{Retry: c.Retry, Run: time.Duration(chance.Int64N(int64(time.Second))), Samples: 200, Seed: seed})
		for _, a := range p.Attempts {
			for _, s := range []Spread{a.Delay, a.Start} {
				if !slices.IsSorted([]time.Duration{s.Least, s.P50, s.P90, s.P99, s.Most}) {
					t.Errorf("seed %d: attempt %d has percentiles outside its bounds: %+v", seed, a.Number, s)
				}
			}
		}
		if e := p.End; !slices.IsSorted([]time.Duration{e.Least, p.Ends[0], e.P50, e.P90, e.P99, p.Ends[len(p.Ends)-1], e.Most}) {
			t.Errorf("seed %d: given up outside the bounds: %+v, drawn %v to %v", seed, e, p.Ends[0], p.Ends[len(p.Ends)-1])
		}
	}
}

// TestAmplification has the products of call chains.
func TestAmplification(t *testing.T) {
	tests := []struct {
		attempts []int
		calls    float64
		budgeted float64 // with a share of a tenth at each hop
	}{
		{[]int{3, 3}, 9, 1.1 * 1.1},
		{[]int{3, 3, 3}, 27, 1.1 * 1.1 * 1.1},
		{[]int{3, 3, 3, 3}, 81, 1.1 * 1.1 * 1.1 * 1.1},
		{[]int{3, 2, 1}, 6, 1.1 * 1.1},
		{[]int{10, 3, 3}, 90, 1.1 * 1.1 * 1.1},
		{[]int{1}, 1, 1},
	}
	for _, tt := range tests {
		var hops []Hop
		for _, n := range tt.attempts {
			hops = append(hops, Hop{Attempts: n})
		}
		loads := Amplification(hops, 0.1)
		if last := loads[len(loads)-1]; last.Calls != tt.calls || math.Abs(last.Budgeted-tt.budgeted) > 1e-9 {
			t.Errorf("%v: %v calls, %v with a budget, want %v and %v", tt.attempts, last.Calls, last.Budgeted, tt.calls, tt.budgeted)
		}
	}
}
