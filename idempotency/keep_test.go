package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/idempotency"
)

// tenMinutes is a handler that takes as long, unless its context ends.
func tenMinutes(ctx context.Context, _ int) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(10 * time.Minute):
		return nil
	}
}

// TestLeaseIsExtended runs a handler for much longer than the lease.
func TestLeaseIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(func(call string, nth int) error {
			if call == "Begin" && nth%2 == 0 {
				return errDown // every other extension fails
			}
			return nil
		})
		h := &counted{then: tenMinutes}
		handle, _ := wrap(t, s, h.handle, nil)
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, handle(t.Context(), order("order-7", "x"))) })
		for range 59 {
			time.Sleep(10 * time.Second)
			wantHeld(t, s.Memory, "orders:order-7")
		}
		wg.Wait()
		calls := s.calls["Begin"]
		time.Sleep(time.Hour)
		if s.calls["Begin"] != calls {
			t.Errorf("the claim is still extended after the handler has returned")
		}
	})
}

// TestClaimIsLost gives the key to another run while the handler is running.
func TestClaimIsLost(t *testing.T) {
	for name, end := range map[string]error{ // of the handler, whose context has ended
		"handler stops":                 context.Canceled,
		"handler fails in another way":  errBusy,
		"handler succeeds all the same": nil,
	} {
		bubble(t, name, func(t *testing.T) {
			var down atomic.Bool
			s := newFaulty(func(string, int) error {
				if down.Load() {
					return errDown
				}
				return nil
			})
			h := &counted{then: func(ctx context.Context, _ int) error {
				down.Store(true)
				began := time.Now()
				<-ctx.Done()
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("the context ended after %s, want at most the lease of 30s", took)
				}
				if cause := context.Cause(ctx); !errors.Is(cause, idempotency.ErrClaimLost) {
					t.Errorf("the cause is %v, want ErrClaimLost", cause)
				}
				time.Sleep(time.Second)
				hold(t, s.Memory, "orders:order-7", "other", time.Hour)
				down.Store(false)
				return end
			}}
			handle, _ := wrap(t, s, h.handle, nil)
			err := handle(t.Context(), order("order-7", "x"))
			wantUncounted(t, err, idempotency.ErrClaimLost)
			if end != nil && !errors.Is(err, end) {
				t.Errorf("%v does not tell what the handler returned", err)
			}
			wantHeld(t, s, "orders:order-7")
		})
	}
}

// wantHeld checks that another run cannot claim a key.
func wantHeld(t *testing.T, s idempotency.Store, key string) {
	t.Helper()
	r, err := s.Begin(t.Context(), idempotency.Claim{Key: key, Token: "third"}, time.Hour)
	if err != nil || r.State != idempotency.InProgress {
		t.Fatalf("the key is %q, %v, want it held", r.State, err)
	}
}

// TestClaimIsTaken is about a worker that stood still for longer than its
// lease: the first extension finds another run, which has finished even.
func TestClaimIsTaken(t *testing.T) {
	for _, done := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			awake := make(chan struct{})
			s := newFaulty(func(call string, nth int) error {
				if call == "Begin" && nth == 2 {
					<-awake
				}
				return nil
			})
			h := &counted{then: func(ctx context.Context, _ int) error {
				time.Sleep(time.Minute)
				hold(t, s.Memory, "orders:order-7", "other", time.Hour)
				if done {
					ok(t, s.Memory.Complete(t.Context(), idempotency.Claim{Key: "orders:order-7", Token: "other"}, time.Hour))
				}
				close(awake)
				<-ctx.Done()
				return context.Cause(ctx)
			}}
			handle, _ := wrap(t, s, h.handle, nil)
			wantUncounted(t, handle(t.Context(), order("order-7", "x")), idempotency.ErrClaimLost)
			if err := handle(t.Context(), order("order-7", "x")); done {
				ok(t, err) // it is skipped
			} else {
				wantUncounted(t, err, idempotency.ErrInProgress)
			}
			h.want(t, "order-7", 1)
		})
	}
}

// TestNobodyTookOver is about a store that was away for longer than the lease,
// and a handler that succeeded meanwhile.
func TestNobodyTookOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := newFaulty(func(_ string, nth int) error {
			if since := time.Since(began); since > time.Second && since < 2*time.Minute {
				return errDown
			}
			return nil
		})
		h := &counted{then: func(context.Context, int) error { time.Sleep(5 * time.Minute); return nil }}
		handle, _ := wrap(t, s, h.handle, nil)
		for range 2 {
			ok(t, handle(t.Context(), order("order-7", "x")))
		}
		h.want(t, "order-7", 1)
	})
}

// TestStoreThatPanics makes a store panic from its first, second, third or
// fourth call on. A panic in the goroutine of the timer would end the worker.
func TestStoreThatPanics(t *testing.T) {
	for calls, want := range []string{
		"the idempotency store failed, and the handler was not run: the idempotency store panicked: makeslice: len out of range",
		"the claim on the idempotency key is lost",                                             // the first extension panics
		"the claim on the idempotency key is lost", "the claim on the idempotency key is lost", // a later extension panics
	} {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int64
			s := newFaulty(func(string, int) error {
				if n.Add(1) > int64(calls) {
					panic("makeslice: len out of range")
				}
				return nil
			})
			h := &counted{then: tenMinutes}
			handle, _ := wrap(t, s, h.handle, nil)
			err := handle(t.Context(), order("order-7", "x"))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("after %d calls: %v, want %q", calls, err, want)
			}
			if v := classify.Of(err); v.Class == classify.ClassPoison {
				t.Errorf("after %d calls: the message is %v, although the store is at fault", calls, v.Class)
			}
		})
	}
}
