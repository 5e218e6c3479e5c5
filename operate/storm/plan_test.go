package storm

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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

// TestPlanOfExponential has the table of every text on backoff.
func TestPlanOfExponential(t *testing.T) {
	c := client(retry.NoJitter, 10, 100*ms)
	c.Retry.Backoff.Cap = 30 * time.Second
	p := plan(t, PlanInput{Retry: c.Retry})
	waits := []time.Duration{0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600}
	starts := []time.Duration{0, 100, 300, 700, 1500, 3100, 6300, 12700, 25500, 51100}
	for i, a := range p.Attempts {
		delay, start := waits[i]*ms, starts[i]*ms
		if a.Number != i+1 || a.Reached != 1 || a.Delay != (Spread{delay, delay, delay, delay, delay}) || a.Start != (Spread{start, start, start, start, start}) {
			t.Errorf("attempt %+v, want it %v after the one before, and %v after the first", a, delay, start)
		}
	}
	if len(p.Attempts) != 10 || p.End.Most != 51100*ms {
		t.Errorf("%d attempts, given up after %v", len(p.Attempts), p.End.Most)
	}
}

func TestPlanWorstCase(t *testing.T) {
	c := client(retry.FullJitter, 4, 100*ms)
	c.Retry.Backoff.Cap = 2 * time.Second
	p := plan(t, PlanInput{Retry: c.Retry, Run: 150 * ms})
	// Three delays of 100, 200 and 400 ms at most, and four runs.
	if most := p.End.Most.Round(ms); most != 1300*ms || p.End.Least != 600*ms {
		t.Errorf("given up after %v to %v, want 600 ms to 1.3 s", p.End.Least, most)
	}
	if got := p.Beyond(2 * time.Second); got != 0 {
		t.Errorf("%v of the messages are beyond the worst case", got)
	}
	if got := p.Beyond(599 * ms); got != 1 {
		t.Errorf("%v of the messages are beyond the best case, want all", got)
	}
	if got := p.Beyond(p.End.P50); got < 0.45 || got > 0.55 {
		t.Errorf("%v of the messages are beyond the median", got)
	}
}

func TestPlanEndsWithMaxAge(t *testing.T) {
	c := client(retry.FullJitter, 10, time.Second)
	c.Retry.MaxAge = 30 * time.Second
	p := plan(t, PlanInput{Retry: c.Retry, Run: time.Second})
	last := p.Attempts[len(p.Attempts)-1]
	if len(p.Attempts) == 10 || last.Reached >= 1 {
		t.Errorf("%d attempts, the last reached by %v of the messages: MaxAge ends them before", len(p.Attempts), last.Reached)
	}
	if p.End.Most != 31*time.Second || p.Ends[len(p.Ends)-1] > p.End.Most {
		t.Errorf("given up after %v at most, drawn %v, want a run and MaxAge", p.End.Most, p.Ends[len(p.Ends)-1])
	}
	if p.End.Least != p.Ends[0] {
		t.Errorf("given up after %v at least, want the least drawn, %v", p.End.Least, p.Ends[0])
	}
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

func TestPlanRefuses(t *testing.T) {
	good := PlanInput{Retry: client(retry.FullJitter, 3, time.Second).Retry, Samples: 10}
	good.Retry.MaxAge = time.Hour
	for name, spoil := range map[string]func(*PlanInput){
		"--run":       func(in *PlanInput) { in.Run = -1 },
		"--samples":   func(in *PlanInput) { in.Samples = MaxSamples + 1 },
		"--attempts":  func(in *PlanInput) { in.Retry.MaxAttempts = 0 },
		"MaxAttempts": func(in *PlanInput) { in.Retry.MaxAttempts = -1 },
		"--max-age":   func(in *PlanInput) { in.Retry.MaxAge = 0 },
		"--cap":       func(in *PlanInput) { in.Retry.Backoff.Cap = 0 },
		"Cap":         func(in *PlanInput) { in.Retry.Backoff.Cap = 1 },
	} {
		in := good
		spoil(&in)
		if _, err := PlanOf(in); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
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
