package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
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
		wg.Go(func() {
			if err := handle(t.Context(), order("order-7", "x")); err != nil {
				t.Error(err)
			}
		})
		for range 59 {
			time.Sleep(10 * time.Second)
			r, err := s.Memory.Begin(t.Context(), idempotency.Claim{Key: "orders:order-7", Token: "other"}, time.Hour)
			if err != nil || r.State != idempotency.InProgress {
				t.Fatalf("another worker is told %q, %v", r.State, err)
			}
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
	tests := []struct {
		name string
		end  error // of the handler, whose context has ended
	}{
		{"handler stops", context.Canceled},
		{"handler fails in another way", errBusy},
		{"handler succeeds all the same", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				down := false
				s := newFaulty(func(string, int) error {
					if down {
						return errDown
					}
					return nil
				})
				h := &counted{then: func(ctx context.Context, _ int) error {
					s.mu.Lock()
					down = true
					s.mu.Unlock()
					began := time.Now()
					<-ctx.Done()
					if took := time.Since(began); took > 30*time.Second {
						t.Errorf("the context ended after %s, want at most the lease of 30s", took)
					}
					if !errors.Is(context.Cause(ctx), idempotency.ErrClaimLost) {
						t.Errorf("the cause is %v, want ErrClaimLost", context.Cause(ctx))
					}
					time.Sleep(time.Second)
					hold(t, s.Memory, "orders:order-7", "other", time.Hour)
					s.mu.Lock()
					down = false
					s.mu.Unlock()
					return tt.end
				}}
				handle, _ := wrap(t, s, h.handle, nil)
				err := handle(t.Context(), order("order-7", "x"))
				wantUncounted(t, err, idempotency.ErrClaimLost)
				if tt.end != nil && !errors.Is(err, tt.end) {
					t.Errorf("%v does not tell what the handler returned", err)
				}
				r, err := s.Begin(t.Context(), idempotency.Claim{Key: "orders:order-7", Token: "third"}, time.Hour)
				if err != nil || r.State != idempotency.InProgress {
					t.Errorf("after that the key is %q, %v, want it still with the other run", r.State, err)
				}
			})
		})
	}
}

// TestClaimIsTaken is about a worker that stood still for longer than its
// lease: the first extension finds another run, which has finished even.
func TestClaimIsTaken(t *testing.T) {
	for _, done := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := idempotency.NewMemory(0)
			slow := &standing{Store: s}
			h := &counted{then: func(ctx context.Context, _ int) error {
				other := idempotency.Claim{Key: "orders:order-7", Token: "other"}
				time.Sleep(time.Minute)
				if r, err := s.Begin(t.Context(), other, time.Hour); err != nil || r.State != idempotency.Claimed {
					t.Errorf("Begin of the other = %+v, %v", r, err)
				}
				if done {
					if err := s.Complete(t.Context(), other, time.Hour); err != nil {
						t.Error(err)
					}
				}
				slow.wake()
				<-ctx.Done()
				return context.Cause(ctx)
			}}
			handle, _ := wrap(t, slow, h.handle, nil)
			wantUncounted(t, handle(t.Context(), order("order-7", "x")), idempotency.ErrClaimLost)
			err := handle(t.Context(), order("order-7", "x"))
			if done && err != nil {
				t.Errorf("when it comes back: %v, want it skipped", err)
			} else if !done {
				wantUncounted(t, err, idempotency.ErrInProgress)
			}
			h.want(t, "order-7", 1)
		})
	}
}

// standing is a Store whose extensions reach it only after wake.
type standing struct {
	idempotency.Store

	mu    sync.Mutex
	calls int
	awake chan struct{}
}

func (s *standing) gate() (calls int, awake chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awake == nil {
		s.awake = make(chan struct{})
	}
	s.calls++
	return s.calls, s.awake
}

func (s *standing) wake() {
	_, awake := s.gate()
	close(awake)
}

func (s *standing) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	if calls, awake := s.gate(); calls > 1 {
		<-awake
		ctx = context.WithoutCancel(ctx)
	}
	return s.Store.Begin(ctx, c, lease)
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
			if err := handle(t.Context(), order("order-7", "x")); err != nil {
				t.Errorf("a success whose claim nobody took: %v", err)
			}
		}
		h.want(t, "order-7", 1)
	})
}

// panicking is a store that panics from its nth call on.
type panicking struct {
	idempotency.Store
	mu sync.Mutex
	n  int // calls before the first panic
}

func (s *panicking) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n--; s.n < 0 {
		panic("makeslice: len out of range")
	}
}

func (s *panicking) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	s.fail()
	return s.Store.Begin(ctx, c, lease)
}

func (s *panicking) Complete(ctx context.Context, c idempotency.Claim, ttl time.Duration) error {
	s.fail()
	return s.Store.Complete(ctx, c, ttl)
}

func (s *panicking) Release(ctx context.Context, c idempotency.Claim) error {
	s.fail()
	return s.Store.Release(ctx, c)
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
			s := &panicking{Store: idempotency.NewMemory(0), n: calls}
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
