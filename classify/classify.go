// Package classify says what kind of failure an error is, so that a retry
// policy can tell a message that will never work from a server that is down.
//
// Guarantees:
//
//   - [Of] is pure and total: every non-nil error gets exactly one of the eight
//     classes, without I/O, clock or shared state. Errors whose methods panic,
//     and trees that are cyclic or huge, harm nobody: what cannot be read counts
//     as unknown.
//   - What the handler says wins. A mark ([Permanent], [Transient],
//     [RetryAfter], [Throttled], [Defer], [Skip], [With]) decides, through any
//     number of %w, over everything that it wraps.
//   - Marks keep their cause: its text is unchanged, and errors.Is and errors.As
//     find it. Its code, its ambiguity and a server's hint stay in the verdict,
//     unless the mark has a hint of its own.
//   - A joined error is poison only if nothing in it is worth a retry, because a
//     wrong dead letter costs more than a wrong retry. Only a mark overrides that.
//   - A parse error is poison only where the message itself was decoded
//     ([Undecodable]). Elsewhere it may come from the reply of a dependency.
//
// Not promised: that the text of a Rule or of [Explain] stays the same between
// versions, and that an unknown error is harmless to repeat. Errors of gRPC,
// MySQL, Kafka and AMQP need rules of their own, since their codes cannot be
// read without importing them.
//
// # Order of the rules
//
// In one chain of wrapped errors the first of these that hits decides:
//
//  1. the outermost mark
//  2. [Undecodable], then [*PanicError], then [ErrAttemptTimeout]
//  3. the [Rule] functions of the caller, asked with the whole error
//  4. the methods Deferred() bool, RetryAfter() time.Duration and
//     RetryableError() bool
//  5. service codes, SQLSTATE, Redis replies and the like, then HTTP status
//  6. contexts, DNS, TLS, errno and sentinel errors of the standard library
//  7. Timeout() bool, then Temporary() bool
//
// Where an error splits into several, the branches merge in this order: a mark
// first, then ErrAttemptTimeout, then throttled with the longest hint,
// environment, transient, unknown, poison. Of two with the same class one that
// counts goes before one that is deferred.
package classify

import (
	"errors"
	"time"
)

// Classes are kinds of failures. The list is closed; the text is what goes on the
// wire.
const (
	// ClassPoison is the message's own fault: no repetition can help.
	ClassPoison = "poison"
	// ClassTransient is likely to pass by itself.
	ClassTransient = "transient"
	// ClassThrottled is a server that asks to come back later.
	ClassThrottled = "throttled"
	// ClassEnvironment is a fault of configuration, rights or local resources:
	// every message fails the same way until somebody repairs it.
	ClassEnvironment = "environment"
	// ClassShutdown is work that was cut off because the worker stops.
	ClassShutdown = "shutdown"
	// ClassLost is a delivery that belongs to somebody else by now.
	ClassLost = "lost"
	// ClassSkipped is no failure: the handler wants the message acked and forgotten.
	ClassSkipped = "skipped"
	// ClassUnknown is everything that no rule recognises.
	ClassUnknown = "unknown"
)

// Verdict is what is known about an error. The zero value is the verdict on
// nil.
type Verdict struct {
	// Class is one of the eight classes, empty only for nil.
	Class string
	// Ambiguous reports that the failed call may have had its effect: the
	// request was sent, and the answer did not arrive or does not tell.
	Ambiguous bool
	// RetryAfter is how long a server or a mark asks to wait, at most a year.
	// 0 means no hint.
	RetryAfter time.Duration
	// MaxAttempts caps how often the handler runs for this message in total,
	// the first run included. 0 leaves it to the policy.
	MaxAttempts int
	// Deferred reports that the run is to be repeated later and not counted,
	// however often.
	Deferred bool
	// Reason is one word for the dead letter if this verdict ends the message,
	// such as "undecodable", "panic", "timeout", "validation" or
	// "unclassified". Empty leaves it to the policy.
	Reason string
	// Rule names the rule that hit, for people: "mark: permanent",
	// "http status 503", "errno ECONNREFUSED".
	Rule string
	// Code is the short code of the error if it has one: "503", "40001",
	// "ECONNREFUSED", "ThrottlingException".
	Code string
}

// A Rule judges errors that its author knows better than this package. It gets
// the whole error, and returns it with a mark, such as [Permanent] or [With], as
// a handler would. nil leaves the error to the next rule, and so does an error
// without a mark. A Rule that panics makes the error unknown.
type Rule func(err error) error

// ErrAttemptTimeout is the cause of a handler's context whose own deadline has
// passed. An error that wraps it is transient and ambiguous, for at most 5 runs.
var ErrAttemptTimeout = errors.New("the handler did not finish within its timeout")

const (
	maxHint = 365 * 24 * time.Hour

	runsPoison   = 1
	runsNotFound = 3 // DNS names
	runsConflict = 3 // HTTP 409, 412, 424 and missing foreign keys
	runsTimeout  = 5
	runsUnknown  = 6
)

// Of classifies err. The rules are asked in their order, unless a mark, a
// decode failure, a panic or ErrAttemptTimeout decides. The verdict on nil is
// the zero Verdict.
//
// Of cannot see that the worker is shutting down or has lost the message: that
// has to be settled before. To Of, context.Canceled alone is unknown.
func Of(err error, rules ...Rule) Verdict {
	return judge(err, rules, nil)
}

func judge(err error, rules []Rule, t *trace) Verdict {
	if err == nil {
		return Verdict{}
	}
	w := walker{trace: t}
	f := w.visit(err, place{})
	if f.rank >= rankTimeout {
		return f.finish()
	}
	for i, rule := range rules {
		v := ask(rule, i, err)
		t.answer(v)
		if v.Class != "" {
			return v
		}
	}
	return f.finish()
}

// finish fills in the defaults of the class and brings what a user supplied
// into range.
func (v Verdict) finish() Verdict {
	if weight(v.Class) == 0 {
		v.Class = ClassUnknown
	}
	v.RetryAfter = min(max(v.RetryAfter, 0), maxHint)
	if !v.retryable() {
		v.RetryAfter = 0
	}
	v.MaxAttempts = max(v.MaxAttempts, 0)
	if v.Class == ClassUnknown && v.Reason == "" {
		v.Reason = "unclassified"
	}
	if v.MaxAttempts > 0 {
		return v
	}
	switch v.Class {
	case ClassPoison:
		v.MaxAttempts = runsPoison
	case ClassUnknown:
		v.MaxAttempts = runsUnknown
	}
	return v
}

// retryable reports whether the message may be worth another run.
func (v Verdict) retryable() bool {
	switch v.Class {
	case ClassTransient, ClassThrottled, ClassEnvironment, ClassUnknown:
		return true
	}
	return false
}
