package job

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-go/redrive/operate/store"
)

// Serve works on every job that runs and that nobody else works on, each beside
// the others, until ctx ends; it returns ctx's cause when all have stopped, as
// [Runner.Run] says. It looks for jobs every second. It also gives up on letters of
// jobs that have ended, when nobody has heard of them for the job's Spec.Wait.
func (r *Runner) Serve(ctx context.Context) error {
	log := cmp.Or(r.Logger, slog.Default())
	s := served{Runner: r, log: log, busy: map[int64]bool{}}
	defer s.running.Wait()
	trouble := trouble{log: log, what: "store"}
	for ctx.Err() == nil {
		wait := look
		if err := s.lookForJobs(ctx); err != nil && ctx.Err() == nil {
			wait = trouble.failed(time.Now(), err)
		} else {
			trouble.over(time.Now())
		}
		sleep(ctx, wait)
	}
	return context.Cause(ctx)
}

// served are the jobs of one call of Serve.
type served struct {
	*Runner
	log     *slog.Logger
	running sync.WaitGroup

	mu   sync.Mutex
	busy map[int64]bool
}

// lookForJobs begins to work on those that wait for it.
func (s *served) lookForJobs(ctx context.Context) error {
	jobs, err := s.Store.UnfinishedJobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		now := time.Now()
		switch {
		case j.State == store.JobRunning && !j.IsHeld(now) && s.take(j.ID):
			s.running.Go(func() {
				defer s.leave(j.ID)
				if _, err := s.Run(ctx, j.ID); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrLeased) {
					s.log.Error("the job cannot go on", "job", j.ID, "error", err)
					sleep(ctx, remind)
				}
			})
		case j.State != store.JobRunning:
			if err := forget(ctx, s.Store, now, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// take reports whether nobody here works on a job, and that somebody does now.
func (s *served) take(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[id] {
		return false
	}
	s.busy[id] = true
	return true
}

func (s *served) leave(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, id)
}

// forget gives up on letters of a job that has ended, after its time.
func forget(ctx context.Context, s *store.Store, now time.Time, j store.Job) error {
	if j.EndedAt.IsZero() || j.Tally.Sent+j.Tally.Sending == 0 {
		return nil
	}
	spec, err := SpecOf(j)
	if err != nil {
		spec = Spec{}.withDefaults()
	}
	before := now.Add(-spec.Wait)
	if j.EndedAt.After(before) {
		return nil
	}
	return expire(ctx, s, now, j.ID, before)
}

// forgetAll does so for all jobs.
func forgetAll(ctx context.Context, s *store.Store, now time.Time) error {
	jobs, err := s.UnfinishedJobs(ctx)
	for _, j := range jobs {
		err = errors.Join(err, forget(ctx, s, now, j))
	}
	return err
}
