package store_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redrive-go/redrive/operate/internal/breaktest"
	"github.com/redrive-go/redrive/operate/store"
)

// smallDisk mounts a disk of 4 MiB for the length of the test.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	if dir = breaktest.SmallDisk(t, "4m"); dir == "" {
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
	must(t, s.TryWrite(t.Context()))
	n := 0
	var err error
	for ; err == nil; n++ {
		_, err = s.Collect(t.Context(), noon, []store.Collected{collected(entry(n))})
	}
	n-- // the last one
	fails(t, err, store.ErrFull)
	same(t, "some were collected", n > 0, true)
	same(t, "letters", len(list(t, s, store.Filter{}, 1000)), n)
	must(t, s.Close())
	s = open(t, file)
	same(t, "letters after the store was opened again", len(list(t, s, store.Filter{}, 1000)), n)
	fails(t, errOf(s.Collect(t.Context(), noon, []store.Collected{collected(entry(n))})), store.ErrFull)
	fails(t, s.TryWrite(t.Context()), store.ErrFull)
	must(t, os.Remove(ballast))
	must(t, s.TryWrite(t.Context()))
	collect(t, s, noon, collected(entry(n)))
	recount(t, raw(t, file), "topic", "topics")
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
	fails(t, errOf(store.Open(t.Context(), file)), store.ErrReadOnly)
}
