//go:build unix

package web

import "syscall"

// openFiles is how many files this process may have open; zero if nothing says so.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) // it is signed on some systems
}
