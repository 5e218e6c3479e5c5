package service

import (
	"context"
	"sync"
	"time"
)

// Large requests take some times their size in memory, so only a few are read at once.
const (
	smallRequest = 1 << 20 // bytes
	mostLarge    = 4
	largeShare   = mostLarge / 2 // of one tenant
	mostWaiting  = 16            // likewise, with those that are read
	turnTime     = 10 * time.Second
)

// turns lets a few large requests in at once, and fewer of each tenant.
type turns struct {
	all chan struct{} // has one for each that is in

	mu      sync.Mutex
	tenants map[string]*tenantTurns
}

type tenantTurns struct {
	in    chan struct{}
	users int // in, or waiting
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, mostLarge), tenants: map[string]*tenantTurns{}}
}

// enter waits for the turn of a tenant, and reports false if that takes too long, or
// if as many wait as may. Who is in calls leave.
func (t *turns) enter(ctx context.Context, tenant string) (leave func(), ok bool) {
	of := t.join(tenant)
	if of == nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	if !take(ctx, of.in) {
		t.quit(tenant)
		return nil, false
	}
	if !take(ctx, t.all) {
		<-of.in
		t.quit(tenant)
		return nil, false
	}
	return sync.OnceFunc(func() {
		<-t.all
		<-of.in
		t.quit(tenant)
	}), true
}

func take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// join counts a request of a tenant. It returns nil if there are too many.
func (t *turns) join(tenant string) *tenantTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[tenant]
	if of == nil {
		of = &tenantTurns{in: make(chan struct{}, largeShare)}
		t.tenants[tenant] = of
	}
	if of.users >= mostWaiting {
		return nil
	}
	of.users++
	return of
}

func (t *turns) quit(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.tenants[tenant]
	if of.users--; of.users == 0 {
		delete(t.tenants, tenant)
	}
}
