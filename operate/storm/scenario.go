package storm

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
)

// Limits of a scenario, so that a slip of the pen does not fill the memory.
const (
	MaxMessages = 1_000_000
	MaxSeeds    = 1000
	MaxAttempts = 100
	maxTime     = 24 * time.Hour
)

// Scenario is the world of a storm: who calls, and what happens to the
// dependency.
type Scenario struct {
	// Messages arrive at Rate per second: evenly, or at random if Poisson.
	Messages int
	Rate     float64
	Poisson  bool
	// Overrun is by how much an even arrival is late on average, as the timer of
	// an event loop is. It is drawn between 0 and twice that, and adds up.
	Overrun time.Duration
	// Together is how many more messages arrive at the instant the outage begins.
	Together int

	// OutageAt is when the outage begins, and Outage how long it lasts, both
	// ends included. 0 means that there is none.
	OutageAt, Outage time.Duration

	// Capacity is how many calls per second the dependency begins. 0 means any
	// number.
	Capacity float64
	// Service is how long a call takes once it has begun.
	Service time.Duration
	// Patience is how long a caller waits for the answer. 0 means for ever.
	Patience time.Duration
	// Concurrency is how many calls may be under way at once. 0 means any number.
	Concurrency int

	// Bin is the stretch of time in which calls are counted.
	Bin time.Duration
}

// Client is what the callers do about failures.
type Client struct {
	Retry  retry.Policy
	Gauss  bool           // draw the delay around the middle of the envelope instead of evenly
	Budget *budget.Config // nil means none
	Gate   Gate           // "" means NoGate
}

// Validate reports every fault of s at once, by the names of the flags that set
// it.
func (s Scenario) Validate() error {
	spacing := 0.0
	if s.Rate > 0 {
		spacing = 1/s.Rate + s.Overrun.Seconds()
	}
	notNegative := func(f float64) bool { return f >= 0 && !math.IsInf(f, 1) }
	return errors.Join(
		demand(s.Messages >= 0 && s.Messages <= MaxMessages, "messages", s.Messages, "use 0 to %d", MaxMessages),
		demand(s.Together >= 0 && s.Together <= MaxMessages, "together", s.Together, "use 0 to %d", MaxMessages),
		demand(s.Messages != 0 || s.Together != 0, "messages", 0, "use at least 1, or --together, or nothing happens"),
		demand(notNegative(s.Rate) && s.Rate <= 1e6, "rate", s.Rate, "use 0 to 1000000 a second"),
		demand(s.Messages <= 0 || s.Rate != 0, "rate", s.Rate, "use more than 0, or --messages 0"),
		demand(spacing*float64(s.Messages) <= maxTime.Seconds(), "rate", s.Rate, "use a higher one or fewer messages: the last one must arrive within %v", maxTime),
		demand(s.Overrun >= 0 && s.Overrun <= maxTime, "overrun", s.Overrun, "use 0 to %v", maxTime),
		demand(s.OutageAt >= 0 && s.OutageAt <= maxTime, "outage-at", s.OutageAt, "use 0 to %v", maxTime),
		demand(s.Outage >= 0 && s.Outage <= maxTime, "outage", s.Outage, "use 0 to %v", maxTime),
		demand(s.Capacity == 0 || s.Capacity >= 0.001 && s.Capacity <= 1e6, "capacity", s.Capacity, "use 0.001 to 1000000 a second, or 0 for any number"),
		demand(s.Service >= 0 && s.Service <= maxTime, "service", s.Service, "use 0 to %v", maxTime),
		demand(s.Patience >= 0 && s.Patience <= maxTime, "patience", s.Patience, "use a duration up to %v, or 0 to wait for ever", maxTime),
		demand(s.Patience == 0 || s.Patience > s.Service, "patience", s.Patience, "use more than the time that a call takes (%v), or none can succeed", s.Service),
		demand(s.Concurrency >= 0, "concurrency", s.Concurrency, "use 1 or more, or 0 for any number"),
		demand(s.Bin >= time.Millisecond && s.Bin <= maxTime, "bin", s.Bin, "use 1ms to %v", maxTime),
	)
}

// Validate reports every fault of c's policy at once. Those of the budget are
// reported by Simulate.
func (c Client) Validate() error { return spelledOut(c.Retry) }

// Fits reports whether c can call in s.
func (c Client) Fits(s Scenario) error {
	return demand(c.Gate != Limit || s.Concurrency > 0, "breaker", c.Gate, "use --concurrency, too: the limit needs a highest value")
}

// spelledOut reports the faults of p, and unset fields too: who writes 0 for a
// flag does not mean a default.
func spelledOut(p retry.Policy) error {
	b := p.Backoff
	return errors.Join(
		p.Validate(),
		demand(p.MaxAttempts != 0 && p.MaxAttempts <= MaxAttempts, "attempts", p.MaxAttempts, "use 1 to %d", MaxAttempts),
		demand(b.Base != 0, "base", b.Base, "use more"),
		demand(b.Cap != 0, "cap", b.Cap, "use more"),
		demand(b.Multiplier != 0 || b.Step != 0, "multiplier", b.Multiplier, "use 1 or more"),
	)
}

// ValidateSeeds reports whether Summarize takes n seeds.
func ValidateSeeds(n int) error {
	return demand(n >= 1 && n <= MaxSeeds, "seeds", n, "use 1 to %d", MaxSeeds)
}

func demand(ok bool, flag string, value any, fix string, limits ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("--%s is %v: %s", flag, value, fmt.Sprintf(fix, limits...))
}

// over reports whether the dependency is down at t.
func (s Scenario) over(t time.Duration) bool {
	return s.Outage > 0 && t >= s.OutageAt && t <= s.OutageAt+s.Outage
}

// decide is retry.Policy.Decide for a transient failure. A Gaussian draw is a
// number around the middle, three standard deviations from either end.
func (c Client) decide(t *task, now time.Duration, d *draws) retry.Decision {
	random := d.Float64()
	if c.Gauss {
		random = 0.5 + d.NormFloat64()/6
	}
	return c.Retry.Decide(retry.FailedRun{
		Attempt:       t.calls,
		FirstFailedAt: clock(t.failedAt),
		Now:           clock(now),
		Ran:           now - t.calledAt,
		PrevDelay:     t.delay,
		Verdict:       classify.Verdict{Class: classify.ClassTransient},
	}, random)
}

// clock is the time of day at a point of virtual time.
func clock(t time.Duration) time.Time { return time.Unix(0, 0).UTC().Add(t) }
