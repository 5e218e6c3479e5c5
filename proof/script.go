package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// outcome is how a handler run ends.
type outcome uint8

const (
	okay     outcome = iota
	refusing         // a connection is refused: transient
	marked           // marked as transient by hand
	throttled
	permanent
	undecodable
	broken // the environment
	baffling
	panicking
	exiting     // runtime.Goexit
	joined      // a transient and a poisonous error: transient wins
	condemned   // a transient error and one marked as permanent: the mark wins
	spoiling    // fails the whole batch that the message is in
	skipping    // marked to be forgotten
	interrupted // the handler obeyed its context
	outcomes
)

var outcomeNames = [...]string{"ok", "connection refused", "marked transient", "throttled", "permanent", "undecodable",
	"environment", "unknown error", "panic", "goexit", "joined transient", "joined permanent", "spoilt batch", "skip", "interrupted"}

var (
	errRefused  = fmt.Errorf("charge card: %w", syscall.ECONNREFUSED)
	errSpace    = fmt.Errorf("write receipt: %w", syscall.ENOSPC)
	errBaffling = errors.New("the flux is out of range")
	errJoined   = errors.Join(&http.MaxBytesError{Limit: 1}, errRefused)
	errDeclined = errors.New("card declined")
	errSpoilt   = errors.New("bulk insert: a row violates a constraint")
)

// perform ends a handler run as o says.
func (o outcome) perform(ctx context.Context, hint time.Duration) error {
	switch o {
	case refusing:
		return errRefused
	case marked:
		return fmt.Errorf("book: %w", classify.Transient(errBaffling))
	case throttled:
		return classify.Throttled(errRefused, hint)
	case permanent:
		return classify.Permanent(errDeclined)
	case undecodable:
		return classify.Undecodable(errBaffling)
	case broken:
		return errSpace
	case baffling:
		return errBaffling
	case panicking:
		panic("index out of range")
	case exiting:
		runtime.Goexit()
	case joined:
		return errJoined
	case condemned:
		return errors.Join(errRefused, classify.Permanent(errDeclined))
	case spoiling:
		return errSpoilt
	case skipping:
		return classify.Skip(errDeclined)
	case interrupted:
		return fmt.Errorf("wait for the answer: %w", ctx.Err())
	}
	return nil
}

// class is what a failed run means, as the documentation of classify and
// consumer has it; the checker does not ask their code.
type class struct {
	name   string
	limit  int    // of counted runs, 0 leaves it to the policy
	reason string // of the dead letter
}

var (
	classTransient   = class{"transient", 0, "exhausted"}
	classThrottled   = class{"throttled", 0, "exhausted"}
	classEnvironment = class{"environment", 0, "exhausted"}
	classPoison      = class{"poison", 1, "poison"}
	classUndecodable = class{"poison", 1, "undecodable"}
	classPanic       = class{"poison", 2, "panic"}
	classUnknown     = class{"unknown", 6, "unclassified"}
	classTimeout     = class{"transient", 5, "timeout"}
	classShutdown    = class{name: "shutdown"}
	classLost        = class{name: "lost"}
)

// of is the class of a run that ended with o when its context had ended with c.
func (o outcome) class(c cause) class {
	if c == lost {
		return classLost
	}
	switch o { // what the handler says by a mark is believed whatever else happens
	case marked:
		return classTransient
	case throttled:
		return classThrottled
	case permanent, condemned:
		return classPoison
	case undecodable:
		return classUndecodable
	}
	switch c {
	case shutDown:
		return classShutdown
	case timedOut:
		return classTimeout
	}
	switch o {
	case refusing, joined:
		return classTransient
	case broken:
		return classEnvironment
	case panicking:
		return classPanic
	}
	return classUnknown
}

// step is one handler run of a script.
type step struct {
	outcome outcome
	works   time.Duration // before it ends
	hint    time.Duration // of throttled
	deaf    bool          // ignores its context
	kills   bool          // takes its worker with it
	fatal   bool          // kills the worker process, whenever it is run
	outage  bool          // the outcome is broken while the outage lasts, then okay
	hangs   bool          // until its context ends
}

// ambiguous reports whether the run may have had its effect.
func (c class) ambiguous() bool { return c == classTimeout || c == classPanic }

// whole reports whether the members of a batch that all failed with c run again
// in parts.
func (c class) whole() bool {
	return c.name == "poison" || c.name == "transient" || c.name == "unknown"
}

// severe reports whether c counts twice against the dependency.
func (c class) severe() bool {
	return c == classEnvironment || c == classThrottled || c == classTimeout
}

// bounds are the shortest and the longest delay that may follow a run with
// this class; attempt counts as retry.Run has it.
func (c class) bounds(p retry.Policy, attempt, throttles int, hint time.Duration) (low, high time.Duration) {
	b := p.Backoff
	b.Base, b.Cap = or(b.Base, time.Second), or(b.Cap, 15*time.Minute)
	longest := or(p.MaxRetryAfter, 15*time.Minute)
	switch c {
	case classEnvironment:
		high = or(p.EnvironmentDelay, time.Minute)
		return high / 2, high
	case classThrottled:
		b.Cap = min(b.Cap, longest)
		attempt += throttles
	}
	low, high = backoffBounds(b, attempt)
	if c != classThrottled || hint <= 0 {
		return low, high
	}
	spread := min(min(hint, longest)/10, 5*time.Second)
	if hint > longest {
		hint = longest - spread
	}
	return max(low, hint), min(max(high, hint)+spread, max(longest, high))
}

func backoffBounds(b retry.Backoff, attempt int) (low, high time.Duration) {
	const rounding = time.Microsecond
	floor := min(b.Floor, b.Cap)
	if b.Jitter == retry.DecorrelatedJitter {
		return min(max(b.Base, floor), b.Cap), b.Cap
	}
	high = b.Base
	for range attempt - 1 {
		if b.Step > 0 {
			high += b.Step
		} else {
			high = time.Duration(float64(high) * or(b.Multiplier, 2))
		}
		if high >= b.Cap {
			break
		}
	}
	high = min(high, b.Cap)
	switch b.Jitter {
	case retry.EqualJitter:
		low = high / 2
	case retry.NoJitter:
		low = high
	}
	return max(low-rounding, floor, 0), max(high+rounding, floor)
}

func or[T comparable](value, unset T) T {
	var zero T
	if value == zero {
		return unset
	}
	return value
}
