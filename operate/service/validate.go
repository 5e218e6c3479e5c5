package service

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redrive-go/redrive/retry"
)

// Names of backoffs and jitters in a [Policy].
const (
	Exponential = "EXPONENTIAL"
	Linear      = "LINEAR"
	Fixed       = "FIXED"

	FullJitter         = "FULL"
	EqualJitter        = "EQUAL"
	DecorrelatedJitter = "DECORRELATED"
	NoJitter           = "NONE"
)

// Limits of a policy. What is beyond them is a mistake in a unit.
const (
	mostAttempts   = 100
	mostDelay      = 7 * 24 * time.Hour
	mostBudget     = 30 * 24 * time.Hour
	leastVisible   = time.Second
	mostVisible    = time.Hour
	mostMultiplier = 100
	mostCodes      = 100
)

// PolicyError is all that is wrong with a policy.
type PolicyError struct {
	PolicyID string
	Faults   []FieldFault
}

// FieldFault is what is wrong with one field, by its name in the API.
type FieldFault struct {
	Field   string // such as "maxDelayMs"
	Problem string // such as "is -1"
	Fix     string // what to write instead
}

// String is the fault in a sentence: the field, its problem and what to write.
func (f FieldFault) String() string { return f.Field + " " + f.Problem + ": " + f.Fix }

// Error lists every fault.
func (e *PolicyError) Error() string {
	all := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		all[i] = f.String()
	}
	return fmt.Sprintf("policy %.200q cannot be used: %s", e.PolicyID, strings.Join(all, "; "))
}

// WithDefaults fills what is unset: exponential backoff from 1 s, doubled up to 15
// minutes, with full jitter; 10 attempts within 24 hours; a minute for each.
func (p Policy) WithDefaults() Policy {
	p.Backoff = cmp.Or(p.Backoff, Exponential)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 10)
	p.InitialDelayMs = cmp.Or(p.InitialDelayMs, 1000)
	if p.Backoff == Exponential {
		p.Multiplier = cmp.Or(p.Multiplier, 2)
	}
	p.MaxDelayMs = cmp.Or(p.MaxDelayMs, max(p.InitialDelayMs, (15*time.Minute).Milliseconds()))
	p.TotalBudgetMs = cmp.Or(p.TotalBudgetMs, (24 * time.Hour).Milliseconds())
	p.JitterType = cmp.Or(p.JitterType, FullJitter)
	p.VisibilityTimeoutMs = cmp.Or(p.VisibilityTimeoutMs, time.Minute.Milliseconds())
	return p
}

// Validate returns nil if p can be used as it is, and otherwise a [*PolicyError].
// Nothing may be unset: see [Policy.WithDefaults].
func (p Policy) Validate() error {
	v := &validation{}
	v.words(p)
	v.ranges(p)
	v.codes(p.RetryableStatusCodes)
	if len(v.faults) == 0 { // what is out of range says nothing about others
		v.conflicts(p)
	}
	if len(v.faults) == 0 {
		return nil
	}
	return &PolicyError{PolicyID: p.ID, Faults: v.faults}
}

type validation struct{ faults []FieldFault }

func (v *validation) refuse(bad bool, field string, value any, fix string, args ...any) {
	if !bad {
		return
	}
	problem := fmt.Sprintf("is %v", value)
	if s, ok := value.(string); ok {
		problem = fmt.Sprintf("is %.40q", s)
	}
	v.faults = append(v.faults, FieldFault{field, problem, fmt.Sprintf(fix, args...)})
}

func (v *validation) words(p Policy) {
	_, known := jitters[p.JitterType]
	v.refuse(p.Backoff != Exponential && p.Backoff != Linear && p.Backoff != Fixed,
		"backoff", p.Backoff, "use %s, %s or %s", Exponential, Linear, Fixed)
	v.refuse(!known, "jitterType", p.JitterType, "use %s, %s, %s or %s", FullJitter, EqualJitter, DecorrelatedJitter, NoJitter)
}

func (v *validation) ranges(p Policy) {
	span := func(field string, ms int64, least, most time.Duration) {
		v.refuse(ms < least.Milliseconds() || ms > most.Milliseconds(), field, ms,
			"use %d to %d milliseconds (%v)", least.Milliseconds(), most.Milliseconds(), most)
	}
	v.refuse(p.MaxAttempts < 1 || p.MaxAttempts > mostAttempts, "maxAttempts", p.MaxAttempts, "use 1 to %d, the first included", mostAttempts)
	span("initialDelayMs", p.InitialDelayMs, time.Millisecond, mostDelay)
	span("maxDelayMs", p.MaxDelayMs, time.Millisecond, mostDelay)
	span("totalBudgetMs", p.TotalBudgetMs, time.Millisecond, mostBudget)
	span("visibilityTimeoutMs", p.VisibilityTimeoutMs, leastVisible, mostVisible)
	if p.Backoff == Exponential {
		v.refuse(!(p.Multiplier >= 1 && p.Multiplier <= mostMultiplier), "multiplier", p.Multiplier, "use 1 to %d", mostMultiplier)
	}
}

func (v *validation) codes(codes []int) {
	v.refuse(len(codes) > mostCodes, "retryableStatusCodes", fmt.Sprintf("%d codes long", len(codes)), "name at most %d", mostCodes)
	for _, code := range codes[:min(len(codes), mostCodes)] {
		switch {
		case code == 400:
			v.refuse(true, "retryableStatusCodes", code, "leave it out: a bad request stays one")
		case code < 300 || code > 599:
			v.refuse(true, "retryableStatusCodes", code, "use codes from 300 to 599: the others are no failures")
		}
	}
}

func (v *validation) conflicts(p Policy) {
	v.refuse(p.Backoff != Exponential && p.Multiplier != 0, "multiplier", p.Multiplier, "leave it out: backoff is %s", p.Backoff)
	v.refuse(p.Backoff != Exponential && p.JitterType == DecorrelatedJitter, "jitterType", p.JitterType,
		"use another, or backoff %s: it grows by itself, and %s says not to", Exponential, p.Backoff)
	v.refuse(p.InitialDelayMs > p.MaxDelayMs, "initialDelayMs", p.InitialDelayMs, "use at most maxDelayMs (%d)", p.MaxDelayMs)
	v.refuse(p.MaxAttempts > 1 && p.InitialDelayMs >= p.TotalBudgetMs, "initialDelayMs", p.InitialDelayMs,
		"use less than totalBudgetMs (%d), or no second attempt is ever made", p.TotalBudgetMs)
}

var jitters = map[string]retry.Jitter{
	FullJitter: retry.FullJitter, EqualJitter: retry.EqualJitter, DecorrelatedJitter: retry.DecorrelatedJitter, NoJitter: retry.NoJitter,
}

// leastHint is the longest Retry-After that is obeyed with short delays.
const leastHint = 15 * time.Minute

// Retry returns p, which must be valid, as the policy of package retry that it
// stands for. Its MaxAge is the total budget, and counts from the creation of the
// task; a Retry-After is obeyed up to 15 minutes, or maxDelayMs if that is longer, and
// an attempt that was answered with one counts.
func (p Policy) Retry() retry.Policy {
	base, most := millis(p.InitialDelayMs), millis(p.MaxDelayMs)
	b := retry.Backoff{Base: base, Cap: most, Multiplier: 1, Jitter: jitters[p.JitterType]}
	switch p.Backoff {
	case Exponential:
		b.Multiplier = p.Multiplier
	case Linear:
		b.Multiplier, b.Step = 0, base
	}
	return retry.Policy{
		MaxAttempts:   p.MaxAttempts,
		MaxAge:        millis(p.TotalBudgetMs),
		Backoff:       b,
		MaxRetryAfter: max(most, leastHint),
		FreeThrottles: -1,
	}
}

// millis is a number of milliseconds, as far as a Duration reaches.
func millis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}
