package proof

import (
	"os"
	"syscall"
	"testing"
)

// smallDisk mounts a disk that a test can fill: "" if it may not.
func smallDisk(t *testing.T) string {
	if os.Geteuid() != 0 {
		return ""
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Logf("no disk is filled, as none can be mounted: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
