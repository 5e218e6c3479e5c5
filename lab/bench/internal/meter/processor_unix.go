//go:build unix

package meter

import (
	"syscall"
	"time"
)

// ProcessorTime is what this process has used so far.
func ProcessorTime() (time.Duration, error) {
	var used syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), err
}
