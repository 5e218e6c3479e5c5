package service

import (
	"context"
	"sync"
	"time"
)

const (
	// maxShared is how many calls share a transaction.
	maxShared = 1000

	// sharedTime is how long such a transaction may take. It is above all that the
	// database waits for by itself.
	sharedTime = time.Minute
)

// group has calls that come at the same time share a transaction: those that come
// while one is under way share the next. A commit costs the same for one as for
// many.
type group[T any] struct {
	do      func(ctx context.Context, items []T) error // in one transaction
	refused func(error) bool                           // whether one item is to blame, and nothing was done

	mu      sync.Mutex
	waiting []*member[T]
	busy    bool // run is at work
	running sync.WaitGroup
}

// member is a call that waits.
type member[T any] struct {
	ctx  context.Context
	item T
	done chan error // has room for one
}

// add does an item, and returns when it is durable, or when ctx ends: then nobody
// knows whether it is, and the item may still be in use.
func (g *group[T]) add(ctx context.Context, item T) error {
	m := &member[T]{ctx, item, make(chan error, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	if !g.busy {
		g.busy = true
		g.running.Go(g.run)
	}
	g.mu.Unlock()
	select {
	case err := <-m.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns when nothing is under way.
func (g *group[T]) wait() { g.running.Wait() }

// run does what waits until nothing does.
func (g *group[T]) run() {
	for {
		members := g.take()
		if len(members) == 0 {
			return
		}
		err := g.share(members)
		for _, m := range members {
			if len(members) > 1 && g.refused(err) { // each for itself, then
				m.done <- g.share([]*member[T]{m})
			} else {
				m.done <- err
			}
		}
	}
}

// take returns those who wait, some at a time; none when it ends the run.
func (g *group[T]) take() (members []*member[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for ; n < len(g.waiting) && len(members) < maxShared; n++ {
		if g.waiting[n].ctx.Err() == nil { // nobody waits for the others
			members = append(members, g.waiting[n])
		}
	}
	g.waiting = g.waiting[n:]
	g.busy = len(members) > 0
	return members
}

func (g *group[T]) share(members []*member[T]) error {
	ctx, cancel := context.WithTimeout(context.Background(), sharedTime) // it is not that of one of them
	defer cancel()
	items := make([]T, len(members))
	for i, m := range members {
		items[i] = m.item
	}
	return g.do(ctx, items)
}
