//go:build unix

package web

import "syscall"

// openFiles returns how many files this process may have open; zero is unknown.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) // Cur is signed on some systems
}
