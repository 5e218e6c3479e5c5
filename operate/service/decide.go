package service

import (
	"errors"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/retry"
)

// result is what a worker made of a task.
type result struct {
	began  time.Time
	took   time.Duration // until there was an answer
	status int           // of the response; 0 if there was none
	err    error         // nil if the call succeeded
}

// errLeaseOver is the error of an attempt that nobody knows the end of.
var errLeaseOver = errors.New(causeLease)

// leaseOver is the result of a task whose lease is over at now.
func leaseOver(t Task, now time.Time) result {
	return result{began: t.NextAttemptAt, took: max(now.Sub(t.NextAttemptAt), 0), err: errLeaseOver}
}

// estimate is how long the next call is taken to need: as long as this one, if
// anybody knows.
func (r result) estimate() time.Duration {
	if r.err == errLeaseOver {
		return 0
	}
	return min(r.took, longestCall)
}

// decide says what becomes of a task. It is pure: random, a number in [0, 1), is its
// only source of chance. What was deferred leaves no attempt, and counts as none.
func decide(t Task, p Policy, r result, now time.Time, random float64) Outcome {
	t.UpdatedAt = now
	if r.err == nil {
		t.AttemptNumber++
		t.Status, t.LastStatus, t.LastError = Succeeded, r.status, ""
		return Outcome{Task: t, Attempt: r.attempt()}
	}
	v, policy := p.verdict(r), p.Retry()
	if v.Deferred {
		// For as long as it says, whatever the policy has calls wait for, but not for
		// longer than half of the budget that is left: it may be sooner.
		policy.Backoff = retry.Backoff{Base: shortestPause, Cap: shortestPause}
		v.RetryAfter = min(v.RetryAfter, max(p.left(t, now)/2, shortestPause))
	}
	d := policy.Decide(retry.FailedRun{
		Attempt:       t.AttemptNumber + 1,
		FirstFailedAt: t.BudgetSince,
		Now:           now,
		Ran:           r.estimate() + time.Millisecond, // by which the due time may be rounded up
		PrevDelay:     t.PrevDelay,
		Verdict:       v,
	}, random)
	t.LastError = cut(r.told())
	if d.Retry {
		t.Status, t.NextAttemptAt = Pending, ceil(now.Add(d.Delay))
	} else {
		t.Status = Exhausted
		t.LastError = cut(d.Reason + separatesDetail + r.told())
	}
	if v.Deferred {
		return Outcome{Task: t}
	}
	t.AttemptNumber++
	t.PrevDelay, t.LastStatus = d.Delay, r.status
	if t.FirstFailedAt.IsZero() {
		t.FirstFailedAt = now
	}
	return Outcome{Task: t, Attempt: r.attempt()}
}

func (r result) attempt() *Attempt {
	a := &Attempt{StartedAt: r.began, Duration: r.took, ResponseStatus: r.status}
	if r.err != nil {
		a.Error = cut(r.told())
	}
	return a
}

// verdict is what classify makes of a failure, but that the policy has the word on
// responses, and that every call counts, one that was throttled, too: whatever is
// wrong with the target, it gets no more calls than the policy says. A worker that
// lacks something itself has not called at all.
func (p Policy) verdict(r result) classify.Verdict {
	v := classify.Of(r.err)
	_, forbidden := errors.AsType[*TargetError](r.err)
	switch {
	case v.Deferred:
		return v
	case forbidden, r.status != 0 && !p.retries(r.status):
		return classify.Verdict{Class: classify.ClassPoison}
	case r.status != 0:
		return classify.Verdict{Class: classify.ClassTransient, RetryAfter: v.RetryAfter}
	}
	v = classify.Verdict{Class: v.Class}
	if exhausted(r.err) {
		v.Deferred, v.RetryAfter = true, shortestPause
	}
	if v.Class != classify.ClassPoison {
		v.Class = classify.ClassTransient
	}
	return v
}

// left is what is left of the budget of a task, in whole milliseconds.
func (p Policy) left(t Task, now time.Time) time.Duration {
	return (millis(p.TotalBudgetMs) - max(now.Sub(t.BudgetSince), 0)).Truncate(time.Millisecond)
}

// retries reports whether a response with this status is retried.
func (p Policy) retries(status int) bool {
	if status == http.StatusBadRequest {
		return false
	}
	if len(p.RetryableStatusCodes) > 0 {
		return slices.Contains(p.RetryableStatusCodes, status)
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return status >= 500 && status <= 599
}

// exhausted reports whether this machine, not the target, has run out of something.
func exhausted(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// ceil rounds up to a millisecond, which is what is stored.
func ceil(t time.Time) time.Time {
	if down := t.Truncate(time.Millisecond); !down.Equal(t) {
		return down.Add(time.Millisecond)
	}
	return t
}

// mostError is how many bytes of an error are kept.
const mostError = 1 << 10

// cut makes what may come from a target safe to keep and to show.
func cut(s string) string {
	return text.Line(s, mostError)
}
