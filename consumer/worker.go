package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/handling"
	"github.com/redrive-go/redrive/retry/flow"
)

// stuckAfter is how long after the end of its context a handler may take to
// return before it is reported as stuck.
const stuckAfter = 10 * time.Second

// worker runs handlers, one job at a time. One timer watches the handler: it
// is left running between jobs, because most end long before their time.
type worker struct {
	*reporter
	pool      *pool
	admission *admission
	jobs      jobs

	called chan struct{} // by the pool, when idle
	queue  *topicQueue   // of its job, nil if it has none; under the mu of the pool
	job    []*delivery   // under the mu of the pool
	timer  *time.Timer
	result [1]error       // of a handler of single messages
	run    []brokers.Item // for the Tracer; reused

	mu      sync.Mutex
	current *attempt
	fires   time.Time // when timer fires; zero when it does not
	stuck   bool
	ended   time.Time   // when a person ended the context of current; zero if nobody did
	taken   []*delivery // of current: dead, though the handler runs
}

// jobs is what a worker asks about the deliveries that it works on, and whom it
// tells of them.
type jobs interface {
	// admitted returns those that may start.
	admitted(job []*delivery, now time.Time) []*delivery
	// hang counts the deliveries of handlers that do not return, or have returned, and
	// these handlers.
	hang(s *subscription, deliveries, handlers int)
	// finish takes runs, which began together, to what comes next. Of a batch some may
	// have been taken away.
	finish(runs []*delivery, batch bool, results []error, cause error, began, now time.Time)
	// isGivenUp reports whether a person has skipped d.
	isGivenUp(d *delivery) bool
	// takeAway ends the run of such a delivery, while its handler goes on.
	takeAway(d *delivery, began, now time.Time)
}

func newWorker(r *reporter, p *pool, a *admission, j jobs) *worker {
	w := &worker{reporter: r, pool: p, admission: a, jobs: j, called: make(chan struct{}, 1)}
	w.timer = time.AfterFunc(time.Hour, w.watch)
	w.timer.Stop()
	return w
}

// loop works until no jobs are left.
func (w *worker) loop() {
	for job := w.pool.next(w); job != nil; job = w.pool.next(w) {
		w.do(job)
	}
}

// do runs the handler for job and concludes each.
func (w *worker) do(job []*delivery) {
	now := time.Now()
	job = w.jobs.admitted(job, now)
	if len(job) == 0 {
		return
	}
	a := w.begin(job, now)
	w.announce(a)
	if w.attempt() != a { // before it began: this goroutine had no processor, and what it works on was given back
		a.finish()
		return
	}
	w.call(a)
}

// attempt returns that of the handler that runs; nil if none does, or it was
// taken away.
func (w *worker) attempt() *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

func (w *worker) begin(job []*delivery, now time.Time) *attempt {
	a := &job[0].first
	if !a.started.IsZero() {
		a = &attempt{one: [1]*delivery{job[0]}}
	}
	a.started = now
	if job[0].sub.batchHandler != nil {
		a.extra = &extra{batch: job}
	} else {
		a.message = job[0].Message
	}
	w.trace(a)
	for _, d := range job {
		d.move(running)
		d.setCurrent(a)
	}
	w.mu.Lock()
	w.current, w.ended = a, time.Time{}
	if deadline := a.deadline(); w.fires.IsZero() || deadline.Before(w.fires) {
		w.rearm(deadline)
	}
	w.mu.Unlock()
	for _, d := range job { // what was lost before anybody could find the attempt
		if loss := d.lost(); loss != nil {
			d.lose(loss)
		}
		if w.jobs.isGivenUp(d) {
			w.interrupt(d, ErrSkipped)
		}
	}
	return a
}

// trace begins the span of a, before anybody else knows of a.
func (w *worker) trace(a *attempt) {
	if w.tracer == nil {
		return
	}
	defer w.recovered(a, EventStarted)
	for _, d := range a.runs() {
		w.run = append(w.run, brokers.Item{Message: &d.Message, Meta: d.metaOfRun()})
	}
	defer func() {
		clear(w.run)
		w.run = w.run[:0]
	}()
	span := w.tracer.Start(a.base(), w.run)
	if a.extra == nil {
		a.extra = new(extra)
	}
	a.span = span
}

func (w *worker) announce(a *attempt) {
	if !w.observed() {
		return
	}
	for _, d := range a.runs() {
		e := Event{Kind: EventStarted, Time: a.started}
		if !d.meta.DueAt.IsZero() {
			e.Lateness = a.started.Sub(d.meta.DueAt)
		}
		w.observe(d, e)
	}
}

// call runs the handler. If it ends the goroutine, the worker goes on in a new
// one.
func (w *worker) call(a *attempt) {
	returned := false
	defer func() {
		if returned {
			return
		}
		err, v := errGoexit, recover()
		if v != nil {
			err = &classify.PanicError{Value: v, Stack: debug.Stack()}
		}
		w.finish(a, slices.Repeat([]error{err}, len(a.runs())))
		if v == nil {
			w.pool.working.Go(w.loop)
		}
	}()
	r := a.runs()[0].sub.route
	results := w.result[:]
	if r.batchHandler != nil {
		results = r.callBatch(a)
	} else {
		results[0] = r.handler(a, &a.message)
	}
	returned = true
	w.finish(a, results)
}

// callBatch returns one result for each run of a.
func (r *route) callBatch(a *attempt) []error {
	copies := make([]brokers.Message, len(a.runs()))
	batch := make([]brokers.Item, len(a.runs()))
	for i, member := range a.runs() {
		copies[i] = member.Message
		batch[i] = brokers.Item{Message: &copies[i], Meta: member.metaOfRun()}
	}
	results := r.batchHandler(a, batch)
	switch {
	case results == nil:
		return make([]error, len(batch))
	case len(results) != len(batch):
		err := fmt.Errorf("the batch handler of %q returned %d results for %d messages", r.topic, len(results), len(batch))
		return slices.Repeat([]error{err}, len(batch))
	}
	return results
}

// finish ends the attempt and takes its deliveries to what comes next.
func (w *worker) finish(a *attempt, results []error) {
	now := time.Now()
	w.mu.Lock()
	abandoned, unstuck, taken := w.current != a, w.stuck, w.taken
	w.current, w.stuck, w.taken = nil, false, nil
	w.mu.Unlock()
	cause := a.finish()
	if abandoned {
		return
	}
	runs := a.runs()
	if len(taken) > 0 {
		runs, results = without(taken, runs, results)
	}
	if unstuck {
		w.jobs.hang(a.runs()[0].sub, -len(runs), -1)
		for _, d := range runs {
			w.observe(d, Event{Kind: EventUnstuck, Time: now, Duration: now.Sub(a.started)})
		}
	}
	w.jobs.finish(runs, len(a.runs()) > 1, results, cause, a.started, now)
}

// without returns those of runs that are not taken, with their results.
func without(taken, runs []*delivery, results []error) (left []*delivery, of []error) {
	for i, d := range runs {
		if !slices.Contains(taken, d) {
			left, of = append(left, d), append(of, results[i])
		}
	}
	return left, of
}

// interrupt ends the context of the handler of d, which a person has skipped, if it
// runs here. D is taken away from one that is stuck.
func (w *worker) interrupt(d *delivery, cause error) {
	w.mu.Lock()
	a, now := w.current, time.Now()
	if a == nil || !slices.Contains(a.runs(), d) || slices.Contains(w.taken, d) {
		w.mu.Unlock()
		return
	}
	stuck := w.stuck
	switch {
	case stuck:
		w.taken = append(w.taken, d)
	case w.ended.IsZero():
		w.ended = now
		if last := now.Add(stuckAfter); last.Before(w.fires) || w.fires.IsZero() {
			w.rearm(last)
		}
	}
	w.mu.Unlock()
	a.end(cause)
	if stuck {
		w.jobs.takeAway(d, a.started, now)
	}
}

// abandon takes the attempt of a stuck handler away from the worker, which
// then ignores what it returns; nil if no handler runs.
func (w *worker) abandon() *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.current
	w.current = nil
	return a
}

// rearm lets the timer fire at t. mu is held.
func (w *worker) rearm(t time.Time) {
	w.fires = t
	w.timer.Reset(time.Until(t))
}

// watch is the timer: it ends the context of a handler whose time is up, and
// reports one that goes on all the same.
func (w *worker) watch() {
	w.mu.Lock()
	a, now := w.current, time.Now()
	w.fires = time.Time{}
	if a == nil || w.stuck {
		w.mu.Unlock()
		return
	}
	ended, outcome := a.deadline(), flow.Timeout
	if !w.ended.IsZero() && w.ended.Before(ended) {
		ended, outcome = w.ended, flow.Neutral
	}
	switch {
	case now.Before(ended):
		w.rearm(ended)
		w.mu.Unlock()
		return
	case now.Before(ended.Add(stuckAfter)):
		w.rearm(ended.Add(stuckAfter))
		w.mu.Unlock()
		a.expire()
		return
	}
	w.stuck = true
	w.taken = those(a.runs(), w.jobs.isGivenUp)
	taken := w.taken
	t, first := takeTicket(a.runs()), a.runs()[0]
	first.ticket.slot = t.slot // which stays in use
	w.mu.Unlock()
	w.jobs.hang(first.sub, len(a.runs()), 1)
	w.admission.takeBack(first.sub, ticket{place: t.place}, now, flow.End{Began: a.started, Who: first.who(), Outcome: outcome})
	for _, d := range a.runs() {
		w.observe(d, Event{Kind: EventStuck, Time: now, Duration: now.Sub(a.started), Err: errStuck})
	}
	for _, d := range taken {
		w.jobs.takeAway(d, a.started, now)
	}
}

// stop ends the timer of an idle worker.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

var errStuck = errors.New("the handler ignores that its context has ended; its slot stays in use until it returns")

// attempt is one call of a handler, and the context that it gets. The
// standard context behind it is made only when somebody asks for Done, so
// that quick handlers pay nothing.
type attempt struct {
	one     [1]*delivery    // of a handler of single messages
	*extra                  // nil without a batch and a Tracer
	message brokers.Message // its own copy of that of one
	started time.Time

	mu       sync.Mutex
	finished bool
	standard *standard // nil until somebody asks for it
}

// extra is what few attempts have.
type extra struct {
	batch []*delivery     // nil of a handler of single messages
	span  context.Context // that of Run, with the span; nil without a Tracer
}

// standard is the standard context of an attempt, and how to end it.
type standard struct {
	context.Context
	stop context.CancelCauseFunc
}

func (a *attempt) isBatch() bool { return a.extra != nil && a.batch != nil }

// runs are the deliveries that the handler works on.
func (a *attempt) runs() []*delivery {
	if a.isBatch() {
		return a.batch
	}
	return a.one[:]
}

// Deadline implements context.Context.
func (a *attempt) Deadline() (time.Time, bool) { return a.deadline(), true }

func (a *attempt) deadline() time.Time {
	at, _ := a.limit()
	return at
}

// limit returns when the context ends, and with which cause: after the timeout, or
// at the deadline of a message that runs alone.
func (a *attempt) limit() (time.Time, error) {
	d := a.runs()[0]
	at := a.started.Add(d.sub.timeout)
	if !a.isBatch() && d.expires(at) {
		return d.deadline, ErrDeadline
	}
	return at, classify.ErrAttemptTimeout
}

// Done implements context.Context.
func (a *attempt) Done() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.context().Done()
}

// Err implements context.Context.
func (a *attempt) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.standard == nil && !a.finished {
		return nil
	}
	return a.context().Err()
}

// Value implements context.Context. Going through the inner context lets the
// standard library find it and attach children without a goroutine.
func (a *attempt) Value(key any) any {
	if key == (handling.Key{}) {
		return a
	}
	a.mu.Lock()
	inner := a.standard
	a.mu.Unlock()
	if inner == nil {
		return a.base().Value(key)
	}
	return inner.Value(key)
}

// base is the context of Run, without its cancellation, and with the span of a.
func (a *attempt) base() context.Context {
	if a.extra != nil && a.span != nil {
		return a.span
	}
	return a.runs()[0].sub.values
}

// context returns the standard context. mu is held.
func (a *attempt) context() *standard {
	if a.standard != nil {
		return a.standard
	}
	at, cause := a.limit()
	timed, cancel := context.WithDeadlineCause(a.base(), at, cause)
	inner, stop := context.WithCancelCause(timed)
	a.standard = &standard{inner, func(cause error) {
		stop(cause)
		cancel()
	}}
	if a.finished {
		a.standard.stop(context.Canceled)
	}
	return a.standard
}

// end ends the context with cause; the first cause stays.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.context().stop(cause)
}

// expire sees to it that a context whose deadline has passed has ended: the
// standard one does so by itself, once there is one.
func (a *attempt) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.context()
}

// finish ends the context of a handler that has returned and tells why it had
// ended before, if it had.
func (a *attempt) finish() (cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished = true
	if a.standard == nil {
		return nil
	}
	cause = context.Cause(a.standard)
	a.standard.stop(context.Canceled)
	return cause
}

// Shares is what package handling asks: whether the runs depend on something that
// a Limiter paces and whose budget is shared.
func (a *attempt) Shares(shared any) bool {
	g := a.runs()[0].sub.dependency
	of, ok := g.budget.(*given)
	return ok && g.limiter != nil && reflect.ValueOf(shared).Comparable() && shared == any(of.Pacer)
}

// Returned is what package handling asks: whether the runs are of messages that
// were sent back.
func (a *attempt) Returned() bool { return a.runs()[0].returned() }

// allLost reports whether no delivery of the attempt has a lease left.
func (a *attempt) allLost() bool {
	return !slices.ContainsFunc(a.runs(), func(d *delivery) bool { return d.loss.Load() == nil })
}

var _ context.Context = (*attempt)(nil)
