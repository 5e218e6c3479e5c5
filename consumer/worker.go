package consumer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
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
	line   *line         // of its job, nil if it has none; under the mu of the pool
	timer  *time.Timer

	mu      sync.Mutex
	current *attempt
	fires   time.Time // when timer fires; zero when it does not
	stuck   bool
}

// jobs is what a worker asks about the deliveries that it works on, and whom it
// tells of them.
type jobs interface {
	// admitted returns those that may start.
	admitted(job []*delivery, now time.Time) []*delivery

	// hang counts the deliveries of handlers that do not return, or have returned.
	hang(runs []*delivery, change int)

	// finish takes the deliveries of a to what comes next.
	finish(a *attempt, results []error, cause error, now time.Time)
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
	if w.isAbandoned(a) { // before it began: this goroutine had no processor, and what it works on was given back
		a.finish()
		return
	}
	w.call(a)
}

// isAbandoned reports whether a was taken away from the worker.
func (w *worker) isAbandoned(a *attempt) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current != a
}

func (w *worker) begin(job []*delivery, now time.Time) *attempt {
	a := &job[0].first
	if !a.started.IsZero() {
		a = new(attempt)
	}
	a.started = now
	if job[0].sub.batchHandler != nil {
		batch := job
		a.batch = &batch
	} else {
		a.one[0], a.message = job[0], job[0].Message
	}
	for _, d := range job {
		d.move(running)
		d.setCurrent(a)
	}
	w.mu.Lock()
	w.current = a
	if deadline := a.deadline(); w.fires.IsZero() || deadline.Before(w.fires) {
		w.rearm(deadline)
	}
	w.mu.Unlock()
	for _, d := range job { // what was lost before anybody could find the attempt
		if loss := d.lost(); loss != nil {
			d.lose(loss)
		}
	}
	return a
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
	var results []error
	if r.batchHandler != nil {
		results = r.callBatch(a)
	} else {
		single := [1]error{r.handler(a, &a.message)}
		results = single[:]
	}
	returned = true
	w.finish(a, results)
}

// callBatch returns one result for each run of a.
func (r *route) callBatch(a *attempt) []error {
	copies := make([]brokers.Message, len(a.runs()))
	batch := make([]Item, len(a.runs()))
	for i, member := range a.runs() {
		copies[i] = member.Message
		batch[i] = Item{Message: &copies[i], Meta: member.metaOfRun()}
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
	abandoned, unstuck := w.current != a, w.stuck
	w.current, w.stuck = nil, false
	w.mu.Unlock()
	cause := a.finish()
	if abandoned {
		return
	}
	if unstuck {
		w.jobs.hang(a.runs(), -1)
		for _, d := range a.runs() {
			w.observe(d, Event{Kind: EventUnstuck, Time: now, Duration: now.Sub(a.started)})
		}
	}
	w.jobs.finish(a, results, cause, now)
}

// deliveries returns what the worker works on.
func (w *worker) deliveries() []*delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		return nil
	}
	return w.current.runs()
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

// interrupt ends the context of the running handler.
func (w *worker) interrupt(cause error) {
	w.mu.Lock()
	current := w.current
	w.mu.Unlock()
	if current != nil {
		current.end(cause)
	}
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
	switch {
	case a == nil || w.stuck:
		w.mu.Unlock()
		return
	case now.Before(a.deadline()):
		w.rearm(a.deadline())
		w.mu.Unlock()
		return
	case now.Before(a.deadline().Add(stuckAfter)):
		w.rearm(a.deadline().Add(stuckAfter))
		w.mu.Unlock()
		a.expire()
		return
	}
	w.stuck = true
	changed := freePlace(a.runs(), a.started, now, flow.Timeout)
	w.mu.Unlock()
	w.jobs.hang(a.runs(), 1)
	w.admission.ended(a.runs()[0].sub.dependency, now, changed)
	for _, d := range a.runs() {
		w.observe(d, Event{Kind: EventStuck, Time: now, Duration: now.Sub(a.started), Err: errStuck})
	}
}

// stop ends the timer of an idle worker.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

var errStuck = errors.New("the handler ignores that its context has ended; its slot stays in use until it returns")
