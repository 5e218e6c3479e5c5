package idempotency

import (
	"context"
	"sync"
	"time"
)

// keeper extends a claim at every third of its lease, and ends the context of
// the handler when the claim is lost. It has no goroutine but that of its
// timer, so that a quick handler pays for the timer alone.
type keeper struct {
	ctx    context.Context // of the handler, without its end
	cancel context.CancelCauseFunc
	store  Store
	claim  Claim
	lease  time.Duration

	mu      sync.Mutex // held during an extension
	timer   *time.Timer
	until   time.Time // the claim is ours at least so long
	stopped bool
	lost    bool
}

// keep begins to extend a claim that was just made.
func keep(ctx context.Context, cancel context.CancelCauseFunc, store Store, c Claim, lease time.Duration) *keeper {
	k := &keeper{ctx: context.WithoutCancel(ctx), cancel: cancel, store: store, claim: c, lease: lease, until: time.Now().Add(lease)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(lease/3, k.extend)
	return k
}

// stop ends the extensions. When it returns, none is under way.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}

func (k *keeper) isLost() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

// extend is the timer. A store that fails is asked again until the lease is
// over; then the claim counts as lost.
func (k *keeper) extend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	asked := time.Now()
	ctx, done := context.WithTimeout(k.ctx, min(k.lease/3, callTimeout))
	defer done()
	record, err := k.store.Begin(ctx, k.claim, k.lease)
	switch now := time.Now(); {
	case err == nil && record.State == Claimed:
		k.until = asked.Add(k.lease)
		k.timer.Reset(k.until.Sub(now) / 3)
	case err != nil && now.Before(k.until):
		k.timer.Reset(min(k.lease/10, k.until.Sub(now)))
	default:
		k.lost = true
		k.cancel(ErrClaimLost)
	}
}
