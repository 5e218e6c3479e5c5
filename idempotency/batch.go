package idempotency

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// OnceBatch is [Once] for batch handlers: it wraps one that is then given to
// Consumer.HandleBatch. The handler gets the messages of a batch whose keys it
// has now, and is not called if there are none. What it returns for a message counts for its key as with Once.
//
// Two things differ. A key that is in progress, also for another message of the
// same batch, is not waited for, whatever Options.Wait says, because the whole
// batch would wait: its message comes back later, uncounted. And the context of
// the batch ends, with [ErrClaimLost], only when all claims are lost; the error
// for a message whose claim is lost does not count all the same.
//
// The store is asked twice for each message, for 16 of them at a time.
func OnceBatch(store Store, o Options) (func(consumer.BatchHandler) consumer.BatchHandler, error) {
	g, err := newGuard(store, o)
	if err != nil {
		return nil, err
	}
	g.options.Wait = -1
	return func(next consumer.BatchHandler) consumer.BatchHandler {
		if next == nil {
			return nil
		}
		return func(ctx context.Context, batch []brokers.Item) []error { return g.handleBatch(ctx, batch, next) }
	}, nil
}

// atOnce is how many calls of the store a batch makes at a time, so that it does
// not take all connections of a pool.
const atOnce = 16

func (g *guard) handleBatch(ctx context.Context, batch []brokers.Item, next consumer.BatchHandler) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]error, len(batch))
	claims := make([]Claim, len(batch))
	for i, item := range batch {
		claims[i], results[i] = g.claimOf(item.Message, item.Meta)
	}
	keepers := g.claimAll(ctx, cancel, claims, batch, results)
	defer each(keepers, func(i int, k *keeper) { // of a handler that panics or ends its goroutine, too
		k.stop()
		g.release(ctx, k.claim, batch[i].Message)
	})
	var places []int
	var mine []brokers.Item
	for i, k := range keepers {
		if k != nil {
			places, mine = append(places, i), append(mine, batch[i])
		}
	}
	if len(places) == 0 {
		return results
	}
	got := sized(next(ctx, mine), len(places))
	for i, place := range places {
		results[place] = got[i]
	}
	each(slices.Clone(keepers), func(i int, k *keeper) {
		if results[i] == nil {
			keepers[i] = nil // nothing is released
		}
		results[i] = g.end(ctx, k, batch[i].Message, results[i])
	})
	return results
}

// claimAll claims what it can. It returns the keepers of these claims, and
// fills in the results of the other messages, whose keepers are nil. Claims that
// have a result already are not asked for. Cancel is called when none is left.
func (g *guard) claimAll(ctx context.Context, cancel context.CancelCauseFunc, claims []Claim, batch []brokers.Item, results []error) []*keeper {
	var left atomic.Int64 // messages that have their claim, or may get it
	left.Store(int64(len(batch)))
	lose := func(cause error) {
		if left.Add(-1) == 0 {
			cancel(cause)
		}
	}
	keepers := make([]*keeper, len(batch))
	each(pointers(batch), func(i int, item *brokers.Item) {
		claimed := false
		if results[i] == nil {
			claimed, results[i] = g.enter(ctx, claims[i], item.Message)
		}
		if !claimed {
			lose(ErrClaimLost)
			return
		}
		keepers[i] = keep(ctx, lose, g.store, claims[i], g.options.Lease)
	})
	return keepers
}

// each calls do for all pointers that are not nil, some at a time.
func each[T any](all []*T, do func(i int, one *T)) {
	var calls sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, one := range all {
		if one != nil {
			slots <- struct{}{}
			calls.Go(func() {
				do(i, one)
				<-slots
			})
		}
	}
	calls.Wait()
}

// sized returns what a batch handler returned as n results; nil means that all
// are done.
func sized(results []error, n int) []error {
	if len(results) == n {
		return results
	}
	all := make([]error, n)
	if results != nil {
		err := fmt.Errorf("the batch handler returned %d results for %d messages", len(results), n)
		for i := range all {
			all[i] = err
		}
	}
	return all
}

// pointers returns those to the elements of all.
func pointers[T any](all []T) []*T {
	to := make([]*T, len(all))
	for i := range all {
		to[i] = &all[i]
	}
	return to
}
