package classify

import (
	"cmp"
	"fmt"
	"time"
)

// markRule is how the names of the marks begin in Verdict.Rule.
const markRule = "mark: "

// mark is an error with a word of the handler about it.
type mark struct {
	cause error
	name  string // the constructor
	found finding
}

func (m *mark) Error() string { return m.cause.Error() }

func (m *mark) Unwrap() error { return m.cause }

func newMark(cause error, name string, f finding) error {
	if cause == nil {
		return nil
	}
	return &mark{cause: cause, name: name, found: f}
}

// Permanent marks err as poison: the message becomes a dead letter without
// another run. nil stays nil.
func Permanent(err error) error {
	return newMark(err, "Permanent", finding{rankMark, Verdict{Class: ClassPoison, Rule: "mark: permanent"}})
}

// Transient marks err as worth a retry, whatever it looks like. nil stays nil.
func Transient(err error) error {
	return newMark(err, "Transient", finding{rankMark, Verdict{Class: ClassTransient, Rule: "mark: transient"}})
}

// RetryAfter marks err as one after which this message, and no other, has to wait
// for d, within the policy's MaxRetryAfter. The run counts. Its class is
// transient, and without a positive d it is as good as [Transient]. For a
// dependency that asks its callers to wait there is [Throttled]. nil stays nil.
func RetryAfter(err error, d time.Duration) error {
	return newMark(err, "RetryAfter", finding{rankMark, Verdict{Class: ClassTransient, RetryAfter: max(d, 0), Rule: "mark: retry after"}})
}

// Throttled marks err as the answer of a dependency that limits its callers and
// asked to come back after d, as HTTP status 429 does. If d is not positive, it
// named no time. The first few such runs of a message are not counted. nil stays
// nil.
func Throttled(err error, d time.Duration) error {
	return newMark(err, "Throttled", finding{rankMark, Verdict{Class: ClassThrottled, RetryAfter: max(d, 0), Rule: "mark: throttled"}})
}

// Defer marks err as one that says nothing against the message nor about what
// handlers depend on: another worker is at it, say. It is run again after d, or
// after the first delay of the policy if d is not positive, and that is never
// counted: only the policy's MaxAge ends it. Its class is transient. nil stays
// nil.
func Defer(err error, d time.Duration) error {
	return newMark(err, "Defer", finding{rankMark, Verdict{Class: ClassTransient, Deferred: true, RetryAfter: max(d, 0), Rule: "mark: defer"}})
}

// Skip marks err as a reason to forget the message: it is acked, and leaves
// neither a retry nor a dead letter. Its class is skipped. nil stays nil.
func Skip(err error) error {
	return newMark(err, "Skip", finding{rankMark, Verdict{Class: ClassSkipped, Rule: "mark: skip"}})
}

// With marks err with a whole verdict, for what the other marks cannot say, such
// as MaxAttempts or Reason. A class that is not on the list becomes
// [ClassUnknown]. An empty Code and RetryAfter are filled from err, and what is
// ambiguous in err stays so. To change one thing about a verdict, start with
// what [Of] says. nil stays nil.
func With(err error, v Verdict) error {
	v.Rule = cmp.Or(v.Rule, markRule+"with")
	return newMark(err, "With", finding{rankMark, v.finish()})
}

// Undecodable marks err as a failure to decode the message itself: poison, with
// the reason "undecodable". It gives way to a mark inside err, so that a
// decoder which asks a schema registry can return [Transient]. nil stays nil.
func Undecodable(err error) error {
	return newMark(err, "Undecodable", finding{rankDecode, Verdict{Class: ClassPoison, Reason: "undecodable", Rule: "undecodable"}})
}

// PanicError is a panic that was recovered from a handler. It is unknown, because a
// race, a bug or the reply of a dependency may have caused it, and ambiguous.
type PanicError struct {
	// Value is what recover returned.
	Value any
	// Stack is the stack of the panicking goroutine, as debug.Stack prints it.
	Stack []byte
}

// Error returns the panic's value without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func (e *PanicError) finding() *finding {
	return &finding{rankPanic, Verdict{Class: ClassUnknown, Ambiguous: true, MaxAttempts: runsUnknown, Reason: "panic", Rule: "panic"}}
}
