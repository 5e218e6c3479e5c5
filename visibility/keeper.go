// Package visibility keeps the leases of messages alive while work on them
// goes on, and says at once when one is lost. On Amazon SQS the lease is the
// visibility timeout, which gave the package its name.
//
// What a [Keeper] guarantees:
//
//   - A tracked lease is extended when between a third and a half of it has
//     passed, in batches, with jitter, whether its work runs, waits for a free
//     worker or waits for its retry to become due.
//   - Work hears of a lost lease when the broker says so, and at the latest
//     when the lease runs out: a failing extension is tried again until then,
//     not trusted, and a hanging one holds nothing up.
//   - Work that asks before it starts ([Keeper.Expire]) hears of it even in a
//     process that stood still, and whose keeper has not looked since.
//   - Nothing is asked beyond the broker's total limit of one delivery.
//
// What it does not guarantee: that the work stops. It calls Lost, which
// should cancel the context of the work; work that ignores its context runs
// on without a lease.
package visibility

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redrive-go/redrive/internal/pulse"
)

var errExpired = errors.New("the lease ran out before it could be extended")

// A Keeper keeps any number of leases of type L alive from one goroutine, and one
// more per call of Extend under way. Set its fields, start it with [Keeper.Run],
// and change them no more. All but MaxLease are required. The functions are called
// from several goroutines; Times and Final must not call the keeper.
type Keeper[L comparable] struct {
	// Lease is the length of a lease, counted from its extension.
	Lease time.Duration

	// MaxLease is the longest that one delivery can be held from its receipt;
	// 0 means no limit. The last second of it may stay unused.
	MaxLease time.Duration

	// Extend makes leases last for lease from now, in one batch: one error
	// per entry, or nil when all went well. A missing entry counts as a
	// temporary error. Its ctx ends after a quarter of the lease, in time for
	// another try. A lease is never in two calls at once.
	Extend func(ctx context.Context, lease time.Duration, leases []L) []error

	// Times tells when the lease was received and when it runs out, as far
	// as Extend has moved it. It is not called for a lease that is in a call
	// of Extend.
	Times func(L) (receivedAt, until time.Time)

	// Final says whether an error of Extend means that the lease is lost.
	// Any other error is temporary.
	Final func(error) bool

	// Lost is called once for a lease that is lost; it is no longer tracked. The
	// cause is a final error of Extend, or says that the lease ran out. Then it also
	// wraps the last error of Extend, if there was one.
	Lost func(lease L, cause error)

	mu     sync.Mutex
	wake   chan struct{} // a lease cannot wait for the next look
	leases map[L]error   // the tracked ones, with the last error of Extend
	asked  map[L]span    // those in a call of Extend, as they were before
	beat   time.Time     // nothing is asked before it; zero means ask at once
}

// span is the time for which a delivery is held.
type span struct{ received, until time.Time }

// init makes what the first use needs. mu is held.
func (k *Keeper[L]) init() {
	if k.wake == nil {
		k.wake, k.leases, k.asked = make(chan struct{}, 1), map[L]error{}, map[L]span{}
	}
}

// Track starts to keep leases alive. It may be called before Run.
func (k *Keeper[L]) Track(leases ...L) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.init()
	for _, lease := range leases {
		k.leases[lease] = nil
		if !k.beat.IsZero() && k.span(lease).until.Sub(k.beat) < k.Lease/2 {
			k.beat = time.Time{}
		}
	}
	if k.beat.IsZero() {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// Forget stops to keep leases alive: they are settled, or nobody's any more.
// Unknown ones are ignored. Calls under way go on: an extension may still
// reach the broker, and a Lost that has begun is not taken back.
func (k *Keeper[L]) Forget(leases ...L) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, lease := range leases {
		delete(k.leases, lease)
	}
}

// Expire loses those of leases that have run out by now, without waiting for
// Run to look: for work that is about to start, in a process that may have been
// frozen meanwhile. It has called Lost when it returns. Unknown leases are
// ignored.
//
// What [time.Now] returns is compared by its monotonic reading, which no step
// of the wall clock moves, but which stands still on some systems while they
// are suspended. time.Now().Round(0) is compared by the wall clock.
func (k *Keeper[L]) Expire(now time.Time, leases ...L) {
	lost := map[L]error{}
	k.mu.Lock()
	for _, lease := range leases {
		failure, tracked := k.leases[lease]
		if !tracked {
			continue
		}
		if s := k.span(lease); !s.until.After(now) {
			delete(k.leases, lease)
			lost[lease] = expired(now.Sub(s.received), failure)
		}
	}
	k.mu.Unlock()
	k.lose(lost)
}

// Len returns the number of leases that are kept alive.
func (k *Keeper[L]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.leases)
}

// Run extends leases until ctx ends, and returns when the calls of Extend
// have. The leases then run out by themselves. It is called once.
func (k *Keeper[L]) Run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	k.mu.Lock()
	k.init()
	k.mu.Unlock()
	beat := pulse.Of(ctx)
	defer beat.End()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		now := time.Now()
		beat.Expect(now)
		due, next := k.look(now)
		for length, leases := range due {
			calls.Go(func() { k.extend(ctx, length, leases) })
		}
		if beat.Rest(); next > 0 {
			beat.Expect(time.Now().Add(next))
			timer.Reset(next)
		}
	}
}

// look loses what has run out. It returns the leases to extend, by the length
// to ask for, and how long to wait for the next look, 0 if nothing is tracked.
// A look for a lease that runs out asks for nothing, so that many of them do
// not speed up the asking.
func (k *Keeper[L]) look(now time.Time) (due map[time.Duration][]L, next time.Duration) {
	due = map[time.Duration][]L{}
	lost := map[L]error{}
	k.mu.Lock()
	asking := !now.Before(k.beat)
	if asking {
		k.beat = now.Add(jittered(k.Lease / 6))
	}
	next = k.beat.Sub(now)
	for lease, failure := range k.leases {
		s := k.span(lease)
		age, left := now.Sub(s.received), s.until.Sub(now)
		if left <= 0 {
			delete(k.leases, lease)
			lost[lease] = expired(age, failure)
			continue
		}
		next = min(next, left)
		_, asked := k.asked[lease]
		length := k.length(age)
		if asking && !asked && left <= k.Lease*2/3 && length > left {
			due[length] = append(due[length], lease)
			k.asked[lease] = s
		}
	}
	if len(k.leases) == 0 {
		k.beat, next = time.Time{}, 0
	}
	k.mu.Unlock()
	k.lose(lost)
	return due, next
}

// span returns the times of a lease. mu is held.
func (k *Keeper[L]) span(lease L) span {
	if s, asked := k.asked[lease]; asked {
		return s
	}
	received, until := k.Times(lease)
	return span{received, until}
}

// length returns for how long a lease of that age may be asked for: in whole
// seconds near the total limit, so that leases still share calls.
func (k *Keeper[L]) length(age time.Duration) time.Duration {
	left := k.MaxLease - age
	if k.MaxLease == 0 || left >= k.Lease {
		return k.Lease
	}
	return left.Truncate(time.Second)
}

// extend asks once for more time.
func (k *Keeper[L]) extend(ctx context.Context, length time.Duration, leases []L) {
	ctx, cancel := context.WithTimeout(ctx, k.Lease/4)
	defer cancel()
	errs := k.Extend(ctx, length, leases)
	lost := map[L]error{}
	k.mu.Lock()
	for i, lease := range leases {
		delete(k.asked, lease)
		if _, tracked := k.leases[lease]; !tracked {
			continue
		}
		var err error
		switch {
		case i < len(errs):
			err = errs[i]
		case errs != nil:
			err = fmt.Errorf("no answer: Extend returned %d errors for %d leases", len(errs), len(leases))
		}
		k.leases[lease] = err
		if err != nil && k.Final(err) {
			delete(k.leases, lease)
			lost[lease] = err
		}
	}
	k.mu.Unlock()
	k.lose(lost)
}

func (k *Keeper[L]) lose(lost map[L]error) {
	for lease, cause := range lost {
		k.Lost(lease, cause)
	}
}

func expired(held time.Duration, failure error) error {
	if failure == nil {
		return fmt.Errorf("%w (held for %s)", errExpired, held)
	}
	return fmt.Errorf("%w (held for %s): %w", errExpired, held, failure)
}

// jittered returns between half of d and d, so that workers started together
// do not extend together.
func jittered(d time.Duration) time.Duration {
	return max(d-rand.N(d/2+1), 1)
}
