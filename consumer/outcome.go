package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// ErrShutdown is the cause with which a handler's context ends when the worker
// must stop. The run is given back and not counted.
var ErrShutdown = errors.New("the worker is shutting down: the message is given back, not counted")

const throttledClass = string(classify.ClassThrottled)

// Reasons of dead letters that the pipeline itself decides on.
const (
	reasonAmbiguous  = "ambiguous"
	reasonBudget     = "budget"
	reasonCrashLoop  = "crash-loop"
	reasonOversize   = "oversize"
	reasonRefused    = "refused"
	reasonUnroutable = "unroutable"
)

// errGoexit stands for a handler that ended its goroutine.
var errGoexit = errors.New("the handler called runtime.Goexit instead of returning")

func leaseLost(cause error) error {
	if errors.Is(cause, brokers.ErrLeaseLost) {
		return cause
	}
	return fmt.Errorf("%w: %w", brokers.ErrLeaseLost, cause)
}

// verdict classifies a failed run. What ended the handler's context decides
// before the error's own text does, because a cut connection is then only the
// consequence; but a handler that says what the failure is, is believed. That
// the lease is lost or the worker stopping is for the pipeline to know: an
// error that says so otherwise, say from the handler's own queue, is unknown.
func verdict(err, cause error, rules []classify.Rule) classify.Verdict {
	switch {
	case errors.Is(cause, brokers.ErrLeaseLost):
		return classify.Verdict{Class: classify.ClassLost, Rule: "lease lost"}
	case errors.Is(cause, ErrShutdown):
		if interrupted(err) {
			return stopping
		}
		return classify.Of(err, func(err error) error { return classify.With(err, stopping) })
	case errors.Is(cause, classify.ErrAttemptTimeout):
		return classify.Of(errors.Join(classify.ErrAttemptTimeout, err), rules...)
	}
	v := classify.Of(err, rules...)
	if v.Class != classify.ClassLost && v.Class != classify.ClassShutdown {
		return v
	}
	return classify.Of(err, func(err error) error {
		return classify.With(err, classify.Verdict{Class: classify.ClassUnknown, Rule: v.Rule, Code: v.Code})
	})
}

var stopping = classify.Verdict{Class: classify.ClassShutdown, Rule: "worker stopping"}

// interrupted reports whether err may say no more than that the context has
// ended: it is a context's error or a panic, or its own methods panic.
func interrupted(err error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = true
		}
	}()
	_, panicked := errors.AsType[*classify.PanicError](err)
	return panicked || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// conclude takes r from its handler to what comes next.
func (p *pipeline) conclude(r *run, err, cause error, now time.Time, ran time.Duration) {
	if loss := r.lost(); loss != nil {
		p.tell(r, now, &skipped)
		p.drop(r, loss)
		return
	}
	if err == nil {
		p.adapt(ran, false, now)
		p.tell(r, now, nil)
		if p.observed() {
			p.observe(r, Event{Kind: EventSucceeded, Time: now, Duration: ran})
		}
		p.settle(r, brokers.Ack)
		return
	}
	v := verdict(err, cause, r.route.rules)
	if v.Class == classify.ClassThrottled {
		p.adapt(ran, true, now)
	}
	probe := r.permit.probe()
	p.tell(r, now, &v)
	d := p.decide(r, r.failure(now, ran, v), probe)
	own := d.Delay
	if d = r.certain(v, d); !v.Deferred {
		d = p.spread(r, d, now)
	}
	e := Event{Kind: EventFailed, Time: now, Duration: ran, Verdict: v, Decision: d, Err: err, Stretched: max(0, d.Delay-own)}
	if d.Action != retry.ActionRetry && d.Action != retry.ActionDeadLetter {
		p.observe(r, e)
		p.end(r, d, cause)
		return
	}
	entry := p.entry(r, err, v)
	r.setMeta(r.failed(now, v, entry.Fingerprint, d, own))
	p.observe(r, e)
	if d.Action == retry.ActionRetry {
		p.reschedule(r)
		return
	}
	p.bury(r, d.Reason, entry)
}

// skipped is the verdict of what says nothing about the dependency.
var skipped = classify.Verdict{Skip: true}

// tell reports to the gate how a run ended, v being the verdict on its error.
func (p *pipeline) tell(r *run, now time.Time, v *classify.Verdict) {
	changed := p.gate.conclude(now, r.permit, v)
	r.permit = permit{}
	if v != nil && v.Class == classify.ClassThrottled && !p.cfg.Restraint.NoThrottle {
		changed = p.gate.throttle(now, v.RetryAfter, r.route.policy.HintLimit()) || changed
	}
	if changed {
		p.gateChanged(now)
	}
}

// decide says what happens after a failure. That a probe fails is expected, and
// says nothing against its message: only its age ends such a message.
func (p *pipeline) decide(r *run, f retry.Failure, probe bool) retry.Decision {
	expected := probe && f.Verdict.Class != classify.ClassPoison
	if expected {
		f.Attempt = 1
	}
	d := retry.Decide(r.route.policy, f, p.cfg.Random())
	if expected && d.Action == retry.ActionRetry {
		d.Counted = false
	}
	return d
}

// certain returns d, or a dead letter instead of a retry that may repeat the
// effect of two runs before it.
func (r *run) certain(v classify.Verdict, d retry.Decision) retry.Decision {
	again := d.Action == retry.ActionRetry && v.Ambiguous && !r.route.idempotent
	if again && slices.ContainsFunc(r.meta.History, func(f brokers.Failure) bool { return f.Ambiguous }) {
		return retry.Decision{Action: retry.ActionDeadLetter, Reason: reasonAmbiguous, Counted: d.Counted}
	}
	return d
}

// spread moves a retry of r to when the budget has room for it.
func (p *pipeline) spread(r *run, d retry.Decision, now time.Time) retry.Decision {
	if p.budget == nil || d.Action != retry.ActionRetry {
		return d
	}
	r.slot = p.budget.Reserve(now, now.Add(d.Delay))
	delay := r.slot.Sub(now)
	if limit := p.cfg.Restraint.DeadLetterBeyond; limit > 0 && delay-d.Delay > limit {
		p.refund(r)
		return retry.Decision{Action: retry.ActionDeadLetter, Reason: reasonBudget, Counted: d.Counted}
	}
	d.Delay = max(d.Delay, delay)
	return d
}

// refund gives back the room of a retry of r that will not run.
func (p *pipeline) refund(r *run) {
	if !r.slot.IsZero() {
		p.budget.Refund(time.Now(), r.slot)
		r.slot = time.Time{}
	}
}

// end carries out a decision that says nothing against the message.
func (p *pipeline) end(r *run, d retry.Decision, cause error) {
	switch d.Action {
	case retry.ActionAck:
		p.settle(r, brokers.Ack)
	case retry.ActionRelease:
		p.settle(r, brokers.Release)
	default:
		p.drop(r, leaseLost(cause))
	}
}

// failure is what retry.Decide needs to know about a failed run of r.
func (r *run) failure(now time.Time, ran time.Duration, v classify.Verdict) retry.Failure {
	return retry.Failure{
		Attempt:       r.meta.Attempt + 1,
		Throttles:     r.meta.Throttles,
		FirstFailedAt: r.meta.FirstFailedAt,
		Now:           now,
		Ran:           ran,
		PrevDelay:     r.meta.Delay,
		Verdict:       v,
	}
}

// entry begins the dead letter of r, in case it comes to that.
func (p *pipeline) entry(r *run, err error, v classify.Verdict) dlq.Entry {
	entry := dlq.Entry{Message: r.delivery.Message}
	entry.SetError(err, v, p.cfg.Redact, p.cfg.Stacks)
	return entry
}
