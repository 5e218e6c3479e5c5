package collect_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

// onSmallDisk is a world with 16 MiB of letters, and a disk of 64 MiB for the store,
// of which a file, ballast, leaves 12.
func onSmallDisk(t *testing.T) (w *world, ballast string) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount a small disk")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast = filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 52<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w = newWorld(t, nil)
	s, err := store.Open(t.Context(), filepath.Join(dir, "letters.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.file = s
	for n := range 16 {
		m := letter(n)
		m.Body = []byte(strings.Repeat("x", 1<<20))
		w.publish(m)
	}
	return w, ballast
}

// TestDiskRunsLow stops at the limit, with the store itself.
func TestDiskRunsLow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ballast := onSmallDisk(t)
		limits := collect.Limits{FreeDisk: 0.15}
		got, err := w.collector(collect.Config{Store: w.file, Limits: limits}).Run(t.Context())
		if !errors.Is(err, collect.ErrLimit) || got.Added == 0 || got.Added == 16 {
			t.Fatalf("Run = %+v, %v, want ErrLimit on the way", got, err)
		}
		w.split(16, 16-int(got.Added))
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		w.collect(collect.Config{Store: w.file, Limits: collect.Limits{FreeDisk: 1e-9}})
		w.once(16)
	})
}

// TestDiskFull runs into the end of the disk, because a limit is as good as none.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ballast := onSmallDisk(t)
		c, stop := w.follow(collect.Config{Store: w.file, Limits: collect.Limits{FreeDisk: 1e-9}})
		time.Sleep(10 * time.Minute)
		s := c.Status()
		if !errors.Is(s.Paused, store.ErrFull) {
			t.Fatalf("Status = %+v, want it paused by ErrFull", s)
		}
		w.split(16, 16-int(s.Added))
		// What fits may find room once more, when the log of the file is written back.
		if n := w.counts.of("release"); n > 3*16 {
			t.Errorf("%d releases of 16 letters in ten minutes", n)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		w.once(16)
		stop()
	})
}
