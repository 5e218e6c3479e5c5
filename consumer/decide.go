package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// ErrShutdown is the cause with which a handler's context ends when the worker
// must stop. The run is given back and not counted.
var ErrShutdown = errors.New("the worker is shutting down: the message is given back, not counted")

// Reasons that the pipeline itself decides on. dlq.Entry has the list of all.
const (
	reasonAmbiguous  = "ambiguous"
	reasonCrashLoop  = "crash-loop"
	reasonExpired    = "expired"
	reasonOutage     = "outage"
	reasonOversize   = "oversize"
	reasonRefused    = "refused"
	reasonTimeout    = "timeout" // of package classify
	reasonUnreadable = "unreadable"
	reasonUnroutable = "unroutable"
	reasonBatch      = "batch" // of a retry: its batch failed as a whole, and runs in parts
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
	case errors.Is(cause, ErrShutdown), errors.Is(cause, ErrSkipped):
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

// finish takes runs, which began together, from their handler to what comes next. Of a
// batch that failed as a whole, one that is left is not to blame either.
func (p *pipeline) finish(runs []*delivery, batch bool, results []error, cause error, began, now time.Time) {
	if batch && len(runs) > 0 && p.split(runs, results, cause, began, now) {
		return
	}
	for i, d := range runs {
		p.conclude(d, results[i], cause, began, now)
	}
}

// conclude is finish for one of them.
func (p *pipeline) conclude(d *delivery, err, cause error, began, now time.Time) {
	if loss := d.lost(); loss != nil {
		p.admission.done(d, began, now, flow.Neutral)
		p.drop(d, loss)
		return
	}
	d.sub.attempted.add(d.sub.began, now)
	if err == nil {
		d.sub.succeeded(now, now.Sub(began))
		p.admission.done(d, began, now, flow.Success)
		if d.sub.poisonRow.Load() > 0 {
			p.believe(d.sub)
		}
		if p.observed() {
			p.observe(d, Event{Kind: EventSucceeded, Time: now, Duration: now.Sub(began)})
		}
		if d.turn {
			p.mu.Lock()
			defer p.mu.Unlock()
		}
		p.settle(brokers.Ack, d)
		return
	}
	if why := p.skips.of(d); why != nil {
		p.skipped(d, why, err, began, now)
		return
	}
	v := verdict(err, cause, d.sub.rules)
	// A failure is an attempt if another message has succeeded since d failed last, and
	// not long ago. A message that was sent back failed before, and each of its
	// failures counts.
	counts := d.returned() || d.sub.dependency.limiter == nil || d.succeededSince(d.meta.LastFailedAt, now)
	c := circumstances{counts: counts, excused: d.meta.Excused}
	if counts {
		c.early = d.early(now)
	}
	o := outcomeOf(v, errors.Is(cause, classify.ErrAttemptTimeout))
	if errors.Is(cause, ErrDeadline) { // the dependency had less than the usual time
		o = flow.Neutral
	}
	p.admission.done(d, began, now, o)
	c.spread = d.sub.dependency.status(now).Failing > 1 // also other messages fail
	if !c.counts && o >= flow.Overload && d.sub.excuses {
		c.excused += d.sinceFailure(now)
	}
	if c.excused > 0 {
		c.end = d.outageEnd(p.caps.Retention)
	}
	decision := d.sub.decide(d.failure(now, now.Sub(began), v), c, p.cfg.Random())
	if decision.Retry && d.expires(now.Add(decision.Delay)) {
		decision = retry.Decision{DeadLetter: true, Reason: reasonExpired, Counted: decision.Counted}
	}
	p.carryOut(d, decision, c, Event{Kind: EventFailed, Time: now, Duration: now.Sub(began), Verdict: v, Decision: decision, Err: err}, cause)
}

// carryOut does what was decided on the failure that e reports.
func (p *pipeline) carryOut(d *delivery, decision retry.Decision, c circumstances, e Event, cause error) {
	var letter dlq.Entry
	if decision.Retry || decision.DeadLetter {
		letter = p.letters.write(d, e.Err, e.Verdict)
		first := !d.isRetry()
		d.setMeta(p.traced(d, d.failed(e.Time, e.Verdict, letter.Fingerprint, decision, c.excused)))
		if first && p.receipts != nil {
			p.receipts.tell(d, dlq.Receipt{Outcome: "failed", Class: d.meta.Class, Fingerprint: letter.Fingerprint})
		}
	}
	p.observe(d, e)
	class := e.Verdict.Class
	if !decision.Retry && !decision.DeadLetter && class != classify.ClassSkipped && class != classify.ClassShutdown {
		p.drop(d, leaseLost(cause))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case decision.Retry:
		p.wait(d, p.holdLimit(d))
	case decision.DeadLetter:
		if class == classify.ClassPoison && !d.returned() && d.sub.dependency.limiter != nil {
			p.judge(d, decision.Reason, letter, e.Time)
		} else {
			p.deadLetter(d, decision.Reason, letter)
		}
	case class == classify.ClassSkipped:
		p.settle(brokers.Ack, d)
	default:
		p.settle(brokers.Release, d)
	}
}

// sinceFailure is how long ago d failed last; zero if it did not.
func (d *delivery) sinceFailure(now time.Time) time.Duration {
	if d.meta.LastFailedAt.IsZero() {
		return 0
	}
	return max(0, now.Sub(d.meta.LastFailedAt))
}

// A message waits for the end of an outage for so long, as far as the default
// MaxAge is concerned: a part of the retention of its queue, which deletes what is
// older, or outageMost where there is none.
const (
	outageShare = 0.8
	outageMost  = 7 * 24 * time.Hour
)

// While retries wait for tokens of the budget, too much fails to blame a message: in the
// first hour its attempts do not end. It runs again when it has failed for twice as long.
const leastAge = time.Hour

// early is for how long d has failed, if that is too short for its last attempt;
// otherwise zero.
func (d *delivery) early(now time.Time) time.Duration {
	if pacer := d.budget(); pacer != nil && d.isRetry() && !d.returned() {
		if age := now.Sub(d.meta.FirstFailedAt); age < leastAge && pacer.Snapshot(now).Waiting > 0 {
			return max(age, 0)
		}
	}
	return 0
}

// outageEnd is until when d waits for the end of an outage. It has the default
// MaxAge in any case: Open has seen to the retention for that. A retention of 0 is
// unlimited.
func (d *delivery) outageEnd(retention time.Duration) time.Time {
	_, _, age := d.sub.policy.Limits()
	if retention == 0 || d.Message.PublishedAt.IsZero() {
		return d.meta.FirstFailedAt.Add(max(age, outageMost))
	}
	end := d.Message.PublishedAt.Add(time.Duration(outageShare * float64(retention)))
	if least := d.meta.FirstFailedAt.Add(age); end.Before(least) {
		return least
	}
	return end
}

// circumstances are what other runs say about a failed one.
type circumstances struct {
	counts  bool          // it is an attempt
	spread  bool          // others fail, too
	early   time.Duration // for which it has failed, if it counts and yet is not the last attempt
	excused time.Duration // of the age, which does not count
	end     time.Time     // of the wait for the end of an outage; zero if nothing is excused
}

// decide says what happens after a failure. A failure that does not count ends no
// message but by its age. An error of no known class ends a message sooner if no
// other message fails. A run that may have had its effect is not repeated where
// that was asked for.
func (r *route) decide(f retry.FailedRun, c circumstances, random float64) retry.Decision {
	if r.noRepeat && f.Verdict.Ambiguous {
		return retry.Decision{DeadLetter: true, Reason: reasonAmbiguous, Counted: true}
	}
	d := r.weigh(f, c, random)
	if d.Retry && !c.end.IsZero() && f.Now.Add(d.Delay).After(c.end) {
		return retry.Decision{DeadLetter: true, Reason: reasonOutage, Counted: d.Counted}
	}
	return d
}

// weigh is decide without the limits of single topics.
func (r *route) weigh(f retry.FailedRun, c circumstances, random float64) retry.Decision {
	if !f.FirstFailedAt.IsZero() {
		f.FirstFailedAt = f.FirstFailedAt.Add(c.excused)
	}
	v := &f.Verdict
	if v.Class == classify.ClassPoison || v.Class == classify.ClassSkipped || v.Deferred {
		return r.policy.Decide(f, random)
	}
	if c.spread && (v.Class == classify.ClassUnknown || v.Reason == reasonTimeout) {
		v.MaxAttempts = 0
	}
	if !c.counts {
		return r.uncounted(f, 0, random)
	}
	d := r.policy.Decide(f, random)
	if d.DeadLetter && c.early > 0 {
		if again := r.uncounted(f, c.early, random); again.Retry {
			return again
		}
	}
	return d
}

// uncounted decides on a failure that does not count. A message that has failed for so
// long waits about as long again, within its longest delay.
func (r *route) uncounted(f retry.FailedRun, long time.Duration, random float64) retry.Decision {
	policy, share := r.policy, uncountedShare+(1-uncountedShare)*random
	policy.MaxAttempts = math.MaxInt
	b := &policy.Backoff
	longest := max(uncountedCap, b.Base, b.Floor)
	b.Cap = min(cmp.Or(b.Cap, longest), longest)
	b.Floor = max(b.Floor, time.Duration(share*float64(min(long, b.Cap))))
	f.Verdict.MaxAttempts = 0
	f.Attempt, f.Throttles = f.Attempt+f.Throttles, 0
	d := policy.Decide(f, share)
	d.Counted = false
	return d
}

// A failure that does not count lengthens the delay of its message all the same,
// up to uncountedCap, or its first delay if that is longer. No less than
// uncountedShare of it is drawn.
const (
	uncountedCap   = 9 * time.Minute
	uncountedShare = 0.75
)

// failure is what retry.Policy.Decide needs to know about a failed run of d.
func (d *delivery) failure(now time.Time, ran time.Duration, v classify.Verdict) retry.FailedRun {
	return retry.FailedRun{
		Attempt:       d.meta.Attempt + 1,
		Throttles:     d.meta.Throttles,
		FirstFailedAt: d.meta.FirstFailedAt,
		Now:           now,
		Ran:           ran,
		PrevDelay:     d.meta.Delay,
		Verdict:       v,
	}
}

// historyLimit bounds the failures in a Meta.
const historyLimit = 10

// failed is the Meta after a failed run.
func (d *delivery) failed(now time.Time, v classify.Verdict, fingerprint string, decision retry.Decision, excused time.Duration) brokers.Meta {
	m, class := d.metaNow(), v.Class
	failure := brokers.Failure{Attempt: m.Attempt + 1, At: now, Class: class, Fingerprint: fingerprint, Delay: decision.Delay, Ambiguous: v.Ambiguous, TimedOut: v.Reason == reasonTimeout}
	if decision.Counted {
		m.Attempt++
	} else {
		m.Throttles++
	}
	if m.FirstFailedAt.IsZero() || m.FirstFailedAt.After(now) {
		m.FirstFailedAt = now
	}
	m.LastFailedAt, m.Excused, m.Crashes = now, excused, 0
	m.Class = class
	m.Delay = decision.Delay
	if decision.Retry {
		m.DueAt = now.Add(decision.Delay)
	}
	old := m.History[max(0, len(m.History)-historyLimit+1):]
	m.History = append(append(make([]brokers.Failure, 0, len(old)+1), old...), failure)
	return m
}

// holdLimit is the longest that d may be held after a failure. Where holding is
// dear, that is next to nothing, unless the key of d waits for it or the broker
// has stored it for a retry before.
func (p *pipeline) holdLimit(d *delivery) time.Duration {
	if d.yields() {
		return 0
	}
	if p.caps.MaxHold == 0 || d.turn || !first(d.came()) {
		return p.cfg.HoldLimit
	}
	return min(p.cfg.HoldLimit, p.caps.MaxHold)
}

// A handler that takes practically every message for poison is itself at fault, as
// after a bad deployment. So a verdict of poison is in doubt until another message
// succeeds: the message waits for that, and dies after doubtLasts without it, too. But if
// several are poison without a success between them, they are put aside and run again
// later, uncounted. When the worker stops, the verdict holds if a message has succeeded
// lately.
const (
	poisonRow   = 5               // poison messages without a success between them that put all aside
	doubtLasts  = 5 * time.Second // a verdict in doubt holds after this time
	asideMost   = time.Hour       // a message that is still poison after this time is dead
	asideLeast  = time.Second     // between two runs of a message that is put aside
	asideLonger = 10 * time.Minute
)

// judgement is what a message dies of once it is not in doubt.
type judgement struct {
	reason string
	letter dlq.Entry
}

// judge decides on d, whose run said that it is poison. mu is held.
func (p *pipeline) judge(d *delivery, reason string, letter dlq.Entry, now time.Time) {
	s := d.sub
	row := s.poisonRow.Add(1)
	known := s.dependency.status(now)
	switch {
	case d.poisonFor(now) >= asideMost:
		p.deadLetter(d, reason, letter)
	case row >= poisonRow, known.Poisoned:
		d.own().judgement = &judgement{reason, letter}
		p.putAside(d, now)
		for _, other := range p.inDoubt(s) {
			p.putAside(other, now)
		}
	case p.draining.Load(), !s.roomToWait(d), !d.lasts(now.Add(doubtLasts)):
		d.own().judgement = &judgement{reason, letter}
		p.decideNow(d, now)
	case p.hold(d):
		d.own().judgement = &judgement{reason, letter}
		s.inDoubt = append(s.inDoubt, d)
		p.waitlist.add(d, now.Add(doubtLasts))
	}
}

// inDoubt returns the deliveries whose verdict is in doubt, for other ends. mu is
// held.
func (p *pipeline) inDoubt(s *subscription) (ds []*delivery) {
	for _, d := range s.inDoubt {
		if d.judgement != nil && p.to(d, queued) {
			ds = append(ds, d)
		}
	}
	s.inDoubt = nil
	return ds
}

// believe ends the doubts about verdicts: a message of s has succeeded.
func (p *pipeline) believe(s *subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.poisonRow.Store(0)
	for _, d := range p.inDoubt(s) {
		p.condemn(d)
	}
}

// decideNow ends the doubt about a verdict that cannot wait: it holds if a message has
// succeeded lately. mu is held.
func (p *pipeline) decideNow(d *delivery, now time.Time) {
	if now.Sub(d.sub.dependency.status(now).LastSuccess) <= successLasts {
		p.condemn(d)
		return
	}
	p.putAside(d, now)
}

// condemn dead-letters a delivery whose verdict was in doubt. mu is held.
func (p *pipeline) condemn(d *delivery) {
	v := d.judgement
	d.own().judgement = nil
	p.deadLetter(d, v.reason, v.letter)
}

// poisonFor is how long d has been poison in every run.
func (d *delivery) poisonFor(now time.Time) time.Duration {
	since := d.meta.FirstFailedAt
	for _, f := range d.meta.History {
		if f.Class != classify.ClassPoison {
			since = time.Time{}
		} else if since.IsZero() {
			since = f.At
		}
	}
	return now.Sub(since)
}

// putAside lets d run again later, uncounted: about half as long again as it has
// been poison. mu is held.
func (p *pipeline) putAside(d *delivery, now time.Time) {
	died := d.judgement.letter.ErrorText
	d.own().judgement = nil
	m := d.metaNow()
	m.Attempt = max(0, m.Attempt-1)
	d.setMeta(m)
	been := d.poisonFor(now)
	wait := min(max(been/2, asideLeast), asideLonger)
	wait += time.Duration((p.cfg.Random() - 0.5) / 2 * float64(wait))
	if left := asideMost - been; wait > left {
		wait = left + time.Duration(p.cfg.Random()*float64(time.Minute))
	}
	if p.draining.Load() {
		m.DueAt = now.Add(wait)
		d.setMeta(m)
		p.settle(brokers.Retry, d)
		return
	}
	p.deferRun(d, now, wait, deferral{onPoison.reason, fmt.Errorf("%w: %s", onPoison.err, died)})
}
