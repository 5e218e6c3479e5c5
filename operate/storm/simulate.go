package storm

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// longestWait is the cap of a policy that names none.
const longestWait = 15 * time.Minute

// draws is the chance of one run.
type draws = rand.Rand

// world is one run under way.
type world struct {
	Scenario
	client Client
	chance *draws
	budget *budget.Budget // nil if there is none
	gate   gate           // nil if there is none

	now     time.Duration
	events  agenda
	ready   []*task // may be called, but for the gate and Concurrency
	running int
	free    time.Duration // when the dependency can begin the next call
	wake    *task         // asks the gate again

	offered, served, answered load
	result                    Result
}

// Simulate plays one storm. It fails if a part of c is refused, or if ctx ends.
func Simulate(ctx context.Context, s Scenario, c Client, seed uint64) (Result, error) {
	w := &world{
		Scenario: s, client: c,
		chance:  rand.New(rand.NewPCG(seed, 2)),
		wake:    &task{kind: woken},
		offered: load{width: s.Bin}, served: load{width: s.Bin}, answered: load{width: s.Bin},
	}
	if err := w.protect(); err != nil {
		return Result{}, err
	}
	// Arrivals have chance of their own, so that every client meets the same.
	w.arrive(rand.New(rand.NewPCG(seed, 1)))
	for steps := 0; len(w.events.tasks) > 0; steps++ {
		if steps%4096 == 0 && ctx.Err() != nil {
			return Result{}, fmt.Errorf("the simulation was stopped at %v of its time: %w", w.now, context.Cause(ctx))
		}
		w.step()
	}
	return w.finish(), nil
}

func (w *world) protect() error {
	var err error
	if w.client.Budget != nil {
		if w.budget, err = budget.New(*w.client.Budget); err != nil {
			return err
		}
	}
	w.gate = w.newGate()
	return nil
}

func (w *world) arrive(chance *draws) {
	tasks := make([]task, w.Messages+w.Together)
	var at time.Duration
	var lag time.Duration
	for i := range tasks {
		t := &tasks[i]
		t.of = uint64(i + 1)
		switch {
		case i >= w.Messages:
			at = w.OutageAt
		case w.Poisson:
			at += seconds(chance.ExpFloat64() / w.Rate)
		default:
			lag += time.Duration(2 * chance.Float64() * float64(w.Overrun))
			at = seconds(float64(i+1)/w.Rate) + lag
		}
		if w.over(at) {
			w.result.duringFresh++
		}
		w.schedule(t, due, at)
	}
	w.result.Messages = len(tasks)
}

func seconds(s float64) time.Duration { return time.Duration(s*float64(time.Second) + 0.5) }

func (w *world) schedule(t *task, k kind, at time.Duration) {
	t.kind, t.at = k, at
	heap.Push(&w.events, t)
}

func (w *world) step() {
	t := heap.Pop(&w.events).(*task)
	w.now = t.at
	switch t.kind {
	case due:
		w.ready = append(w.ready, t)
	case ended:
		w.end(t)
	}
	w.dispatch()
}

// dispatch calls for as many of the ready messages as may be.
func (w *world) dispatch() {
	for len(w.ready) > 0 && (w.Concurrency == 0 || w.running < w.Concurrency) {
		t := w.ready[0]
		wait, ok := w.withdraw(t)
		if !ok {
			w.ready[0], w.ready = nil, w.ready[1:]
			w.schedule(t, due, w.now+wait)
			continue
		}
		if !w.admit() {
			w.refund(t)
			return
		}
		w.ready[0], w.ready = nil, w.ready[1:]
		w.call(t)
	}
}

// withdraw takes the token of a retry from the budget.
func (w *world) withdraw(t *task) (wait time.Duration, ok bool) {
	if w.budget == nil || t.calls == 0 {
		return 0, true
	}
	most := cmp.Or(w.client.Retry.Backoff.Cap, longestWait)
	return w.budget.Withdraw(clock(w.now), most, w.chance.Float64())
}

// refund gives back the token of a retry that succeeded, or was not made.
func (w *world) refund(t *task) {
	if w.budget != nil && t.calls > 0 {
		w.budget.Refund(clock(w.now))
	}
}

// admit asks the gate for one call, and if it refuses, has it asked again when it
// says so, or when a call has ended.
func (w *world) admit() bool {
	if w.gate == nil {
		return true
	}
	open := isOpen(w.gate, clock(w.now))
	ok, next := w.gate.Start(clock(w.now))
	switch {
	case !ok && !next.IsZero():
		w.wakeAt(next.Sub(clock(0)))
	case ok && open:
		w.result.OpenCalls++
	}
	return ok
}

func (w *world) wakeAt(at time.Duration) {
	if w.wake.queued {
		heap.Remove(&w.events, w.wake.place)
	}
	w.schedule(w.wake, woken, at)
}

func (w *world) call(t *task) {
	if w.budget != nil && t.calls == 0 {
		w.budget.Deposit(clock(w.now), 1)
	}
	if w.now-t.at > w.Bin {
		t.disturbed = true
	}
	w.running++
	t.calls++
	t.calledAt = w.now
	w.offered.add(w.now)
	if w.over(w.now) {
		w.result.duringCalls++
		t.failed = true
		w.schedule(t, ended, w.now)
		return
	}
	w.serve(t)
}

// serve begins a call as soon as the dependency is free, whether its caller
// waits that long or not.
func (w *world) serve(t *task) {
	begin := w.now
	if w.Capacity > 0 {
		begin = max(w.now, w.free)
		w.free = begin + seconds(1/w.Capacity)
	}
	w.served.add(begin)
	wait := begin + w.Service - w.now
	t.failed = w.Patience > 0 && wait > w.Patience
	if t.failed {
		w.result.Wasted++
		wait = w.Patience
	}
	w.schedule(t, ended, w.now+wait)
}

// end settles a call that was answered, refused or given up.
func (w *world) end(t *task) {
	w.running--
	w.report(t)
	if !t.failed {
		w.answered.add(w.now)
		if t.calls > 1 {
			w.refund(t)
		}
		w.close(t)
		return
	}
	t.disturbed = true
	if t.calls == 1 {
		t.failedAt = w.now
	}
	d := w.client.decide(t, w.now, w.chance)
	if !d.Retry {
		w.result.Lost++
		w.close(t)
		return
	}
	t.delay = d.Delay
	w.schedule(t, due, w.now+d.Delay)
}

func (w *world) report(t *task) {
	if w.gate == nil {
		return
	}
	outcome := flow.Success
	if t.failed {
		outcome = flow.Overload
	}
	w.gate.Done(clock(w.now), clock(t.calledAt), t.of, outcome)
}

func (w *world) close(t *task) {
	if t.disturbed {
		w.result.calm = w.now
	}
}

func (w *world) finish() Result {
	r := w.result
	r.Attempts = w.offered.total
	r.Offered, r.Served, r.Answered = w.offered.bins, w.served.bins, w.answered.bins
	r.PeakOffered, r.PeakServed = w.offered.peakRate(), w.served.peakRate()
	if r.duringFresh > 0 {
		r.Amplification = float64(r.duringCalls) / float64(r.duringFresh)
	}
	r.Settled = max(r.calm-w.OutageAt-w.Outage, 0)
	return r
}
