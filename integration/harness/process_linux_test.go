package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// sleeper starts a process that ends when the test does, at the latest.
func sleeper(t *testing.T) (cmd *exec.Cmd, wait func() error) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return cmd, func() error { return <-done }
}

func TestProcessOnRecord(t *testing.T) {
	cmd, wait := sleeper(t)
	file := filepath.Join(t.TempDir(), "pid")
	if err := record(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p := readProcess(file)
	if p.pid != cmd.Process.Pid || !p.alive() {
		t.Fatalf("read %+v, alive %v; want process %d alive", p, p.alive(), cmd.Process.Pid)
	}
	if err := p.end(t.Context(), syscall.SIGTERM); err != nil {
		t.Errorf("end: %v", err)
	}
	if err := wait(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("the process ended with %v, want the signal", err)
	}
	if p.alive() {
		t.Error("alive after its end")
	}
	if err := p.end(t.Context(), syscall.SIGKILL); err != nil {
		t.Errorf("end of a process that has ended: %v", err)
	}
}

// TestRecordOfAnother: a PID that the system gave to another process since is
// not ours to stop.
func TestRecordOfAnother(t *testing.T) {
	cmd, wait := sleeper(t)
	p := process{pid: cmd.Process.Pid, since: "1"}
	if p.alive() {
		t.Error("another process passes for the recorded one")
	}
	if err := p.end(t.Context(), syscall.SIGKILL); err != nil {
		t.Errorf("end: %v", err)
	}
	if since, _, err := stat(cmd.Process.Pid); err != nil || since == "" {
		t.Errorf("the other process was stopped: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = wait()
}

func TestEndGivesUp(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `trap "" TERM; echo deaf; read -r line`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	if err := record(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pollEvery/2)
	defer cancel()
	if err := readProcess(file).end(ctx, syscall.SIGTERM); err == nil || !strings.Contains(err.Error(), "is still there") {
		t.Errorf("end = %v, want that the process is still there", err)
	}
	in.Close()
	_ = cmd.Wait()
}

// TestSignalReachesTheGroup: a broker may be a child of the process on record.
func TestSignalReachesTheGroup(t *testing.T) {
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
	for _, step := range []struct {
		signal syscall.Signal
		frozen bool
	}{{syscall.SIGSTOP, true}, {syscall.SIGCONT, false}} {
		if err := p.signal(step.signal); err != nil {
			t.Fatal(err)
		}
		for _, pid := range []int{p.pid, child} {
			for { // the signal has been sent, not yet obeyed
				_, state, err := stat(pid)
				if err != nil || t.Context().Err() != nil {
					t.Fatalf("process %d after %v: state %q, %v", pid, step.signal, state, err)
				}
				if (state == "T") == step.frozen {
					break
				}
				runtime.Gosched()
			}
		}
	}
	if err := p.stop(t.Context()); err != nil || !p.stopped() {
		t.Errorf("stop = %v, stopped %v", err, p.stopped())
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
	if p := readProcess(file + ".missing"); p != (process{}) {
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

func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(strings.Repeat("early\n", 100)+"why\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(file)
	if !strings.HasSuffix(got, "early\nwhy") || strings.Count(got, "\n") != 14 {
		t.Errorf("tail = %q", got)
	}
	if got := tail(file + ".missing"); !strings.Contains(got, "no such file") {
		t.Errorf("tail of a missing file = %q", got)
	}
}
