// Package breaktest has what tests break: processes, which they kill, and disks,
// which they fill.
package breaktest

import (
	"bytes"
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is one that a test may kill.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once done is closed

	mu   sync.Mutex
	text bytes.Buffer
}

// Start starts a command. Where it cannot be started, it has ended with the error.
func Start(cmd *exec.Cmd) *Process {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if p.err = cmd.Start(); p.err != nil {
		close(p.done)
		return p
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p
}

// Write takes what the process says.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// Log is what the process has said so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether it has.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Err waits for the end of the process, and says how it was.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Shoot kills the process, unless it has ended, and does not wait.
func (p *Process) Shoot() {
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
	}
}

// Kill kills the process, and reports whether that is how it has ended.
func (p *Process) Kill() bool {
	p.Shoot()
	<-p.done
	const bySignal = -1
	return p.cmd.ProcessState != nil && p.cmd.ProcessState.ExitCode() == bySignal
}

// Stop ends the process in good order, as a supervisor does.
func (p *Process) Stop() error {
	if p.cmd.Process == nil {
		return p.err
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		p.Kill()
		return errors.New("the process does not end within a minute")
	}
}
