package retry

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/settings"
)

const (
	defaultMaxAttempts      = 10
	defaultMaxAge           = 24 * time.Hour
	defaultMaxRetryAfter    = 15 * time.Minute
	defaultFreeThrottles    = 5
	defaultEnvironmentDelay = time.Minute
)

// Policy says how often, how long and how far apart a message is tried. It is
// a plain value, safe to copy and to share; its zero value suits a queue, and
// what is unset means something shorter in [Do].
//
// [Policy.Validate] finds settings that cannot be meant. [Policy.Decide] takes a
// policy as it comes: there, a refused value counts as unset.
type Policy struct {
	// MaxAttempts is how many counted runs a message gets, the first included.
	// A verdict may ask for fewer, never for more. Zero means 10.
	MaxAttempts int
	// MaxAge is how long after its first failure a message may still be
	// retried. A retry that would not be over by then is not begun; the time
	// it takes is taken to be that of the run before. Zero means 24 hours.
	MaxAge time.Duration
	// Backoff is the delay between attempts.
	Backoff Backoff
	// MaxRetryAfter is the longest delay that a server's hint may cause, and
	// the longest delay of a throttled message altogether. Zero means 15
	// minutes.
	MaxRetryAfter time.Duration
	// FreeThrottles is how many throttled runs of a message go uncounted. Zero
	// means 5; settings.None counts all.
	FreeThrottles int
	// EnvironmentDelay is the longest delay after a failure of the environment
	// (bad credentials, a full disk), which is never counted; the shortest is
	// half of it. Zero means 1 minute.
	EnvironmentDelay time.Duration
}

// inline fills what is unset with the defaults of Do.
func (p Policy) inline() Policy {
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 3)
	p.MaxAge = cmp.Or(p.MaxAge, time.Minute)
	p.MaxRetryAfter = cmp.Or(p.MaxRetryAfter, 2*time.Second)
	p.EnvironmentDelay = cmp.Or(p.EnvironmentDelay, 2*time.Second)
	p.Backoff.Base = cmp.Or(p.Backoff.Base, 100*time.Millisecond)
	p.Backoff.Cap = cmp.Or(p.Backoff.Cap, 2*time.Second)
	p.FreeThrottles = settings.None
	return p
}

// Validate returns nil if the policy can be used as it is, otherwise every
// fault at once, joined, each a *settings.Error: the field, its value and
// what to write instead. Unset fields are valid, and are compared with others by
// their default.
func (p Policy) Validate() error {
	return errors.Join(p.rangeFaults(), p.conflictFaults())
}

func (p Policy) rangeFaults() error {
	const (
		count    = "use 1 or more, or 0 for the default of %v"
		duration = "use a positive duration, or 0 for the default of %v"
		factor   = "use a finite number of at least 1, or 0 for the default of %v"
	)
	b := p.Backoff
	return errors.Join(
		refuse(p.MaxAttempts < 0, "MaxAttempts", p.MaxAttempts, count, defaultMaxAttempts),
		refuse(p.MaxAge < 0, "MaxAge", p.MaxAge, duration, defaultMaxAge),
		refuse(p.MaxRetryAfter < 0, "MaxRetryAfter", p.MaxRetryAfter, duration, defaultMaxRetryAfter),
		refuse(p.EnvironmentDelay < 0, "EnvironmentDelay", p.EnvironmentDelay, duration, defaultEnvironmentDelay),
		refuse(b.Base < 0, "Backoff.Base", b.Base, duration, defaultBase),
		refuse(b.Cap < 0, "Backoff.Cap", b.Cap, duration, defaultCap),
		refuse(b.Floor < 0, "Backoff.Floor", b.Floor, "use a positive duration, or %v for none", 0),
		refuse(b.Multiplier != 0 && !validMultiplier(b.Multiplier), "Backoff.Multiplier", b.Multiplier, factor, defaultMultiplier),
		refuse(b.Step < 0, "Backoff.Step", b.Step, "use a positive duration, or %v for none", 0),
		refuse(b.Jitter > NoJitter, "Backoff.Jitter", b.Jitter, "use FullJitter, EqualJitter, DecorrelatedJitter or NoJitter (%v)", NoJitter),
	)
}

// conflictFaults compares fields with each other. A field that is out of range
// takes part with its default, so that one mistake is reported once.
func (p Policy) conflictFaults() error {
	floor, multiplier := p.Backoff.Floor, p.Backoff.Multiplier
	p = p.withDefaults()
	b := p.Backoff
	return errors.Join(
		refuse(b.Step > 0 && validMultiplier(multiplier), "Backoff.Step", b.Step, "set it or Backoff.Multiplier (%v), not both", multiplier),
		refuse(b.Cap < b.Base, "Backoff.Cap", b.Cap, "use at least Backoff.Base (%v)", b.Base),
		refuse(floor > b.Cap, "Backoff.Floor", floor, "use at most Backoff.Cap (%v)", b.Cap),
		refuse(b.Floor >= p.MaxAge, "Backoff.Floor", floor, "use less than MaxAge (%v), or no retry ever starts", p.MaxAge),
	)
}

// refuse returns a fault if bad; fix is a format for limit. Being generic, it
// allocates nothing for the fields that are right.
func refuse[V, L any](bad bool, field string, value V, fix string, limit L) error {
	if !bad {
		return nil
	}
	return &settings.Error{Package: "retry", Field: "Policy." + field, Problem: fmt.Sprintf("is %v", value), Fix: fmt.Sprintf(fix, limit)}
}

func (p Policy) withDefaults() Policy {
	if p.MaxAttempts <= 0 {
		p.MaxAttempts = defaultMaxAttempts
	}
	if p.MaxAge <= 0 {
		p.MaxAge = defaultMaxAge
	}
	if p.MaxRetryAfter <= 0 {
		p.MaxRetryAfter = defaultMaxRetryAfter
	}
	if p.FreeThrottles == 0 {
		p.FreeThrottles = defaultFreeThrottles
	}
	if p.EnvironmentDelay <= 0 {
		p.EnvironmentDelay = defaultEnvironmentDelay
	}
	p.Backoff = p.Backoff.withDefaults()
	return p
}

// HintLimit returns MaxRetryAfter, its default filled in.
func (p Policy) HintLimit() time.Duration { return p.withDefaults().MaxRetryAfter }

// Limits returns what the policy asks of a broker at most, defaults filled in:
// the counted runs of a message, the longest delay before a retry, and the time
// between the first failure and the end of the last run.
func (p Policy) Limits() (attempts int, delay, age time.Duration) {
	p = p.withDefaults()
	return p.MaxAttempts, max(p.Backoff.Cap, p.MaxRetryAfter, p.EnvironmentDelay), p.MaxAge
}
