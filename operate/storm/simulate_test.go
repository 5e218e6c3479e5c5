package storm

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
)

const ms = time.Millisecond

func client(jitter retry.Jitter, attempts int, base time.Duration) Client {
	return Client{Retry: retry.Policy{
		MaxAttempts: attempts,
		Backoff:     retry.Backoff{Base: base, Cap: time.Hour, Multiplier: 2, Jitter: jitter},
	}}
}

func queue() *budget.Config { c := budget.Queue(); return &c }

func simulate(t *testing.T, s Scenario, c Client, seed uint64) Result {
	t.Helper()
	r, err := Simulate(t.Context(), s, c, seed)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return r
}

func summarize(t *testing.T, s Scenario, c Client, seeds int) Summary {
	t.Helper()
	sum, err := Summarize(t.Context(), s, c, 1, seeds)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// together is 1000 callers that fail at one instant, on top of 500 a second.
func together() Scenario {
	return Scenario{Messages: 2000, Rate: 500, Together: 1000, OutageAt: 2 * time.Second, Outage: 200 * ms, Service: 5 * ms, Bin: 50 * ms}
}

// TestByHand compares with what can be worked out on paper.
func TestByHand(t *testing.T) {
	second := time.Second
	tests := []struct {
		name     string
		scenario Scenario
		client   Client
		want     Result
	}{
		{
			// Calls at 0 and 1 s are refused, those at 3 s are served.
			"two callers without jitter",
			Scenario{Together: 2, Outage: second, Service: 5 * ms, Bin: 50 * ms},
			client(retry.NoJitter, 6, second),
			Result{Messages: 2, Attempts: 6, Amplification: 2, Settled: 2*second + 5*ms, PeakOffered: 40, PeakServed: 40},
		},
		{
			"out of attempts",
			Scenario{Together: 2, Outage: second, Service: 5 * ms, Bin: 50 * ms},
			client(retry.NoJitter, 2, second),
			Result{Messages: 2, Attempts: 4, Lost: 2, Amplification: 2, PeakOffered: 40},
		},
		{
			// They begin 100 ms apart and take 50 ms, so that the fourth is done after 350 ms.
			"more than it can do",
			Scenario{Together: 5, Capacity: 10, Service: 50 * ms, Patience: 250 * ms, Bin: 100 * ms},
			client(retry.NoJitter, 1, second),
			Result{Messages: 5, Attempts: 5, Lost: 2, Wasted: 2, Settled: 250 * ms, PeakOffered: 50, PeakServed: 10},
		},
		{
			"one at a time",
			Scenario{Together: 3, Service: 100 * ms, Concurrency: 1, Bin: 100 * ms},
			client(retry.NoJitter, 1, second),
			Result{Messages: 3, Attempts: 3, Settled: 300 * ms, PeakOffered: 10, PeakServed: 10},
		},
		{
			"even arrivals",
			Scenario{Messages: 10, Rate: 10, Service: 5 * ms, Bin: 500 * ms},
			client(retry.FullJitter, 3, second),
			Result{Messages: 10, Attempts: 10, PeakOffered: 10, PeakServed: 10},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := simulate(t, tt.scenario, tt.client, 1)
			got.Offered, got.Served, got.Answered = nil, nil, nil
			got.calm, got.duringCalls, got.duringFresh = 0, 0, 0
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got\n%+v, want\n%+v", got, tt.want)
			}
		})
	}
}

// TestBudgetBoundsAmplification holds the retries of an outage against the
// budget, whatever the policy.
func TestBudgetBoundsAmplification(t *testing.T) {
	const rate = 100.0
	for _, outage := range []time.Duration{5 * time.Second, 30 * time.Second} {
		s := Scenario{
			Messages: int(rate * (20 + outage.Seconds())), Rate: rate,
			OutageAt: 15 * time.Second, Outage: outage, Service: 5 * ms, Bin: time.Second,
		}
		for _, jitter := range []retry.Jitter{retry.NoJitter, retry.FullJitter, retry.DecorrelatedJitter} {
			c := client(jitter, 10, 100*ms)
			unbound := simulate(t, s, c, 1).Amplification
			for _, config := range []budget.Config{budget.Queue(), budget.Mesh(), {Share: 0.5, Floor: 2}} {
				bounded := c
				bounded.Budget = &config
				got := simulate(t, s, bounded, 1).Amplification
				// At its start an outage can take what is saved: 5 s of income.
				peak := max(rate, 10*config.Floor)
				saved := 5 * (config.Share*peak + config.Floor) / (rate * outage.Seconds())
				if limit := 1 + config.Share + config.Floor/rate + saved; got > limit {
					t.Errorf("outage %v, budget %+v, jitter %d: amplification %.3f, want at most %.3f", outage, config, jitter, got, limit)
				}
				if outage > 10*time.Second && config.Share < 0.5 && unbound < 1.5*got {
					t.Errorf("outage %v, jitter %d: amplification %.2f without the budget, %.2f with it", outage, jitter, unbound, got)
				}
			}
		}
	}
}

func TestGaussianDrawsCrowdInTheMiddle(t *testing.T) {
	c := client(retry.FullJitter, 10, time.Second)
	c.Gauss = true
	chance := rand.New(rand.NewPCG(1, 1))
	var sum, squares float64
	const n = 20000
	for range n {
		d := c.decide(&task{calls: 1}, time.Second, chance).Delay
		if d < 0 || d > time.Second {
			t.Fatalf("delay %v is not in the envelope of 1 s", d)
		}
		sum += d.Seconds()
		squares += d.Seconds() * d.Seconds()
	}
	mean := sum / n
	if deviation := math.Sqrt(squares/n - mean*mean); math.Abs(mean-0.5) > 0.01 || math.Abs(deviation-1.0/6) > 0.01 {
		t.Errorf("mean %.3f, standard deviation %.3f, want 0.5 and 0.167", mean, deviation)
	}
}

// TestAnyStorm plays random storms and checks what holds in each.
func TestAnyStorm(t *testing.T) {
	for seed := range uint64(50) {
		s, c := anyStorm(seed)
		if err := errors.Join(s.Validate(), c.Validate()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		r, again := simulate(t, s, c, seed), simulate(t, s, c, seed)
		if !reflect.DeepEqual(r, again) {
			t.Errorf("seed %d: two runs differ:\n%+v\n%+v", seed, r, again)
		}
		served, answered := total(r.Served), total(r.Answered)
		switch {
		case r.Messages != s.Messages+s.Together || answered+r.Lost != r.Messages:
			t.Errorf("seed %d: %d answered and %d lost of %d messages", seed, answered, r.Lost, r.Messages)
		case answered+r.Wasted != served:
			t.Errorf("seed %d: %d answered and %d wasted of %d served", seed, answered, r.Wasted, served)
		case r.Attempts < r.Messages || r.Attempts > r.Messages*c.Retry.MaxAttempts || r.Attempts != total(r.Offered):
			t.Errorf("seed %d: %d attempts of %d messages, %d in the bins", seed, r.Attempts, r.Messages, total(r.Offered))
		case s.Capacity > 0 && r.PeakServed > s.Capacity+1/s.Bin.Seconds():
			t.Errorf("seed %d: %v served at a capacity of %v", seed, r.PeakServed, s.Capacity)
		case r.OpenCalls != 0:
			t.Errorf("seed %d: %d attempts while the breaker was open", seed, r.OpenCalls)
		}
	}
}

func total(bins []int) (n int) {
	for _, b := range bins {
		n += b
	}
	return n
}

func anyStorm(seed uint64) (Scenario, Client) {
	chance := rand.New(rand.NewPCG(seed, 9))
	s := Scenario{
		Messages: chance.IntN(300), Rate: 1 + 200*chance.Float64(), Poisson: chance.IntN(2) == 0,
		Together: 1 + chance.IntN(100),
		OutageAt: time.Duration(chance.Int64N(int64(3 * time.Second))),
		Outage:   time.Duration(chance.Int64N(int64(10 * time.Second))),
		Service:  time.Duration(1 + chance.Int64N(int64(20*ms))),
		Bin:      50 * ms,
	}
	if chance.IntN(2) == 0 {
		s.Overrun = time.Duration(chance.Int64N(int64(ms)))
	}
	if chance.IntN(2) == 0 {
		s.Capacity, s.Patience = 1+200*chance.Float64(), s.Service+time.Duration(chance.Int64N(int64(time.Second)))+1
	}
	if chance.IntN(2) == 0 {
		s.Concurrency = 1 + chance.IntN(30)
	}
	c := client(retry.Jitter(chance.IntN(4)), 1+chance.IntN(8), time.Duration(1+chance.Int64N(int64(time.Second))))
	c.Gauss = c.Retry.Backoff.Jitter == retry.FullJitter && chance.IntN(2) == 0
	if chance.IntN(2) == 0 {
		c.Budget = queue()
	}
	c.Gate = []Gate{NoGate, Classic, Breaker, Limit}[chance.IntN(4)]
	if s.Concurrency == 0 && c.Gate == Limit {
		c.Gate = NoGate
	}
	return s, c
}

func TestSummarize(t *testing.T) {
	results := []Result{{Lost: 4}, {Lost: 1}, {Lost: 3}, {Lost: 10}}
	lost := func(r Result) int { return r.Lost }
	if got, want := across(results, lost), (Range{Median: 3.5, Min: 1, Max: 10}); got != want {
		t.Errorf("range %+v, want %+v", got, want)
	}
	if got, want := across(results[:3], lost), (Range{Median: 3, Min: 1, Max: 4}); got != want {
		t.Errorf("range %+v, want %+v", got, want)
	}
	sum := summarize(t, together(), client(retry.FullJitter, 6, 100*ms), 3)
	if first := simulate(t, together(), client(retry.FullJitter, 6, 100*ms), 1); !reflect.DeepEqual(sum.First, first) {
		t.Error("the first result is not that of the first seed")
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	good := together()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	for flag, spoil := range map[string][]func(*Scenario){
		"messages":    {func(s *Scenario) { s.Messages = -1 }, func(s *Scenario) { s.Messages = MaxMessages + 1 }, func(s *Scenario) { s.Messages, s.Together = 0, 0 }},
		"together":    {func(s *Scenario) { s.Together = -1 }, func(s *Scenario) { s.Together = MaxMessages + 1 }},
		"rate":        {func(s *Scenario) { s.Rate = -1 }, func(s *Scenario) { s.Rate = nan }, func(s *Scenario) { s.Rate = 0 }, func(s *Scenario) { s.Rate = 1e-9 }, func(s *Scenario) { s.Rate = math.Inf(1) }},
		"overrun":     {func(s *Scenario) { s.Overrun = -1 }},
		"outage-at":   {func(s *Scenario) { s.OutageAt = -1 }, func(s *Scenario) { s.OutageAt = math.MaxInt64 }},
		"outage":      {func(s *Scenario) { s.Outage = -1 }, func(s *Scenario) { s.Outage = math.MaxInt64 }},
		"capacity":    {func(s *Scenario) { s.Capacity = -1 }, func(s *Scenario) { s.Capacity = nan }, func(s *Scenario) { s.Capacity = 1e-300 }},
		"service":     {func(s *Scenario) { s.Service = -1 }},
		"patience":    {func(s *Scenario) { s.Patience = -1 }, func(s *Scenario) { s.Patience = s.Service }},
		"concurrency": {func(s *Scenario) { s.Concurrency = -1 }},
		"bin":         {func(s *Scenario) { s.Bin = 0 }, func(s *Scenario) { s.Bin = -1 }},
	} {
		for i, change := range spoil {
			s := good
			change(&s)
			if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "--"+flag+" is ") {
				t.Errorf("%s %d: error %v, want one about --%s", flag, i, err, flag)
			}
		}
	}
}
