package idempotency_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/idempotency"
)

func claimOf(i int) idempotency.Claim {
	return idempotency.Claim{Key: fmt.Sprintf("key %d", i), Token: fmt.Sprintf("token%d", i)}
}

func TestMemoryForgetsTheOldestSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(3)
		for i := range 5 {
			hold(t, s, claimOf(i).Key, claimOf(i).Token, time.Hour)
			ok(t, s.Complete(t.Context(), claimOf(i), time.Duration(10-i)*time.Minute))
			if s.Len() > 3 {
				t.Errorf("%d keys are stored, want at most 3", s.Len())
			}
		}
		for i := range 2 {
			r, err := s.Begin(t.Context(), idempotency.Claim{Key: claimOf(i).Key, Token: "second"}, time.Hour)
			if err != nil || r.State != idempotency.Done {
				t.Errorf("key %d is %q, %v, want it done", i, r.State, err)
			}
		}
	})
}

func TestMemoryFullOfClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(2)
		hold(t, s, claimOf(0).Key, "a", time.Minute)
		hold(t, s, claimOf(1).Key, "b", time.Minute)
		_, err := s.Begin(t.Context(), claimOf(2), time.Minute)
		if v := classify.Of(err); err == nil || v.Class != classify.ClassTransient {
			t.Errorf("the third claim: %v (%s), want a transient error", err, v.Class)
		}
		if err := s.Complete(t.Context(), claimOf(2), time.Minute); err == nil {
			t.Error("a record had room where there was none")
		}
		time.Sleep(2 * time.Minute)
		hold(t, s, claimOf(2).Key, "c", time.Minute)
	})
}

func TestMemoryIsSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(0)
		const n = 1000
		for i := range n {
			hold(t, s, claimOf(i).Key, claimOf(i).Token, time.Second)
			if i%2 == 0 {
				ok(t, s.Complete(t.Context(), claimOf(i), time.Minute))
			}
		}
		time.Sleep(time.Hour)
		for i := range n / 8 {
			hold(t, s, fmt.Sprintf("later %d", i), "a", time.Hour)
		}
		if s.Len() != n/8 {
			t.Errorf("%d keys are stored, want those %d that have not ended", s.Len(), n/8)
		}
	})
}

func TestMemoryForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(0)
		hold(t, s, "key", "a", time.Hour)
		ok(t, s.Complete(t.Context(), idempotency.Claim{Key: "key", Token: "a"}, 1<<63-1))
		time.Sleep(100 * 365 * 24 * time.Hour)
		if r, err := s.Begin(t.Context(), idempotency.Claim{Key: "key", Token: "b"}, time.Hour); err != nil || r.State != idempotency.Done {
			t.Errorf("after a century the key is %q, %v", r.State, err)
		}
	})
}

func BenchmarkMemory(b *testing.B) {
	s := idempotency.NewMemory(0)
	ctx := context.Background()
	claims := make([]idempotency.Claim, 1<<16)
	for i := range claims {
		claims[i] = claimOf(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := claims[i%len(claims)]
		if _, err := s.Begin(ctx, c, time.Minute); err != nil {
			b.Fatal(err)
		}
		if err := s.Complete(ctx, c, time.Second); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOnce(b *testing.B) {
	h := &counted{}
	handle, _ := wrap(b, idempotency.NewMemory(0), h.handle, nil)
	ctx := context.Background()
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := handle(ctx, order(fmt.Sprintf("order-%d", i), "payload")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("duplicate", func(b *testing.B) {
		b.ReportAllocs()
		m := order("order-0", "payload")
		for b.Loop() {
			if err := handle(ctx, m); err != nil {
				b.Fatal(err)
			}
		}
	})
}
