// Package retry decides what happens to a message whose handler failed, and
// retries calls inside a process by the same rules.
//
// It guarantees that
//
//   - every failure leads to exactly one [Decision], whatever the input;
//   - a failing message comes to an end: counted failures after MaxAttempts
//     runs, all others when MaxAge is over;
//   - errors that say nothing about the message (shutdown, a lost lease, a
//     broken environment, the first few throttles) do not count as attempts;
//   - a change of the error never restarts the count;
//   - a delay keeps between the floor and the cap of its policy, and is never
//     shorter than what a server or a mark asked for, unless that exceeds
//     MaxRetryAfter;
//   - messages that failed together do not come back together, unless the
//     policy turns jitter off.
//
// [Policy.Decide] and [Backoff] are pure: time and chance are arguments. Only
// [Policy.Do] waits, reads the clock and draws random numbers.
//
// It does not guarantee that a retry is safe. A run that failed may have had
// its effect; keeping a second run from repeating it is the handler's part.
package retry

import (
	"time"

	"github.com/redrive-go/redrive/classify"
)

// Reasons for a dead letter. A verdict may bring its own instead of exhausted
// and poison. dlq.Entry has the list of all.
const (
	reasonExhausted = "exhausted"
	reasonExpired   = "expired"
	reasonPoison    = "poison"
)

// FailedRun is what [Policy.Decide] needs to know about a failed run.
type FailedRun struct {
	// Attempt is the number that this run has if it counts: one more than the
	// counted runs before it. Less than 1 counts as 1.
	Attempt int
	// Throttles is how many throttled runs of this message went uncounted.
	Throttles int
	// FirstFailedAt is when this message first failed; zero means now. A time
	// after Now, from a clock that was set back, means now as well.
	FirstFailedAt time.Time
	// Now is the time of the decision.
	Now time.Time
	// Ran is how long this run took, the estimate for the next one.
	Ran time.Duration
	// PrevDelay is the delay before this run; zero if there was none.
	PrevDelay time.Duration
	// Verdict is what [classify.Of] made of the error.
	Verdict classify.Verdict
}

// Decision is what [Policy.Decide] makes of a failure. Its zero value does
// nothing, so that a decision that was not made removes no message.
type Decision struct {
	// Retry says to run the message again after Delay, and DeadLetter to move it
	// to the dead-letter destination. If neither is set, the class of the verdict
	// says how the delivery ends: skipped is acked, shutdown is given back, and
	// a lost one belongs to another worker.
	Retry, DeadLetter bool
	// Delay is how long to wait before a Retry.
	Delay time.Duration
	// Reason is one word. For a dead letter it is the verdict's own, or
	// "exhausted", "expired" or "poison" (dlq.Entry says what they mean), for a
	// retry the error's class, otherwise "skipped", "shutdown" or "lost".
	Reason string
	// Counted reports whether this run was an attempt: whether the next one
	// has a higher number.
	Counted bool
}

// Decide says what happens to a message after a failed run. It is pure: random,
// a number in [0, 1), is its only source of chance, and must be drawn anew for
// every decision. By class of the verdict:
//
//   - lost, skipped and shutdown: neither a retry nor a dead letter, and not
//     counted.
//   - deferred, whatever the class: retried after the hint, or the backoff of a
//     first attempt, and never counted. MaxAge alone ends it.
//   - environment: retried between EnvironmentDelay/2 and EnvironmentDelay, and
//     never counted. MaxAge alone ends it.
//   - throttled: retried after the longer of the backoff and the server's hint,
//     at most MaxRetryAfter, uncounted for the first FreeThrottles times. The
//     backoff here grows with every throttle, counted or not.
//   - poison: a dead letter, unless the verdict allows more than one attempt.
//   - transient and unknown, to which any other class belongs: retried after
//     the backoff.
//
// A counted failure is a dead letter once the attempt reaches MaxAttempts of
// the policy or of the verdict, whichever is less, and every retry is one if
// it would not be over before MaxAge.
//
// A hint in the verdict is a lower bound for the delay of any retry, plus a
// jitter of up to a tenth of it or 5 s, whichever is less. One longer than
// MaxRetryAfter is not waited out: the delay then ends within that jitter
// below MaxRetryAfter. Verdict.Ambiguous has no influence.
func (p Policy) Decide(f FailedRun, random float64) Decision {
	p, f = p.withDefaults(), f.sane()
	switch f.Verdict.Class {
	case classify.ClassLost, classify.ClassSkipped, classify.ClassShutdown:
		return Decision{Reason: f.Verdict.Class}
	}
	counted := p.counts(f)
	if counted && f.Attempt >= p.limit(f.Verdict) {
		return Decision{DeadLetter: true, Reason: endReason(f.Verdict), Counted: true}
	}
	delay := p.delay(f, random)
	if p.expires(f, delay) {
		return Decision{DeadLetter: true, Reason: reasonExpired, Counted: counted}
	}
	return Decision{Retry: true, Delay: delay, Reason: f.Verdict.Class, Counted: counted}
}

// sane moves out-of-range values to the nearest meaningful one.
func (f FailedRun) sane() FailedRun {
	f.Attempt = max(f.Attempt, 1)
	f.Throttles = max(f.Throttles, 0)
	switch f.Verdict.Class {
	case classify.ClassPoison, classify.ClassTransient, classify.ClassThrottled,
		classify.ClassEnvironment, classify.ClassShutdown, classify.ClassLost, classify.ClassSkipped:
	default:
		f.Verdict.Class = classify.ClassUnknown
	}
	return f
}

func (p Policy) counts(f FailedRun) bool {
	if f.Verdict.Deferred {
		return false
	}
	switch f.Verdict.Class {
	case classify.ClassEnvironment:
		return false
	case classify.ClassThrottled:
		return f.Throttles >= p.FreeThrottles
	default:
		return true
	}
}

// limit returns how many counted runs a message with this verdict gets.
func (p Policy) limit(v classify.Verdict) int {
	switch {
	case v.MaxAttempts > 0:
		return min(p.MaxAttempts, v.MaxAttempts)
	case v.Class == classify.ClassPoison:
		return 1
	default:
		return p.MaxAttempts
	}
}

func endReason(v classify.Verdict) string {
	switch {
	case v.Reason != "":
		return v.Reason
	case v.Class == classify.ClassPoison:
		return reasonPoison
	default:
		return reasonExhausted
	}
}

func (p Policy) delay(f FailedRun, random float64) time.Duration {
	var own time.Duration
	if f.Verdict.Deferred {
		f.Attempt = 1
	}
	switch f.Verdict.Class {
	case classify.ClassEnvironment:
		half := p.EnvironmentDelay / 2
		own = half + share(p.EnvironmentDelay-half, random)
	case classify.ClassThrottled:
		b := p.Backoff
		b.Cap = min(b.Cap, p.MaxRetryAfter)
		own = b.Delay(addAttempts(f.Attempt, f.Throttles), f.PrevDelay, random)
	default:
		own = p.Backoff.Delay(f.Attempt, f.PrevDelay, random)
	}
	return p.honour(f.Verdict.RetryAfter, own, random)
}

// honour stretches own, a delay, to what the error asks for. The jitter on
// top keeps messages that got the same hint apart, and must not eat into the
// hint unless nobody waits that long.
func (p Policy) honour(hint, own time.Duration, random float64) time.Duration {
	if hint <= 0 {
		return own
	}
	spread := min(min(hint, p.MaxRetryAfter)/10, 5*time.Second)
	if hint > p.MaxRetryAfter {
		hint = p.MaxRetryAfter - spread
	}
	start := max(own, hint)
	room := max(p.MaxRetryAfter, own) - start
	return start + share(min(spread, room), secondDraw(random))
}

// secondDraw makes another number in [0, 1) out of random. The backoff and the
// jitter of a hint cannot share one number: the hint wins only where random is
// small, and its jitter would crowd at the lower end. They share its digits
// instead. The backoff goes by the leading 20 bits, and this is the rest.
func secondDraw(random float64) float64 {
	scaled := clampUnit(random) * (1 << 20)
	return scaled - float64(int64(scaled))
}

// expires reports whether a retry after delay would not be over before MaxAge.
func (p Policy) expires(f FailedRun, delay time.Duration) bool {
	left := p.MaxAge
	if !f.FirstFailedAt.IsZero() {
		left -= max(f.Now.Sub(f.FirstFailedAt), 0)
	}
	return left < delay || left-delay < f.Ran
}

// addAttempts adds two numbers that are not negative, without overflow.
func addAttempts(a, b int) int {
	if sum := a + b; sum >= a {
		return sum
	}
	return a
}
