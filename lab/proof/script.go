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
	case panicking:
		panic("index out of range")
	case exiting:
		runtime.Goexit()
	case interrupted:
		return fmt.Errorf("wait for the answer: %w", ctx.Err())
	}
	return o.err(hint)
}

// err is the error that o returns, or what stands for its end.
func (o outcome) err(hint time.Duration) error {
	switch o {
	case okay:
		return nil
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
	case panicking:
		return &classify.PanicError{}
	case joined:
		return errJoined
	case condemned:
		return errors.Join(errRefused, classify.Permanent(errDeclined))
	case spoiling:
		return errSpoilt
	case skipping:
		return classify.Skip(errDeclined)
	}
	return errBaffling
}

// verdict is what a worker is to make of a run that ended with o when its context
// had ended with why. A handler that says what the failure is, is believed.
func (o outcome) verdict(why cause, hint time.Duration) classify.Verdict {
	err := o.err(hint)
	switch {
	case why == lost:
		return classify.Verdict{Class: classify.ClassLost}
	case why == shutDown && o != marked && o != throttled && o != permanent && o != condemned && o != undecodable:
		return classify.Verdict{Class: classify.ClassShutdown}
	case why == timedOut:
		return classify.Of(errors.Join(classify.ErrAttemptTimeout, err))
	}
	return classify.Of(err)
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

func or[T comparable](value, unset T) T {
	var zero T
	if value == zero {
		return unset
	}
	return value
}
