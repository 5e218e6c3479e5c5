package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/idempotency"
)

func TestMemory(t *testing.T) {
	Run(t, Harness{Open: func(testing.TB) idempotency.Store { return idempotency.NewMemory(0) }, Virtual: true})
}

// broken is a Memory with one fault.
type broken struct {
	*idempotency.Memory

	begin    func(s *idempotency.Memory, c idempotency.Claim, lease time.Duration) (idempotency.Record, error)
	complete func(s *idempotency.Memory, c idempotency.Claim, ttl time.Duration) error
	release  func(s *idempotency.Memory, c idempotency.Claim) error
}

func (b broken) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	if b.begin == nil {
		return b.Memory.Begin(ctx, c, lease)
	}
	return b.begin(b.Memory, c, lease)
}

func (b broken) Complete(ctx context.Context, c idempotency.Claim, ttl time.Duration) error {
	if b.complete == nil {
		return b.Memory.Complete(ctx, c, ttl)
	}
	return b.complete(b.Memory, c, ttl)
}

func (b broken) Release(ctx context.Context, c idempotency.Claim) error {
	if b.release == nil {
		return b.Memory.Release(ctx, c)
	}
	return b.release(b.Memory, c)
}

// TestBrokenStores demands that the suite finds stores out that break one
// rule.
func TestBrokenStores(t *testing.T) {
	ctx := context.Background()
	tests := []struct {
		name  string
		store broken
		want  []string // clauses that must fail
	}{
		{"records on first sight", broken{begin: func(s *idempotency.Memory, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
			r, err := s.Begin(ctx, c, lease)
			if r.State == idempotency.Claimed {
				err = s.Complete(ctx, c, long)
			}
			return r, err
		}}, []string{"claim", "lease", "success only", "once"}},
		{"leases never end", broken{begin: func(s *idempotency.Memory, c idempotency.Claim, _ time.Duration) (idempotency.Record, error) {
			return s.Begin(ctx, c, long)
		}}, []string{"lease", "late completion"}},
		{"keeps nobody out", broken{begin: func(_ *idempotency.Memory, c idempotency.Claim, _ time.Duration) (idempotency.Record, error) {
			return idempotency.Record{State: idempotency.Claimed, Fingerprint: c.Fingerprint}, nil
		}}, []string{"claim", "done", "race", "once"}},
		{"knows one token", broken{begin: func(s *idempotency.Memory, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
			c.Token = "same"
			return s.Begin(ctx, c, lease)
		}}, []string{"claim", "race", "release"}},
		{"folds keys", broken{begin: func(s *idempotency.Memory, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
			c.Key = c.Key[:1]
			return s.Begin(ctx, c, lease)
		}}, []string{"keys", "race"}},
		{"completes nothing", broken{complete: func(*idempotency.Memory, idempotency.Claim, time.Duration) error { return nil }},
			[]string{"done", "done outlasts the lease", "late completion", "once"}},
		{"remembers for ever", broken{complete: func(s *idempotency.Memory, c idempotency.Claim, _ time.Duration) error {
			return s.Complete(ctx, c, long)
		}}, []string{"ttl"}},
		{"completes what others have", broken{complete: func(s *idempotency.Memory, c idempotency.Claim, ttl time.Duration) error {
			if err := s.Complete(ctx, c, ttl); err != idempotency.ErrClaimLost {
				return err
			}
			return nil
		}}, []string{"late completion", "done by one"}},
		{"releases nothing", broken{release: func(*idempotency.Memory, idempotency.Claim) error { return nil }},
			[]string{"release", "success only", "once"}},
		{"complains of a second release", broken{release: func(s *idempotency.Memory, c idempotency.Claim) error {
			if s.Len() == 0 {
				return idempotency.ErrClaimLost
			}
			return s.Release(ctx, c)
		}}, []string{"release of nothing"}},
		{"ignores contexts", broken{begin: func(s *idempotency.Memory, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
			return s.Begin(ctx, c, lease)
		}}, []string{"ended context"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Harness{Virtual: true, Open: func(testing.TB) idempotency.Store {
				b := tt.store
				b.Memory = idempotency.NewMemory(0)
				return b
			}}
			var failed []string
			for _, c := range clauses() {
				if err := h.try(t, c); err != nil {
					failed = append(failed, c.name)
				}
			}
			for _, name := range tt.want {
				if !slices.Contains(failed, name) {
					t.Errorf("clause %q passes; those that fail: %q", name, failed)
				}
			}
		})
	}
}
