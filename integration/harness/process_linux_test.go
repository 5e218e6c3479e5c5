package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestProcessOnRecord ends the process on record, and no other that the system
// has given its PID since.
func TestProcessOnRecord(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	file := filepath.Join(t.TempDir(), "pid")
	if err := record(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	another := process{pid: cmd.Process.Pid, since: "1"}
	if err := another.end(t.Context(), syscall.SIGKILL); err != nil || another.alive() {
		t.Errorf("end of a process whose PID another has: %v, alive %v", err, another.alive())
	}
	p := readProcess(file)
	if p.pid != cmd.Process.Pid || !p.alive() {
		t.Fatalf("read %+v, alive %v; want process %d alive", p, p.alive(), cmd.Process.Pid)
	}
	for range 2 { // the second time it has ended
		if err := p.end(t.Context(), syscall.SIGTERM); err != nil || p.alive() {
			t.Errorf("end: %v, alive %v", err, p.alive())
		}
	}
	if err := <-done; err == nil || err.Error() != "signal: terminated" {
		t.Errorf("the process ended with %v, want the signal", err)
	}
}

func TestEndGivesUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	if err := record(file, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	const none = syscall.Signal(0)
	ctx, cancel := context.WithTimeout(t.Context(), pollEvery/2)
	defer cancel()
	if err := readProcess(file).end(ctx, none); err == nil || !strings.Contains(err.Error(), "is still there") {
		t.Errorf("end = %v, want that the process is still there", err)
	}
}

// TestStopReachesTheGroup: a broker may be a child of the process on record.
func TestStopReachesTheGroup(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 60 & echo $!; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	if err := record(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p := readProcess(file)
	if err := p.stop(t.Context()); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{p.pid, child} {
		if _, state, err := stat(pid); err != nil || state != "T" {
			t.Errorf("process %d is in state %q, %v; want it stopped", pid, state, err)
		}
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := p.signal(syscall.SIGSTOP); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("signal to a process that has ended = %v", err)
	}
}

func TestReadProcessWithoutARecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	for _, text := range []string{"", "\n", "12", "x 1\n", "-1 5\n", "1 0\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p := readProcess(file); p.alive() {
			t.Errorf("a process alive from the record %q: %+v", text, p)
		}
	}
	if p := readProcess(file + ".missing"); p.alive() {
		t.Errorf("a missing record gave %+v", p)
	}
}

func TestLockIsExclusive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	try := func() error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
	if err := try(); err != syscall.EWOULDBLOCK {
		t.Errorf("a second lock: %v, want EWOULDBLOCK", err)
	}
	unlock()
	if err := try(); err != nil {
		t.Errorf("a lock after the first was given back: %v", err)
	}
}
