package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// driver plays a scenario whose workers are processes, and kills them.
type driver struct {
	run
	options
	server    server
	broker    brokers.Broker // of the producers
	incidents sync.WaitGroup

	mu           sync.Mutex
	killed       map[point]int
	running      map[*process]bool
	brokerKilled atomic.Bool // a fault was that
}

// proveServed kills worker processes while they work on messages, and returns
// what all of them and the producer have seen.
func proveServed(ctx context.Context, o options) (rec *record, err error) {
	if o.URL, err = addressOf(o.Broker, o.URL); err != nil {
		return nil, err
	}
	o.Tag = "proof-" + strings.ToLower(rand.Text()[:8])
	l := newLedger(nil)
	l.start = l.start.Round(0) // the clock that all processes share
	o.Start = l.start.UnixNano()
	d := &driver{options: o, run: run{scenario: newServedScenario(o.job), ledger: l}, killed: map[point]int{}, running: map[*process]bool{}}
	if d.server, err = newServer(ctx, o.job, d.scenario); err != nil {
		return nil, err
	}
	defer d.server.close(context.WithoutCancel(ctx))
	if d.broker, err = connect(o.job, nil, d.server.declared); err != nil {
		return nil, err
	}
	defer d.broker.Close(context.WithoutCancel(ctx))
	return d.play(ctx)
}

func (d *driver) play(ctx context.Context) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, d.scenario.limit+time.Minute)
	defer cancel()
	hired := d.hire(ctx, d.scenario.incidents)
	if err := await(ctx, d.server, d.scenario); err != nil {
		hired()
		return nil, err
	}
	var faults sync.WaitGroup
	if d.faults != nil {
		fmt.Fprintln(d.answers, "ready")
		faults.Go(d.follow)
	}
	d.publish(ctx)
	d.incidents.Wait()
	faults.Wait()
	for {
		calm := d.quiet(ctx)
		hired()
		left, err := d.residue(ctx)
		if err != nil {
			return nil, err
		}
		if calm && left == 0 {
			return d.record(ctx)
		}
		if d.ledger.now() > d.scenario.limit || ctx.Err() != nil {
			d.ledger.add(event{Kind: overdue})
			return d.record(ctx)
		}
		hired = d.hire(ctx, nil)
	}
}

// follow notes the faults that it is told of.
func (d *driver) follow() {
	lines := bufio.NewScanner(d.faults)
	for lines.Scan() {
		what, name, _ := strings.Cut(lines.Text(), " ")
		if what == "workers" {
			fmt.Fprintln(d.answers, "workers"+d.pids())
			continue
		}
		e := event{Kind: faulted, Note: name}
		if what == "begin" {
			e.Flags = isBegin
		}
		d.brokerKilled.CompareAndSwap(false, name == "broker killed")
		d.ledger.add(e)
		fmt.Fprintln(d.answers, "noted")
	}
}

// pids lists the worker processes, each after a space.
func (d *driver) pids() (text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.running {
		text += fmt.Sprint(" ", p.cmd.Process.Pid)
	}
	return text
}

// publish has several producers, as one that waits for every confirm is slow.
func (d *driver) publish(ctx context.Context) {
	const producers = 8
	seen := newWitness(d.broker, d.ledger, d.scenario, 0)
	var working sync.WaitGroup
	for i := range producers {
		working.Go(func() {
			for at := i; at < len(d.scenario.calls); at += producers {
				d.produce(ctx, seen, d.scenario.calls[at])
			}
		})
	}
	working.Wait()
}

// hire keeps a process running in every slot until the returned function is
// called.
func (d *driver) hire(ctx context.Context, incidents []incident) (fire func()) {
	stop := make(chan struct{})
	var working sync.WaitGroup
	d.incidents.Add(len(incidents))
	for i := range d.scenario.slots {
		mine := slices.DeleteFunc(slices.Clone(incidents), func(in incident) bool { return in.slot != i })
		working.Go(func() { d.supervise(ctx, i, mine, stop) })
	}
	return func() {
		close(stop)
		working.Wait()
	}
}

const (
	startTime = time.Second      // in which a process is left alone, so that it gets to work
	stopLimit = 20 * time.Second // then a worker is stuck
	trapLimit = 30 * time.Second // then a process is killed where it happens to be
)

func (d *driver) supervise(ctx context.Context, slot int, mine []incident, stop <-chan struct{}) {
	defer func() { d.incidents.Add(-len(mine)) }()
	for ctx.Err() == nil {
		p, err := d.start(ctx, slot)
		if err != nil {
			d.ledger.add(event{Kind: down, Note: err.Error()})
			return
		}
		next := incident{at: 1 << 62}
		if len(mine) > 0 {
			next = mine[0]
		}
		timer := time.NewTimer(max(next.at-d.ledger.now(), startTime))
		select {
		case <-stop:
			d.stop(p)
			timer.Stop()
			return
		case <-timer.C:
			if !next.crash && d.stop(p) || next.crash && d.kill(p, next.point) {
				mine = mine[1:]
				d.incidents.Done()
			}
			wait(ctx, next.pause)
		case <-p.done: // of a message, or nobody asked for that and the checker will tell
			d.gone(p)
			wait(ctx, startTime/2)
		}
		timer.Stop()
	}
}

// process is a worker that is a process of its own.
type process struct {
	number int
	cmd    *exec.Cmd
	in     io.Writer
	errors bytes.Buffer  // read it when done
	at     chan point    // where it has stopped
	done   chan struct{} // closed when it has ended
	err    error         // how
	fell   time.Duration // when a message killed it, 0 if none did; read it when done

	mu sync.Mutex // of in
}

// start runs the next worker process in a slot.
func (d *driver) start(ctx context.Context, slot int) (*process, error) {
	j := d.job
	j.Number, j.Slot = d.ledger.newWorker(), slot
	told, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{number: j.Number, cmd: exec.CommandContext(ctx, executable, workerCommand, string(told)), at: make(chan point, 1), done: make(chan struct{})}
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	d.ledger.add(d.scenario.slots[slot].up(p.number))
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[p] = true
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

// serve answers a process until its end. What it has written outlives it, however
// it ends, since the kernel has it then.
func (d *driver) serve(p *process, out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return // it may have died in the middle of a line, so that nothing followed
		}
		what, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch what {
		case "event":
			var e event
			if err := json.Unmarshal([]byte(rest), &e); err != nil {
				panic(fmt.Sprintf("read the ledger: %v in %q", err, rest)) // without one the run proves nothing
			}
			d.ledger.mu.Lock()
			d.ledger.keep(e)
			d.ledger.mu.Unlock()
		case "run":
			p.tell("run %d", d.ledger.run(rest))
		case "at":
			if point(rest) != byMessage {
				p.at <- point(rest)
			} else if p.fell == 0 {
				p.fell = d.ledger.now()
				p.cmd.Process.Kill()
			}
		default:
			d.server.declared(what, rest)
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

// stop ends a process cleanly. It returns true, for it has ended.
func (d *driver) stop(p *process) bool {
	d.ledger.add(event{Kind: stopping, Worker: p.number})
	p.tell("stop")
	select {
	case <-p.done:
		d.gone(p)
	case <-time.After(stopLimit):
		d.ledger.add(event{Kind: down, Worker: p.number, Note: fmt.Sprintf("did not stop within %v", stopLimit)})
		p.cmd.Process.Kill()
		<-p.done
	}
	return true
}

// kill ends a process at a point. It reports false if it had ended before.
func (d *driver) kill(p *process, where point) bool {
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
	if err != nil {
		d.gone(p)
		return false
	}
	d.died(p, where, at)
	return true
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
	text := p.errors.String()
	switch {
	case p.fell > 0:
		d.died(p, byMessage, p.fell)
	case p.err != nil:
		d.ledger.add(event{Kind: down, Worker: p.number, Note: fmt.Sprintf("%v: %s", p.err, text[:min(len(text), 2000)])})
	}
}

// residue counts the messages that are ready anywhere but among the dead.
func (d *driver) residue(ctx context.Context) (left int, err error) {
	counts, err := d.server.counts(ctx)
	for name, n := range counts {
		if !d.scenario.isDead(name) {
			left += n
		}
	}
	return left, err
}

// quiet waits until nothing is left and nobody does anything. It reports false
// if that takes too long. After the broker was killed it may be silent for longer,
// and still have something: RabbitMQ repeats what it was moving to another queue,
// which it counts nowhere, after 5 s as the harness sets it up.
func (d *driver) quiet(ctx context.Context) bool {
	still, pause := 1500*time.Millisecond, 250*time.Millisecond
	if d.brokerKilled.Load() {
		still = 15 * time.Second
	}
	size, since := -1, time.Now()
	for ctx.Err() == nil && d.ledger.now() < d.scenario.limit {
		left, err := d.residue(ctx)
		if now := d.ledger.size(); err != nil || left > 0 || now != size {
			size, since = now, time.Now()
		}
		if time.Since(since) > still {
			return true
		}
		wait(ctx, pause)
	}
	return false
}

// record puts together what everybody has seen, and empties the dead-letter
// queues.
func (d *driver) record(ctx context.Context) (rec *record, err error) {
	rec = &record{scenario: d.scenario, events: merge(d.ledger.events), letters: map[string][]brokers.Message{}, moved: map[string]bool{}, kills: d.killed}
	counts, err := d.server.counts(ctx, d.scenario.dead()...)
	if err != nil {
		return nil, err
	}
	for _, topic := range d.scenario.dead() {
		if rec.letters[topic], err = readLetters(ctx, d.broker, topic, d.Tag+".letters."+topic, counts[topic], rec.moved); err != nil {
			return nil, err
		}
	}
	rec.left, err = d.server.counts(ctx)
	return rec, err
}

// merge puts the events of all processes in order. A process writes until it
// is dead, which is a moment after it was killed; its end comes last.
func merge(events []event) []event {
	last := map[int]time.Duration{}
	end := func(e event) int { return slices.Index([]kind{crashed, down}, e.Kind) }
	for _, e := range events {
		if end(e) < 0 {
			last[e.Worker] = max(last[e.Worker], e.At)
		}
	}
	for i, e := range events {
		if end(e) >= 0 {
			events[i].At = max(cmp.Or(e.Until, e.At), last[e.Worker])
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(end(a), end(b)))
	})
	return events
}
