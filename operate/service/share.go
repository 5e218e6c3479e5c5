package service

import (
	"context"
	"slices"
	"sync"
)

// mostOfOne is the usual factor of shares: one tenant alone has at most three quarters
// of the places, and three together have at most nine tenths (56 of 64).
const mostOfOne = 3

// shares divides places among tenants. Some free places are kept for tenants that have
// none: one for each tenant that has a place, at most a sixteenth of all, at least one.
// So several new tenants find a place even if the others hold all that they can get. A
// tenant with places gets another one while it has less than factor times as many as
// are free, where all of the kept places count as one.
type shares struct {
	factor int
	places int
	most   int // that a tenant may have and wait for; 0 is any number

	mu      sync.Mutex
	free    int
	held    map[string]int             // by tenant; none is 0
	waiting map[string][]chan struct{} // by tenant: closed when its place is there
}

func newShares(places, factor, most int) *shares {
	return &shares{factor: factor, places: places, most: most, free: places, held: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// left returns how many places are free.
func (s *shares) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}

// take reports whether a tenant got a place. It must be given back.
func (s *shares) take(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(tenant)
}

func (s *shares) takeLocked(tenant string) bool {
	held, kept := s.held[tenant], max(1, min(len(s.held), s.places/16))
	if s.free == 0 || held > 0 && (s.free <= kept || held >= s.factor*(s.free-kept+1)) {
		return false
	}
	s.free--
	s.held[tenant]++
	return true
}

// wait waits for a place until ctx ends, unless too many do, and reports whether it got
// one.
func (s *shares) wait(ctx context.Context, tenant string) bool {
	s.mu.Lock()
	if s.takeLocked(tenant) {
		s.mu.Unlock()
		return true
	}
	if s.most > 0 && s.held[tenant]+len(s.waiting[tenant]) >= s.most {
		s.mu.Unlock()
		return false
	}
	got := make(chan struct{})
	s.waiting[tenant] = append(s.waiting[tenant], got)
	s.mu.Unlock()
	select {
	case <-got:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[tenant], got)
	if i < 0 {
		return true // it came at the same time
	}
	s.queue(tenant, slices.Delete(s.waiting[tenant], i, i+1))
	return false
}

// wanted reports whether a tenant without a place waits.
func (s *shares) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tenant := range s.waiting {
		if s.held[tenant] == 0 {
			return true
		}
	}
	return false
}

// give gives back a place of a tenant, for those that wait, in their order within a
// tenant.
func (s *shares) give(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[tenant]--; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
	for other, queue := range s.waiting {
		for len(queue) > 0 && s.takeLocked(other) {
			close(queue[0])
			queue = queue[1:]
		}
		s.queue(other, queue)
	}
}

func (s *shares) queue(tenant string, queue []chan struct{}) {
	if len(queue) == 0 {
		delete(s.waiting, tenant)
		return
	}
	s.waiting[tenant] = queue
}
