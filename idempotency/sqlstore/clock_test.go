package sqlstore

import (
	"database/sql"
	"testing"
	"time"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/storetest"
)

// onClock returns a store that reads the time from a table, and a function
// that moves that time.
func onClock(t testing.TB) (*Store, func(time.Duration)) {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	s, err := New(db, SQLite, "")
	if err != nil {
		t.Fatal(err)
	}
	s.prepare("(select ms from clock)")
	if err := s.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("create table clock (ms integer); insert into clock values (1000000000000)"); err != nil {
		t.Fatal(err)
	}
	return s, func(d time.Duration) {
		if _, err := db.Exec("update clock set ms = ms + ?", d.Milliseconds()); err != nil {
			t.Error(err)
		}
	}
}

func TestStoreOnVirtualClock(t *testing.T) {
	var move func(time.Duration)
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) idempotency.Store {
			var s *Store
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
