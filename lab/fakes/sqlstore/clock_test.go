package sqlstore_test

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/sqlstore"
	"github.com/redrive-go/redrive/idempotency/storetest"
)

// onClock returns a store on an SQLite with a clock of its own, and a function
// that moves that clock.
func onClock(t testing.TB) (*sqlstore.Store, func(time.Duration)) {
	t.Helper()
	var clock atomic.Int64
	clock.Store(1_000_000_000_000)
	var sqliteOnClock sqlite.Driver
	if err := sqliteOnClock.RegisterScalarFunction("unixepoch", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		if args[0] != "subsec" {
			return nil, fmt.Errorf("unixepoch(%v) is not what the store is known to ask for", args[0])
		}
		return float64(clock.Load()) / 1000, nil
	}); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("sqlite %x", rand.Uint64())
	sql.Register(name, &sqliteOnClock)
	db, err := sql.Open(name, ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	s, err := sqlstore.New(db, sqlstore.SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, func(d time.Duration) { clock.Add(d.Milliseconds()) }
}

func TestStoreOnVirtualClock(t *testing.T) {
	var move func(time.Duration)
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) idempotency.Store {
			var s *sqlstore.Store
			s, move = onClock(t)
			return s
		},
		Pass: func(d time.Duration) { move(d) },
	})
}

// TestClockJumps sets the clock of the database while a key is claimed.
func TestClockJumps(t *testing.T) {
	a := idempotency.Claim{Key: "key", Token: "a"}
	b := idempotency.Claim{Key: "key", Token: "b"}
	tests := []struct {
		name string
		jump time.Duration
		want idempotency.State // for the second worker
		lost bool              // for the first, afterwards
	}{
		{"back, which makes the claim last longer", -time.Hour, idempotency.InProgress, false},
		{"ahead within the lease", 20 * time.Second, idempotency.InProgress, false},
		{"ahead beyond the lease, which takes it away", time.Hour, idempotency.Claimed, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, move := onClock(t)
			if r, err := s.Begin(t.Context(), a, 30*time.Second); err != nil || r.State != idempotency.Claimed {
				t.Fatalf("Begin = %+v, %v", r, err)
			}
			move(tt.jump)
			if r, err := s.Begin(t.Context(), b, 30*time.Second); err != nil || r.State != tt.want {
				t.Errorf("Begin of the second = %+v, %v, want %q", r, err, tt.want)
			}
			err := s.Complete(t.Context(), a, time.Hour)
			if lost := err == idempotency.ErrClaimLost; lost != tt.lost {
				t.Errorf("Complete of the first: %v, want it lost: %t", err, tt.lost)
			}
		})
	}
}
