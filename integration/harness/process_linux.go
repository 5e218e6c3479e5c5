package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a process as it was put on record. A PID alone may be another
// process by now; the time of its start tells them apart.
type process struct {
	pid   int
	since string // clock ticks after boot
}

// record writes down a process that runs.
func record(file string, pid int) error {
	since, _, err := stat(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(file, fmt.Appendf(nil, "%d %s\n", pid, since), 0o644)
}

// readProcess reads a record. Without one it returns a process that has ended.
func readProcess(file string) process {
	text, err := os.ReadFile(file)
	if err != nil {
		return process{}
	}
	var p process
	if _, err := fmt.Sscan(string(text), &p.pid, &p.since); err != nil {
		return process{}
	}
	return p
}

func (p process) alive() bool {
	if p.pid <= 1 {
		return false
	}
	since, state, err := stat(p.pid)
	return err == nil && since == p.since && state != "Z" && state != "X"
}

// end sends the signal and returns when the process is gone. A process that
// ended before is no error.
func (p process) end(ctx context.Context, signal syscall.Signal) error {
	handle, err := os.FindProcess(p.pid) // holds on to the process, not to the number
	if err != nil || !p.alive() {
		return nil
	}
	defer handle.Release()
	if err := handle.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to process %d: %w", signal, p.pid, err)
	}
	for p.alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d is still there after %v: %w", p.pid, signal, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// signal sends a signal to the process and to those of its group, which are
// all it started that stayed in the foreground.
func (p process) signal(signal syscall.Signal) error {
	if !p.alive() {
		return fmt.Errorf("process %d has ended", p.pid)
	}
	if err := syscall.Kill(-p.pid, signal); err != nil {
		return fmt.Errorf("%v to process group %d: %w", signal, p.pid, err)
	}
	return nil
}

// stop sends SIGSTOP and returns when it is obeyed, by every thread of the
// process and of its children.
func (p process) stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for !p.stopped() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d still runs after %v: %w", p.pid, syscall.SIGSTOP, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// stopped reports whether no thread of the process group runs.
func (p process) stopped() bool {
	threads, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, file := range threads {
		fields, err := statFields(file)
		if err == nil && fields[group5] == strconv.Itoa(p.pid) && !strings.Contains("TZX", fields[state3]) {
			return false
		}
	}
	return true
}

// stat returns when a process started and its state, a letter.
func stat(pid int) (since, state string, err error) {
	fields, err := statFields(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	return fields[since22], fields[state3], nil
}

// Fields of a stat file, from the third on, by their number in proc(5).
const state3, group5, since22 = 0, 2, 19

func statFields(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	// The second field is the name, in brackets, and may have spaces itself.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= since22 {
		return nil, fmt.Errorf("%s has %d fields", file, len(fields))
	}
	return fields, nil
}

// startAlone starts a command that inherits only its three standard files. Go
// keeps the files that it opens from child processes. But this process may have
// inherited more, such as the lock of its caller, and a broker would hold that
// lock as long as it lives. Other commands may need the inherited files, so
// startAlone hides them from this command only.
func startAlone(cmd *exec.Cmd) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := fcntl(fd, syscall.F_GETFD, 0); err != nil || flags&syscall.FD_CLOEXEC != 0 {
			continue // closed since, or never inherited
		}
		if _, err := fcntl(fd, syscall.F_SETFD, syscall.FD_CLOEXEC); err != nil {
			return err
		}
		defer fcntl(fd, syscall.F_SETFD, 0)
	}
	return cmd.Start()
}

func fcntl(fd, command, argument int) (int, error) {
	result, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), uintptr(command), uintptr(argument))
	if errno != 0 {
		return 0, errno
	}
	return int(result), nil
}

// tail returns the last lines of a log.
func tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return lastLines(text)
}
