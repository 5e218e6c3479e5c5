package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// Do runs fn until it succeeds, and between failures waits as p says. It
// returns nil as soon as fn does. Use it for calls inside a process, where
// somebody holds a connection or a handler slot meanwhile. So what is unset in p
// means less than for a queue: 3 attempts, 100 ms base, 2 s cap; a broken
// environment is given 1 to 2 s, a hint longer than 2 s is not waited for, and no
// attempt is begun that would not be over within 1 minute.
//
// Errors are classified by rules and [classify.Of], and judged by
// [Policy.Decide], with these differences:
//
//   - every run counts, so that fn runs MaxAttempts times at most, throttled
//     or not;
//   - MaxAge counts from the call of Do;
//   - a hint longer than MaxRetryAfter ends the call, since coming back sooner
//     than asked would only fail again;
//   - so does a delay that ctx's deadline does not leave room for.
//
// Poison, a skip, a shutdown or a lost lease end the call at once.
//
// The error says how many attempts were made in how long and why there are no
// more, and wraps the last error of fn, so that [classify.Of] judges it alike
// and a handler can pass it on. If ctx ended, it wraps the cause too. A policy
// that [Policy.Validate] refuses, or a ctx that has ended already, is an error
// without any run.
//
// Do does not interrupt fn, which has to watch its context, and does not
// recover its panics.
func (p Policy) Do(ctx context.Context, fn func(context.Context) error, rules ...classify.Rule) error {
	p = p.inline()
	if err := p.Validate(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("retry: not started: %w", context.Cause(ctx))
	}
	p = p.withDefaults()
	f := FailedRun{FirstFailedAt: time.Now()}
	for {
		began := time.Now()
		err := fn(ctx)
		if err == nil {
			return nil
		}
		f.Attempt++
		f.Now = time.Now()
		f.Ran = f.Now.Sub(began)
		f.Verdict = classify.Of(err, rules...)
		d := p.Decide(f, rand.Float64())
		if why := p.refuseToWait(ctx, f, d); why != "" {
			return giveUp(ctx, f, why, err)
		}
		if !wait(ctx, d.Delay) {
			f.Now = time.Now()
			return giveUp(ctx, f, "", err)
		}
		f.PrevDelay = d.Delay
	}
}

// refuseToWait says in words why Do should not wait for another attempt, or
// returns "" if it should.
func (p Policy) refuseToWait(ctx context.Context, f FailedRun, d Decision) string {
	deadline, hasDeadline := ctx.Deadline()
	switch {
	case d.DeadLetter && d.Reason == reasonExpired:
		return fmt.Sprintf("another one would end after MaxAge (%v)", p.MaxAge)
	case d.DeadLetter && f.Verdict.Class == classify.ClassPoison:
		return "another one cannot succeed"
	case d.DeadLetter, d.Retry && f.Attempt >= p.MaxAttempts:
		return "no attempts left"
	case !d.Retry:
		return d.Reason
	case f.Verdict.RetryAfter > p.MaxRetryAfter:
		return fmt.Sprintf("asked to wait %v, longer than MaxRetryAfter (%v)", f.Verdict.RetryAfter, p.MaxRetryAfter)
	case hasDeadline && !f.Now.Add(d.Delay).Before(deadline):
		return fmt.Sprintf("the next one is due in %v, but the context ends in %v",
			readable(d.Delay), readable(deadline.Sub(f.Now)))
	}
	return ""
}

// wait reports whether it lasted for all of d, rather than until ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// giveUp makes Do's error. If ctx has ended, that is the reason, whatever why
// says.
func giveUp(ctx context.Context, f FailedRun, why string, last error) error {
	e := &stopError{attempts: f.Attempt, took: f.Now.Sub(f.FirstFailedAt), why: why, wrapped: []error{last}}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		e.why = cause.Error()
		e.wrapped = append(e.wrapped, cause)
	}
	return e
}

// stopError is the error of a Do that ran fn and gave up.
type stopError struct {
	attempts int
	took     time.Duration
	why      string
	wrapped  []error // the last error of fn and, if the context ended, its cause
}

func (e *stopError) Error() string {
	noun := "attempts"
	if e.attempts == 1 {
		noun = "attempt"
	}
	return fmt.Sprintf("retry: gave up after %d %s in %v (%s): %v", e.attempts, noun, readable(e.took), e.why, e.wrapped[0])
}

func (e *stopError) Unwrap() []error { return e.wrapped }

// readable drops the digits of d that nobody reads.
func readable(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
