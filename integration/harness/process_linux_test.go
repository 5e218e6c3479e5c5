package harness

import (
	"fmt"
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
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	file := filepath.Join(t.TempDir(), "pid")
	must(t, record(file, cmd.Process.Pid))
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

// TestStopReachesTheGroup: a broker may be a child of the process on record.
func TestStopReachesTheGroup(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 60 & echo $!; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	must(t, record(file, cmd.Process.Pid))
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
