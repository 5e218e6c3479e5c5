package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/internal/breaktest"
)

// TestFullDisk stores until there is no room. What was taken stays, whole; the store
// opens, and goes on when there is room again.
func TestFullDisk(t *testing.T) {
	dir := breaktest.SmallDisk(t, "4m")
	if dir == "" {
		t.Skip("only root may mount a small disk")
	}
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 2<<20), 0o600))
	file := filepath.Join(dir, "tasks.db")
	s, err := Open(t.Context(), file)
	must(t, err)
	must(t, errOf(s.PutPolicy(t.Context(), policy("acme", 5))))
	n := 0
	for ; err == nil; n++ {
		var created Task
		var claimed []Task
		if created, _, err = s.Create(t.Context(), task(n)); err == nil {
			claimed, err = s.Claim(t.Context(), []int64{created.Row}, after(100*time.Hour), 0)
		}
		if err == nil {
			err = s.Settle(t.Context(), []Outcome{ended(claimed[0], Pending, 500)})
		}
	}
	if !errors.Is(err, ErrFull) || n < 2 {
		t.Fatalf("after %d tasks: %v, want ErrFull", n, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close on a full disk: %v", err)
	}
	if s, err = Open(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	half := ""
	for i := range n {
		got, err := s.Task(t.Context(), "acme", task(i).ID)
		if errors.Is(err, ErrNotFound) && i == n-1 {
			continue // it was the last one
		}
		if err != nil {
			t.Fatalf("task %d: %v", i, err)
		}
		log, err := s.Attempts(t.Context(), "acme", got.ID, 0, 10)
		if err != nil || len(log) != got.AttemptNumber || got.Status == Pending && i < n-1 && got.AttemptNumber != 1 {
			half += fmt.Sprintf("task %d is %s with %d attempts, and the log has %d (%v)\n", i, got.Status, got.AttemptNumber, len(log), err)
		}
	}
	if half != "" {
		t.Error(half)
	}
	must(t, os.Remove(ballast))
	create(t, s, task(n))
}
