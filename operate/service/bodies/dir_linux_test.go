package bodies_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies"
)

// TestUnreadableFolder sweeps what is around a folder that it may not read.
func TestUnreadableFolder(t *testing.T) {
	dir := t.TempDir()
	d := bodies.Dir(dir)
	for _, tenant := range []string{"a", "z"} {
		must(t, errOf(d.Put(t.Context(), tenant, strings.NewReader("a"))))
	}
	must(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0))
	unprivileged(t, dir)
	n, err := d.Sweep(t.Context(), time.Now().Add(time.Hour), nobody)
	if n != 2 || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "lost+found") {
		t.Errorf("%d swept, error %v, want 2, and the folder", n, err)
	}
}

// unprivileged has the file system take this goroutine for nobody, if it is root, and
// a directory be its own.
func unprivileged(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	err := filepath.WalkDir(filepath.Dir(dir), func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, nobody, nobody))
	})
	must(t, err)
	runtime.LockOSThread()
	must(t, syscall.Setfsuid(nobody))
	t.Cleanup(func() {
		_ = syscall.Setfsuid(0)
		runtime.UnlockOSThread()
	})
}
