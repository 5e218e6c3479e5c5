//go:build linux || darwin

package harness

import (
	"os"
	"syscall"
)

// lock waits for the file's lock. The kernel takes it away when this process
// ends, however it ends.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockShared takes the file's lock beside others that share it.
func lockShared(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_SH) }

// lockAlone takes the file's lock, or returns an error if it is taken.
func lockAlone(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
