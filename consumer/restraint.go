package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// Restraint says how a Consumer spares what its handlers depend on when that
// fails. The zero value protects it: with a budget for retries, a breaker, and
// a stop when most messages are poison.
//
// All topics of a Consumer share its restraint. Topics that depend on
// different things belong to different Consumers, so that the failure of one
// does not stop the other; Consumers that depend on the same thing share one
// Budget and one Breaker.
//
// Waiting is not an attempt, and neither is the failure of a probe, by which a
// breaker finds out whether an outage is over. Nothing here drops a message, or
// dead-letters one unless DeadLetterBeyond says so.
type Restraint struct {
	// Budget paces retries: it moves them to a later time when they would be
	// more than their share of the deliveries. Nil means a budget of this
	// Consumer's own with budget.Queue: 10 % of the deliveries and 1/s.
	Budget Budget

	// NoBudget lets failures be retried however many there are.
	NoBudget bool

	// DeadLetterBeyond dead-letters a message, with the reason "budget",
	// instead of delaying its retry by more than this on behalf of the
	// budget. 0 means never.
	DeadLetterBeyond time.Duration

	// Breaker stops receiving while most runs fail, and at once after a
	// failure of the environment; then it lets single messages through to
	// find out when that is over. What was received before waits in the
	// process. A failure of the class "throttled" that says when to come back
	// stops receiving until then, with or without a breaker, unless
	// NoThrottle is set. Nil means one of this Consumer's own with the zero
	// breaker.Config, but that a probe may take as long as the longest
	// HandlerTimeout: see to that yourself (breaker.Config.Lease) in one that
	// you make. What others do to that is seen within a second.
	Breaker *breaker.Breaker

	// NoBreaker goes on receiving whatever fails.
	NoBreaker bool

	// NoThrottle goes on with other messages when one failed with the class
	// "throttled" and a time to come back. That is right where a dependency
	// limits each customer apart, not the worker.
	NoThrottle bool

	// NoPoisonStop goes on when at least half of the messages of a minute, and
	// at least 20, are poison, as after a faulty deployment. Otherwise the
	// Consumer stops receiving for a minute or longer, and then tries single
	// messages.
	NoPoisonStop bool

	// Adaptive lowers the number of handlers that run at once when they are
	// throttled or take twice as long as usual, and raises it again, up to
	// Config.Concurrency, as they succeed.
	Adaptive bool
}

// Budget paces the retries to one dependency; *budget.Budget is one, and so is
// that of package redisbudget for a fleet. Its methods may be called at the
// same time.
type Budget interface {
	// Reserve returns when to start a retry that is due at due: then or later.
	Reserve(now, due time.Time) time.Time

	// Refund gives back the time of a retry that will not run.
	Refund(now, slot time.Time)

	// Delivered counts messages that were delivered for the first time.
	Delivered(now time.Time, n int)
}

func (r Restraint) faults() error {
	faults := []error{
		below("Config.Restraint.DeadLetterBeyond", r.DeadLetterBeyond, 0, "use a positive duration, or 0 for never"),
	}
	if r.NoBudget && r.Budget != nil {
		faults = append(faults, &ConfigError{"Config.Restraint.NoBudget", "is set beside a Budget", "set one of them"})
	}
	if r.NoBudget && r.DeadLetterBeyond > 0 {
		faults = append(faults, &ConfigError{"Config.Restraint.DeadLetterBeyond", "there is no budget", "remove it or NoBudget"})
	}
	if r.NoBreaker && r.Breaker != nil {
		faults = append(faults, &ConfigError{"Config.Restraint.NoBreaker", "is set beside a Breaker", "set one of them"})
	}
	return errors.Join(faults...)
}

// withDefaults makes the budget, if it is unset and not switched off.
func (r Restraint) withDefaults() Restraint {
	if r.Budget == nil && !r.NoBudget {
		r.Budget = must(budget.New(budget.Queue()))
	}
	return r
}

// gate makes the breakers that are unset and not switched off, for handlers
// that run for up to timeout.
func (r Restraint) gate(timeout time.Duration, random func() float64) *gate {
	g := &gate{breaker: r.Breaker, random: random}
	if g.breaker == nil && !r.NoBreaker {
		g.breaker = must(breaker.New(breaker.Config{Lease: timeout}))
	}
	if !r.NoPoisonStop {
		g.poison = must(breaker.New(breaker.Config{MinRuns: 20, Ratio: 0.5, Window: time.Minute, MinOpen: time.Minute, Lease: timeout}))
	}
	return g
}

// must returns what a preset makes, which is valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("consumer: a preset is not valid: %v", err))
	}
	return v
}
