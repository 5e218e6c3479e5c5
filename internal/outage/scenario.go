package outage

import (
	"time"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// Scenario is a steady load, an outage, and the fleet that goes through it.
type Scenario struct {
	Topic   string
	Workers int // Consumers, each with a budget and a breaker of its own
	Rate    int // messages per second, as long as the run lasts

	// Capacity is how many calls per second the dependency begins. Others wait
	// in a line before it, and stay there when nobody waits for them any more.
	Capacity int
	Service  time.Duration // how long a call takes once it has begun

	// Line is how many calls may wait; more are refused at once. 0 means any
	// number.
	Line int

	// Warm is the time before the outage, Outage how long it lasts, and Patience
	// after how long since its end a run ends that has not drained.
	Warm, Outage, Patience time.Duration

	Config  consumer.Config // of each worker
	Breaker breaker.Config  // of each worker, unless it has none
}

// Normal returns an outage of a dependency that can do 1.2 times its load: 100
// messages a second for 20 workers with the default Config.
func Normal(outage time.Duration) Scenario {
	return Scenario{
		Topic:    "orders",
		Workers:  20,
		Rate:     100,
		Capacity: 120,
		Service:  50 * time.Millisecond,
		Warm:     time.Minute,
		Outage:   outage,
		Patience: 2 * time.Hour,
	}
}

// Bound is what Amplification may be at most with the default budget: 1, its
// share, and its floor by what one worker gets of the load.
func (s Scenario) Bound() float64 {
	b := budget.Queue()
	return 1 + b.Share + b.Floor*float64(s.Workers)/float64(s.Rate)
}

// Variant is a scenario that lacks something.
type Variant struct {
	Name   string
	Change func(*Scenario)
}

// Protections lists every protection without it, after all and before none.
func Protections() []Variant {
	noBudget := func(s *Scenario) { s.Config.Restraint.NoBudget = true }
	noBreaker := func(s *Scenario) { s.Config.Restraint.NoBreaker = true }
	noJitter := func(s *Scenario) { s.Config.Retry.Backoff.Jitter = retry.NoJitter }
	return []Variant{
		{"all", func(*Scenario) {}},
		{"no budget", noBudget},
		{"no breaker", noBreaker},
		{"no jitter", noJitter},
		{"none", func(s *Scenario) { noBudget(s); noBreaker(s); noJitter(s) }},
	}
}

// Mismatches are scenarios that the default protections cannot make up for,
// because it is first runs that overload the dependency. All of them have 20 workers with 10
// handlers each but the first.
func Mismatches() []Variant {
	hurried := func(s *Scenario) { s.Config.HandlerTimeout, s.Config.Idempotent = time.Second, true }
	return []Variant{
		{"1 handler per worker, timeout 1 s", func(s *Scenario) { hurried(s); s.Config.Concurrency = 1 }},
		{"10 handlers per worker, timeout 1 s", hurried},
		{"10 handlers per worker, throttled when 12 wait", func(s *Scenario) { s.Line = 12 }},
		{"the same, adaptive", func(s *Scenario) { s.Line, s.Config.Restraint.Adaptive = 12, true }},
		{"10 handlers per worker, no limit to the capacity", func(s *Scenario) { s.Capacity = 100_000 }},
	}
}
