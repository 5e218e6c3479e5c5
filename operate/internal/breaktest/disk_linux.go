package breaktest

import (
	"os"
	"syscall"
	"testing"
)

// SmallDisk mounts a disk for the length of a test, with a size such as "4m". It is
// "" if this process may not.
func SmallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return ""
	}
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Logf("no small disk can be mounted: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
