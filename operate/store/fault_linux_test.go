package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/store"
)

// smallDisk mounts a disk of 4 MiB for the length of the test.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := breaktest.SmallDisk(t, "4m")
	if dir == "" {
		t.Skip("only root may mount a small disk")
	}
	return dir
}

// TestFullDisk collects until there is no room. What was taken stays readable,
// the store opens, and goes on when there is room again.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 2<<20), 0o600))
	file := filepath.Join(dir, "letters.db")
	s := open(t, file)
	n := 0
	var err error
	for ; err == nil; n++ {
		_, err = s.Collect(t.Context(), noon, []store.Collected{collected(entry(n))})
	}
	n-- // the last one
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("Collect on a full disk: %v, want ErrFull", err)
	}
	if got := list(t, s, store.Filter{}, 1000); len(got) != n || n == 0 {
		t.Errorf("%d letters, want %d", len(got), n)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close on a full disk: %v", err)
	}
	s = open(t, file)
	if got := list(t, s, store.Filter{}, 1000); len(got) != n {
		t.Errorf("%d letters after the store was opened again, want %d", len(got), n)
	}
	must(t, os.Remove(ballast))
	collect(t, s, noon, collected(entry(n)))
	newModelOf(t, s, file).recount("topic", "topics")
}

func TestReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t)
	file := filepath.Join(dir, "letters.db")
	s, err := store.Open(t.Context(), file)
	if err == nil {
		err = s.Close()
	}
	if err == nil {
		err = syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	must(t, err)
	if _, err := store.Open(t.Context(), file); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("Open: %v, want ErrReadOnly", err)
	}
}
