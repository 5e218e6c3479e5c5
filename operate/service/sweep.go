package service

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	pageSize      = 1000
	pagesASweep   = 100 // at most; the next sweep goes on from there
	mostExpired   = 1000
	mostDead      = 100
	buryTime      = 30 * time.Second // for the letters of a page
	mostForgotten = 200              // at once: others write in between
	forgetEvery   = time.Minute
	mostUnburied  = 3 // letters of a page that fail, before it is taken to be the broker's fault
)

// reclaim brings back tasks whose worker has died. Nothing of the schedule holds it up.
func (s *Service) reclaim(ctx context.Context) {
	for more := true; more; more = sleep(ctx, s.cfg.Sweep) {
		s.expire(ctx)
	}
}

// sweep brings back tasks that the schedule does not know. It begins with all that
// wait.
func (s *Service) sweep(ctx context.Context) {
	for after, more := (Due{}), true; more && ctx.Err() == nil; {
		page, err := s.waiting(ctx, after, pageSize)
		if err == nil && len(page) > 0 {
			err = s.Scheduled(ctx, page...)
		}
		if err != nil {
			sleep(ctx, retryStore)
			continue
		}
		if more = len(page) == pageSize; more {
			after = page[len(page)-1]
		}
	}
	var after Due
	for sleep(ctx, s.cfg.Sweep) {
		after = s.overdue(ctx, after)
	}
}

func (s *Service) waiting(ctx context.Context, after Due, limit int) ([]Due, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	page, err := s.cfg.Store.Waiting(ctx, after, limit)
	s.trouble.note("read which tasks wait", err)
	return page, err
}

// overdue schedules what should have been taken by now, from after on, until that
// fails. It returns where to go on.
func (s *Service) overdue(ctx context.Context, after Due) Due {
	limit := s.now().Add(-ahead)
	for range pagesASweep {
		page, err := s.waiting(ctx, after, pageSize)
		full := len(page) == pageSize
		for i, d := range page {
			if d.At.After(limit) {
				page, full = page[:i], false
				break
			}
		}
		if len(page) > 0 && s.Scheduled(ctx, page...) != nil {
			return after
		}
		if !full || err != nil {
			return Due{}
		}
		after = page[len(page)-1]
	}
	return after
}

// expire settles tasks whose lease is over: the attempt counts.
func (s *Service) expire(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	now := s.now()
	tasks, err := s.cfg.Store.Expire(within, now, mostExpired)
	s.trouble.note("read which leases are over", err)
	for _, t := range tasks {
		if _, ours := s.working.Load(t.Row); ours {
			continue // it ends by itself: the clock was set
		}
		p, err := s.policy(ctx, t)
		if err != nil {
			continue // the next sweep finds it again
		}
		select {
		case s.endings <- ending{Outcome: decide(t, p, leaseOver(t, now), now, rand.Float64()), foreign: true}:
		case <-ctx.Done():
			return
		}
	}
}

// forget deletes tasks that ended long ago.
func (s *Service) forget(ctx context.Context) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, storeTime)
		n, err := s.cfg.Store.Forget(within, s.now().Add(-s.cfg.Retention), s.cfg.Bury != nil, mostForgotten)
		cancel()
		s.trouble.note("delete tasks that ended long ago", err)
		if n < mostForgotten || err != nil {
			sleep(ctx, forgetEvery)
		}
	}
}

// undertake has dead letters published.
func (s *Service) undertake(ctx context.Context) {
	if s.cfg.Bury == nil {
		return
	}
	tick := time.NewTicker(s.cfg.Sweep)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.bury(ctx)
		select {
		case <-s.dead:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// bury has the letters of all tasks published that wait for it, until that fails.
func (s *Service) bury(ctx context.Context) {
	for ctx.Err() == nil {
		now := s.now()
		dead, err := s.cfg.Store.Dead(ctx, now, now.Add(buryTime), mostDead)
		s.trouble.note("read which tasks are exhausted", err)
		if err != nil || len(dead) == 0 {
			return
		}
		buried, failure := s.publish(ctx, dead)
		s.trouble.note("publish dead letters", failure)
		if len(buried) > 0 {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
			err = s.cfg.Store.Buried(within, buried)
			cancel()
			s.trouble.note("note that dead letters are published", err)
		}
		if err != nil || failure != nil {
			return
		}
	}
}

// publish has letters published as long as they are leased. It returns those that
// were, and the latest failure. The order is random: letters that are refused, or hang,
// do not hold up the same others each time.
func (s *Service) publish(ctx context.Context, dead []Task) (buried []Task, failure error) {
	rand.Shuffle(len(dead), func(i, j int) { dead[i], dead[j] = dead[j], dead[i] })
	failures := 0
	for _, t := range dead {
		left := t.LeaseUntil.Sub(s.now())
		if left <= 0 {
			break
		}
		within, cancel := context.WithTimeout(ctx, left)
		err := s.cfg.Bury(within, t)
		cancel()
		if err == nil {
			buried = append(buried, t)
			continue
		}
		failure = err
		if failures++; failures >= mostUnburied {
			break
		}
	}
	return buried, failure
}
