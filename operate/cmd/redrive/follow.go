package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// lookEvery is how often a job is looked at that is under way.
const lookEvery = 250 * time.Millisecond

// closing is how long the store may take when a command ends or is interrupted.
const closing = 10 * time.Second

// work works on a job until it is done or pauses, or watches another process do so.
// In the end it prints what became of it.
func (o *order) work(ctx context.Context, id int64, plan job.Plan) error {
	p := term.NewProgress(o.Streams, "letters", int(plan.Letters), time.Now())
	mine, err := o.runOrWatch(ctx, id, plan, &watcher{order: o, id: id, progress: p})
	p.Close()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	if ctx.Err() != nil && mine {
		actor := o.actor
		actor.Reason = "interrupted"
		if fault := o.store.SetJob(last, time.Now(), actor, id, store.JobPaused, "interrupted"); fault != nil && !errors.Is(fault, store.ErrNotRunning) {
			err = errors.Join(err, fault)
		}
	}
	j, fault := o.store.Job(last, id)
	if fault != nil {
		return errors.Join(err, fault)
	}
	return o.conclude(ctx, j, mine, err)
}

// runOrWatch works on a job while no other process does, and watches the other
// process otherwise. Mine is true if this command worked on the job last.
func (o *order) runOrWatch(ctx context.Context, id int64, plan job.Plan, watch *watcher) (mine bool, err error) {
	if o.isElsewhere(plan) {
		watch.say("Only redrive serve can reach the broker of job %d: this command watches.", id)
		return false, watch.until(ctx, func(store.Job) bool { return true })
	}
	for {
		err = o.run(ctx, id, plan, watch)
		leased, taken := errors.AsType[*store.LeasedError](err)
		if !taken {
			return true, err
		}
		if leased.Owner == "" {
			continue // the other process has given up the job
		}
		watch.say("%s works on job %d, and has it until %s, unless it renews its lease. This command watches, and goes on with the job if that process does not.",
			leased.Owner, id, term.ISO(leased.Until))
		if err := watch.until(ctx, func(j store.Job) bool { return j.IsHeld(time.Now()) }); err != nil {
			return false, err
		}
		if j, err := o.store.Job(ctx, id); err != nil || j.State != store.JobRunning {
			return false, err
		}
		watch.say("No process works on job %d any more: this command goes on with it.", id)
	}
}

// conclude prints a job that this command has nothing more to do with.
func (o *order) conclude(ctx context.Context, j store.Job, mine bool, err error) error {
	if err := o.showJob(j); err != nil {
		return err
	}
	next := []string{"redrive", "dlq", "jobs", "resume", strconv.FormatInt(j.ID, 10)}
	switch {
	case j.State == store.JobRunning && ctx.Err() != nil && !mine:
		if rowOfJob(j).Idle {
			return o.resume(fmt.Errorf("%w: no process works on the job", context.Cause(ctx)), next...)
		}
		return o.resume(fmt.Errorf("%w: the job goes on without this command", context.Cause(ctx)), next...)
	case err != nil:
		return o.resume(&partialError{err}, next...)
	case j.State == store.JobPaused:
		return o.resume(&partialError{fmt.Errorf("job %d has paused: %s\nSee why: redrive dlq jobs show %d", j.ID, j.Note, j.ID)}, next...)
	}
	row := rowOfJob(j)
	spec, _ := job.SpecOf(j)
	if bad := row.Returned + row.Refused + row.skipped(); bad > 0 || row.Unknown > 0 && !spec.WithoutReceipts || j.State == store.JobCancelled {
		return &partialError{fmt.Errorf("not all letters were handled: see redrive dlq jobs show %d", j.ID)}
	}
	return nil
}

// isElsewhere reports whether letters of a plan go to a broker that only another
// process can reach.
func (o *order) isElsewhere(plan job.Plan) bool {
	var names []string
	for _, to := range plan.To {
		names = append(names, to.Broker)
	}
	if names == nil { // only receipts are awaited
		names = brokerNames(o.cfg)
	}
	return slices.ContainsFunc(names, func(name string) bool { return elsewhere(o.cfg, name) != nil })
}

// run works on a job, and reads the receipts of its letters meanwhile.
func (o *order) run(ctx context.Context, id int64, plan job.Plan, watch *watcher) (err error) {
	server := o.server(o.cfg, o.store, watch.progress)
	defer func() { err = errors.Join(err, closeBrokers(ctx, server.Brokers)) }()
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		var dead []config.Topic
		if plan.Spec.WithoutReceipts { // what comes back is all that there is to see
			dead = reachable(o.cfg, serve.Collected(o.cfg))
		}
		server.Follow(beside, dead, reachable(o.cfg, o.cfg.Topics))
	})
	running.Go(func() { _ = watch.until(beside, func(store.Job) bool { return true }) })
	_, err = server.Runner().Run(ctx, id)
	stop()
	running.Wait()
	return err
}

// reachable are those of topics whose broker this process can reach.
func reachable(c *config.Config, topics []config.Topic) (list []config.Topic) {
	for _, t := range topics {
		if elsewhere(c, t.Broker) == nil {
			list = append(list, t)
		}
	}
	return list
}

// watcher shows how far a job is.
type watcher struct {
	*order
	id       int64
	progress *term.Progress
	from     int // the wave that was under way at first
	told     int // the last one that was told of
}

// say writes a message above the progress bar.
func (w *watcher) say(format string, args ...any) {
	for _, line := range term.Wrap(term.Safe(fmt.Sprintf(format, args...)), w.Width) {
		fmt.Fprintln(w.progress, line)
	}
}

// until watches the job while it runs and more returns true. If ctx ends, it
// returns the cause.
func (w *watcher) until(ctx context.Context, more func(store.Job) bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		j, err := w.store.Job(ctx, w.id)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if err := w.tell(ctx, j); err != nil && ctx.Err() == nil {
			return err
		}
		if j.State != store.JobRunning || !more(j) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tell shows the progress, and each of the first waves that is over.
func (w *watcher) tell(ctx context.Context, j store.Job) error {
	w.progress.Set(int(rowOfJob(j).over()), time.Now())
	if w.from == 0 {
		w.from, w.told = j.Wave, j.Wave-1
	}
	spec, err := job.SpecOf(j)
	last := w.from + len(spec.Waves) - 1
	if err != nil || w.told >= min(last, j.Wave-1) {
		return err
	}
	waves, err := w.store.Waves(ctx, w.id, w.told+1)
	if err != nil {
		return err
	}
	for _, wave := range waves {
		if wave.N <= min(last, j.Wave-1) {
			fmt.Fprintf(w.progress, "Wave %d: %d confirmed, %d returned\n", wave.N, wave.Confirmed, wave.Returned)
			w.told = wave.N
		}
	}
	return nil
}

// sorted are the entries of a map by their keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
