package service

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Run works until ctx ends. Then it claims nothing more, gives back what has not
// begun, waits for calls to end for as long as Config.Drain says, and stores what
// became of them. It is called once.
func (s *Service) Run(ctx context.Context) {
	calls, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	storing, give := context.WithCancel(context.WithoutCancel(ctx))
	defer give()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.reclaim(ctx) })
	helpers.Go(func() { s.sweep(ctx) })
	helpers.Go(func() { s.undertake(ctx) })
	helpers.Go(func() { s.forget(ctx) })
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.settle(storing)
	}()
	s.feed(ctx, calls)
	defer time.AfterFunc(s.cfg.Drain, cut).Stop()
	defer time.AfterFunc(s.cfg.Drain+mostMargin, give).Stop()
	s.tasks.Wait()
	helpers.Wait()
	close(s.endings)
	<-settled
	(&http.Client{Transport: s.targets.base}).CloseIdleConnections()
}

// feed claims tasks while there is room for them.
func (s *Service) feed(ctx, calls context.Context) {
	var blind time.Time // until when the schedule is not asked, as it has failed
	for ctx.Err() == nil {
		room := s.cfg.Workers*mostInHand - int(s.inHand.Load())
		if room < max(s.cfg.Workers*mostInHand/16, 1) { // so that claims are worth their transaction
			select {
			case <-s.freed:
			case <-ctx.Done():
			}
			continue
		}
		now := s.now()
		due, next, err := s.take(ctx, now, min(room, mostClaimed), &blind)
		switch {
		case err != nil:
			sleep(ctx, retryStore)
		case len(due) > 0:
			s.claim(ctx, calls, due)
		default:
			s.idle(ctx, now, next)
		}
	}
}

// take asks the schedule, or while that fails, the store.
func (s *Service) take(ctx context.Context, now time.Time, n int, blind *time.Time) (due []Due, next time.Time, err error) {
	if now.Before(blind.Add(-s.cfg.Sweep)) || !now.Before(*blind) { // the first is a clock that was set back
		within, cancel := context.WithTimeout(ctx, takeTime)
		due, next, err = s.cfg.Schedule.Take(within, now.Add(ahead), n)
		cancel()
		s.trouble.note("take tasks from the schedule", err)
		if err == nil {
			return due, next, nil
		}
		*blind = s.now().Add(s.cfg.Sweep)
	}
	due, err = s.waiting(ctx, Due{}, n)
	for i, d := range due {
		if d.At.After(now.Add(ahead)) {
			return due[:i], d.At, err
		}
	}
	return due, time.Time{}, err
}

// idle waits until next comes near, something is added, or for a moment.
func (s *Service) idle(ctx context.Context, now, next time.Time) {
	wait := poll
	if !next.IsZero() {
		wait = min(wait, max(next.Add(-ahead).Sub(now), time.Millisecond))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wake:
	case <-ctx.Done():
	}
}

// claim claims tasks, and begins to work on them.
func (s *Service) claim(ctx, calls context.Context, due []Due) {
	rows := make([]int64, len(due))
	for i, d := range due {
		rows[i] = d.Row
	}
	// What is half claimed when the service stops would count as an attempt.
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	tasks, err := s.cfg.Store.Claim(within, rows, s.now(), ahead)
	s.trouble.note("claim tasks", err)
	if err != nil {
		// Those that are claimed after all are dropped by the next Claim, and count as an
		// attempt when their lease is over.
		_ = s.Scheduled(ctx, due...)
		sleep(ctx, retryStore)
		return
	}
	for _, t := range tasks {
		s.inHand.Add(1)
		s.working.Store(t.Row, nil)
		s.tasks.Go(func() { s.endings <- s.work(ctx, calls, t) })
	}
}

// settle stores endings, as many at once as have come, until there are no more.
func (s *Service) settle(ctx context.Context) {
	for e := range s.endings {
		batch := []ending{e}
		for more := true; more && len(batch) < mostSettled; {
			select {
			case e, ok := <-s.endings:
				if more = ok; ok {
					batch = append(batch, e)
				}
			default:
				more = false
			}
		}
		lost, stored := s.store(ctx, batch)
		s.settled(ctx, batch, lost, stored)
	}
}

// store tries to store endings until their leases are over: then others do.
func (s *Service) store(ctx context.Context, batch []ending) (lost []string, ok bool) {
	outcomes, until := make([]Outcome, len(batch)), time.Time{}
	for i, e := range batch {
		outcomes[i] = e.Outcome
		if e.Task.LeaseUntil.After(until) {
			until = e.Task.LeaseUntil
		}
	}
	for {
		err := s.settleOnce(ctx, outcomes)
		if late, ok := errors.AsType[*LostError](err); ok {
			lost, err = late.TaskIDs, nil
		}
		s.trouble.note("store what became of tasks", err)
		if err == nil {
			return lost, true
		}
		if s.now().After(until) || !sleep(ctx, retryStore) {
			return nil, false
		}
	}
}

func (s *Service) settleOnce(ctx context.Context, outcomes []Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	return s.cfg.Store.Settle(ctx, outcomes)
}

// settled lets go of tasks, and schedules those that are PENDING.
func (s *Service) settled(ctx context.Context, batch []ending, lost []string, stored bool) {
	var again []Due
	for _, e := range batch {
		if !e.foreign {
			s.working.Delete(e.Task.Row)
			s.inHand.Add(-1)
		}
		late := slices.Contains(lost, e.Task.ID)
		if !stored {
			continue
		}
		if !e.quiet {
			s.cfg.Metrics.settled(e.Outcome, late)
		}
		switch {
		case late:
		case e.Task.Status == Exhausted:
			signal(s.dead)
		case e.Task.Status == Pending:
			again = append(again, Due{Row: e.Task.Row, Tenant: e.Task.Tenant, At: e.Task.NextAttemptAt})
		}
	}
	signal(s.freed)
	if len(again) > 0 {
		_ = s.Scheduled(ctx, again...)
	}
}
