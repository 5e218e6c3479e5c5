// Package visibility keeps the leases of messages alive while work on them
// goes on, and says at once when one is lost. On Amazon SQS the lease is the
// visibility timeout, which gave the package its name.
//
// What a [Keeper] guarantees:
//
//   - A tracked lease is extended from a third of its length on, in batches,
//     with jitter, whether its work runs, waits for a free worker or waits for
//     its retry to become due.
//   - Work hears of a lost lease when the broker says so, and at the latest
//     when the lease runs out: a failing extension is tried again until then,
//     not trusted.
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
)

// ErrExpired is the cause given to Lost when a lease ran out before an
// extension succeeded.
var ErrExpired = errors.New("the lease ran out before it could be extended")

// Config says how leases of type L are extended. All fields but MaxLease are
// required.
type Config[L comparable] struct {
	// Lease is the length of a lease, counted from its extension.
	Lease time.Duration

	// MaxLease is the longest that one delivery can be held from its receipt;
	// 0 means no limit.
	MaxLease time.Duration

	// Extend makes leases last for lease from now, in one batch: one error
	// per entry, or nil when all went well.
	Extend func(ctx context.Context, lease time.Duration, leases []L) []error

	// Times tells when the lease was received and when it runs out, as far
	// as Extend has moved it. The keeper calls it, Extend and Lost from the
	// goroutine of Run only.
	Times func(L) (receivedAt, until time.Time)

	// Final says whether an error of Extend means that the lease is lost.
	// Any other error is temporary.
	Final func(error) bool

	// Lost is called once for a lease that is lost; it is no longer tracked.
	Lost func(lease L, cause error)
}

// A Keeper keeps any number of leases alive from one goroutine. Make one with
// [New], start it with [Keeper.Run].
type Keeper[L comparable] struct {
	cfg  Config[L]
	wake chan struct{} // something to track after there was nothing

	mu     sync.Mutex
	leases map[L]struct{}
}

// New returns a Keeper that tracks nothing yet.
func New[L comparable](cfg Config[L]) *Keeper[L] {
	return &Keeper[L]{cfg: cfg, wake: make(chan struct{}, 1), leases: map[L]struct{}{}}
}

// Track starts to keep leases alive.
func (k *Keeper[L]) Track(leases ...L) {
	k.mu.Lock()
	idle := len(k.leases) == 0
	for _, lease := range leases {
		k.leases[lease] = struct{}{}
	}
	k.mu.Unlock()
	if idle {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// Forget stops to keep leases alive: they are settled, or nobody's any more.
// Unknown ones are ignored.
func (k *Keeper[L]) Forget(leases ...L) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, lease := range leases {
		delete(k.leases, lease)
	}
}

// Len returns the number of leases that are kept alive.
func (k *Keeper[L]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.leases)
}

// Run extends leases until ctx ends. The leases then run out by themselves.
func (k *Keeper[L]) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		now := time.Now()
		due, next := k.due(now)
		if len(due) > 0 {
			k.extend(ctx, now, due)
			_, next = k.due(time.Now())
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// due returns the leases to extend now and how long to wait for the next
// look, 0 when there is nothing to wait for. Expired leases are lost.
func (k *Keeper[L]) due(now time.Time) (due []L, next time.Duration) {
	type loss struct {
		lease L
		cause error
	}
	var lost []loss
	k.mu.Lock()
	if len(k.leases) > 0 {
		next = jittered(k.cfg.Lease / 6)
	}
	for lease := range k.leases {
		received, until := k.cfg.Times(lease)
		left := until.Sub(now)
		switch {
		case left <= 0:
			delete(k.leases, lease)
			lost = append(lost, loss{lease, fmt.Errorf("%w (held for %s)", ErrExpired, now.Sub(received))})
			continue
		case left <= k.cfg.Lease*2/3 && k.ask(now, received) > left:
			due = append(due, lease)
		}
		next = min(next, left)
	}
	k.mu.Unlock()
	for _, l := range lost {
		k.cfg.Lost(l.lease, l.cause)
	}
	return due, next
}

// ask returns how long a lease may be asked for, given the total limit: in
// whole seconds near the limit, so that leases still share calls.
func (k *Keeper[L]) ask(now, received time.Time) time.Duration {
	left := k.cfg.MaxLease - now.Sub(received)
	if k.cfg.MaxLease == 0 || left >= k.cfg.Lease {
		return k.cfg.Lease
	}
	return left.Truncate(time.Second)
}

// extend asks for more time, in one call per length asked for.
func (k *Keeper[L]) extend(ctx context.Context, now time.Time, due []L) {
	byLength := map[time.Duration][]L{}
	expiry := now.Add(k.cfg.Lease)
	for _, lease := range due {
		received, until := k.cfg.Times(lease)
		if until.Before(expiry) {
			expiry = until
		}
		length := k.ask(now, received)
		byLength[length] = append(byLength[length], lease)
	}
	ctx, cancel := context.WithDeadline(ctx, expiry)
	defer cancel()
	for length, leases := range byLength {
		for i, err := range k.cfg.Extend(ctx, length, leases) {
			if err == nil || !k.cfg.Final(err) {
				continue
			}
			if k.forgets(leases[i]) {
				k.cfg.Lost(leases[i], err)
			}
		}
	}
}

// forgets reports whether lease was tracked until now.
func (k *Keeper[L]) forgets(lease L) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, tracked := k.leases[lease]
	delete(k.leases, lease)
	return tracked
}

// jittered returns d less up to a tenth, so that workers started together do
// not extend together.
func jittered(d time.Duration) time.Duration {
	return max(d-rand.N(d/10+1), 1)
}
