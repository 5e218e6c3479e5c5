package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is a worker that is a process of its own.
type process struct {
	number int
	cmd    *exec.Cmd
	in     io.WriteCloser
	errors *bytes.Buffer // read it when done
	at     chan point    // where it has stopped
	done   chan struct{} // closed when it has ended
	err    error         // how
	stuck  bool          // did not stop when it was told to
	fell   time.Duration // when a message killed it, 0 if none did; read it when done

	mu sync.Mutex // of in
}

// start runs the next worker process in a slot.
func (d *driver) start(ctx context.Context, slot int) (*process, error) {
	number := d.ledger.newWorker()
	j := d.job
	j.Number, j.Slot = number, slot
	j.Journal = fmt.Sprintf("%s/worker-%06d.jsonl", d.dir, number)
	told, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{number: number, cmd: exec.CommandContext(ctx, d.executable, workerCommand, string(told)), errors: &bytes.Buffer{},
		at: make(chan point, 1), done: make(chan struct{})}
	p.cmd.Stderr, p.cmd.Env = p.errors, d.environment
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	d.ledger.add(d.scenario.slots[slot].up(number))
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.running[p] = true
	d.mu.Unlock()
	go func() {
		defer close(p.done)
		d.serve(p, out)
		d.mu.Lock()
		delete(d.running, p) // while its number cannot be another's
		d.mu.Unlock()
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// serve answers a process until its end.
func (d *driver) serve(p *process, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		what, name, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "run":
			p.tell("run %d", d.ledger.run(name))
		case "at":
			if point(name) != byMessage {
				p.at <- point(name)
				continue
			}
			if p.fell == 0 {
				p.fell = d.ledger.now()
				p.cmd.Process.Kill()
			}
		case "queue", "exchange":
			d.server.declared(what, name)
		}
	}
}

// tell writes a line. A process that is gone does not read it, which its end
// will tell.
func (p *process) tell(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.in, format+"\n", args...)
}

// stop ends a process cleanly.
func (d *driver) stop(p *process) {
	d.ledger.add(event{Kind: stopping, Worker: p.number})
	p.tell("stop")
	select {
	case <-p.done:
	case <-time.After(stopLimit):
		d.ledger.add(event{Kind: down, Worker: p.number, Note: fmt.Sprintf("did not stop within %v", stopLimit)})
		p.stuck = true
		p.cmd.Process.Kill()
		<-p.done
	}
}

const (
	stopLimit = 20 * time.Second // then a worker is stuck
	trapLimit = 6 * time.Second  // then a process is killed where it happens to be
)

// kill ends a process at a point, and returns where that was: "" if it had
// ended before.
func (d *driver) kill(p *process, where point) point {
	if where != anywhere {
		p.tell("arm %s", where)
		if where == inDrain {
			d.ledger.add(event{Kind: stopping, Worker: p.number})
			p.tell("stop")
		}
		select {
		case where = <-p.at:
		case <-p.done:
		case <-time.After(trapLimit):
			where = anywhere
		}
	}
	at := d.ledger.now()
	err := p.cmd.Process.Kill()
	<-p.done
	if err != nil { // it was gone before
		d.gone(p)
		return ""
	}
	d.died(p, where, at)
	return where
}

// died writes down the death of a process.
func (d *driver) died(p *process, where point, at time.Duration) {
	d.ledger.add(event{Kind: crashed, Worker: p.number, Note: string(where), Until: at})
	d.ledger.add(event{Kind: down, Worker: p.number, Until: at})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed[where]++
}

// gone writes down the end of a process that ended by itself.
func (d *driver) gone(p *process) {
	if p.fell > 0 {
		d.died(p, byMessage, p.fell)
		return
	}
	if p.err != nil && !p.stuck {
		text := p.errors.String()
		d.ledger.add(event{Kind: down, Worker: p.number, Note: fmt.Sprintf("%v: %s", p.err, text[:min(len(text), 2000)])})
	}
}
