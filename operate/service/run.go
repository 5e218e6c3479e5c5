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
	var in intake
	for ctx.Err() == nil {
		room := s.hands.left()
		if room < max(s.cfg.Workers*mostInHand/16, 1) { // for claims that are worth their transaction
			sleep(ctx, breather)
			room = s.hands.left()
		}
		if room == 0 {
			continue
		}
		now := s.now()
		due, next, err := s.take(ctx, now, min(room, mostClaimed), &in)
		if err != nil {
			sleep(ctx, retryStore)
			continue
		}
		if len(due) == 0 {
			s.idle(ctx, now, next)
			continue
		}
		due, over := s.divide(due)
		if len(over) > 0 {
			_ = s.Scheduled(ctx, over...) // the next Take has them in turns with others
		}
		if len(due) > 0 {
			s.claim(ctx, calls, due)
		}
		if len(over) > 0 {
			sleep(ctx, breather)
		}
	}
}

// divide takes places for tasks that are due. Over are those whose tenants have enough
// in hand.
func (s *Service) divide(all []Due) (due, over []Due) {
	for _, d := range all {
		if s.hands.take(d.Tenant) {
			due = append(due, d)
		} else {
			over = append(over, d)
		}
	}
	return due, over
}

// intake is where tasks come from while the schedule fails.
type intake struct {
	blind time.Time // until when the schedule is not asked
	after Due       // where to go on in the store; zero is its beginning
}

// take asks the schedule, or while that fails, the store.
func (s *Service) take(ctx context.Context, now time.Time, n int, in *intake) (due []Due, next time.Time, err error) {
	if now.Before(in.blind.Add(-s.cfg.Sweep)) || !now.Before(in.blind) { // the first is a clock that was set back
		within, cancel := context.WithTimeout(ctx, takeTime)
		due, next, err = s.cfg.Schedule.Take(within, now.Add(ahead), n)
		cancel()
		s.trouble.note("take tasks from the schedule", err)
		if err == nil {
			return due, next, nil
		}
		in.blind = s.now().Add(s.cfg.Sweep)
	}
	due, err = s.waiting(ctx, in.after, n)
	in.after = Due{}
	for i, d := range due {
		if d.At.After(now.Add(ahead)) {
			return due[:i], d.At, err
		}
	}
	if len(due) == n {
		in.after = due[n-1] // behind those whose tenants have enough
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

// claim claims tasks that have a place each, and begins to work on them.
func (s *Service) claim(ctx, calls context.Context, due []Due) {
	rows, unclaimed := make([]int64, len(due)), map[int64]string{}
	for i, d := range due {
		rows[i] = d.Row
		unclaimed[d.Row] = d.Tenant
	}
	defer func() {
		for _, tenant := range unclaimed {
			s.hands.give(tenant)
		}
	}()
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
		delete(unclaimed, t.Row)
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
			s.hands.give(e.Task.Tenant)
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
	if len(again) > 0 {
		_ = s.Scheduled(ctx, again...)
	}
}
