package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// driver plays a scenario whose workers are processes.
type driver struct {
	run
	options
	dir        string // of the journals
	executable string
	server     server
	broker     brokers.Broker // of the producers
	incidents  sync.WaitGroup

	mu           sync.Mutex
	killed       map[point]int
	running      map[*process]bool
	brokerKilled atomic.Bool // a fault was that
}

// proveServed kills worker processes while they work on messages, and returns
// what all of them and the producer have seen.
func proveServed(ctx context.Context, o options) (*record, error) {
	d, err := newDriver(ctx, o)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(d.dir)
	defer d.server.close(context.WithoutCancel(ctx))
	defer d.broker.Close(context.WithoutCancel(ctx))
	return d.play(ctx)
}

func newDriver(ctx context.Context, o options) (*driver, error) {
	var err error
	if o.URL, err = addressOf(o.Broker, o.URL); err != nil {
		return nil, err
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.environment = append(os.Environ(), o.environment...)
	o.Tag = "proof-" + strings.ToLower(rand.Text()[:8])
	s := newServedScenario(o.job)
	server, err := newServer(ctx, o.job, s)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "proof-")
	if err != nil {
		return nil, err
	}
	l := newLedger(nil)
	l.start = l.start.Round(0) // the clock that all processes share
	o.Start = l.start.UnixNano()
	b, err := connect(o.job, nil, server.declared)
	if err != nil {
		return nil, err
	}
	return &driver{
		options:    o,
		run:        run{scenario: s, ledger: l},
		dir:        dir,
		executable: executable,
		server:     server,
		broker:     b,
		killed:     map[point]int{},
		running:    map[*process]bool{},
	}, nil
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
	d.produceAll(ctx)
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
			break
		}
		if d.ledger.now() > d.scenario.limit || ctx.Err() != nil {
			d.ledger.add(event{Kind: overdue})
			break
		}
		hired = d.hire(ctx, nil)
	}
	return d.record(ctx)
}

const (
	// brokerKilled is the fault after which a broker may be silent for longer,
	// and still have something: RabbitMQ repeats what it was moving to another
	// queue, which it counts nowhere, after 5 s as the harness sets it up.
	brokerKilled = "broker killed"
	afterKill    = 15 * time.Second
)

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
		if name == brokerKilled {
			d.brokerKilled.Store(true)
		}
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

// produceAll publishes with several producers, as one that waits for every
// confirm is slow.
func (d *driver) produceAll(ctx context.Context) {
	const producers = 8
	calls := d.scenario.calls
	seen := newWitness(d.broker, d.ledger, d.scenario, 0)
	var working sync.WaitGroup
	for i := range producers {
		working.Go(func() {
			for at := i; at < len(calls); at += producers {
				d.produce(ctx, seen, calls[at])
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
	for i := range d.scenario.slots {
		var mine []incident
		for _, in := range incidents {
			if in.slot == i {
				mine = append(mine, in)
			}
		}
		d.incidents.Add(len(mine))
		working.Go(func() { d.supervise(ctx, i, mine, stop) })
	}
	return func() {
		close(stop)
		working.Wait()
	}
}

// startTime is how long a process is left alone, so that it gets to work.
const startTime = time.Second

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
			d.gone(p)
			timer.Stop()
			return
		case <-timer.C:
			if d.end(p, next) {
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

// end reports whether it did end p, which may have been gone before.
func (d *driver) end(p *process, in incident) bool {
	if !in.crash {
		d.stop(p)
		d.gone(p)
		return true
	}
	return d.kill(p, in.point) != ""
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
// if that takes too long.
func (d *driver) quiet(ctx context.Context) bool {
	still, pause := 1500*time.Millisecond, 250*time.Millisecond
	if d.brokerKilled.Load() {
		still = afterKill
	}
	size, since := int64(-1), time.Now()
	for ctx.Err() == nil && d.ledger.now() < d.scenario.limit {
		left, err := d.residue(ctx)
		now := written(d.dir)
		if err != nil || left > 0 || now != size {
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
func (d *driver) record(ctx context.Context) (*record, error) {
	events, err := readJournals(d.dir)
	if err != nil {
		return nil, err
	}
	rec := &record{scenario: d.scenario, events: merge(append(events, d.ledger.events...)),
		letters: map[string][]brokers.Message{}, kills: d.killed}
	var dead []string
	for _, t := range d.scenario.topics {
		if t.dead != "" {
			dead = append(dead, t.dead)
		}
	}
	counts, err := d.server.counts(ctx, dead...)
	if err != nil {
		return nil, err
	}
	for _, topic := range dead {
		if rec.letters[topic] == nil {
			if rec.letters[topic], err = readLetters(ctx, d.broker, topic, d.Tag+".letters."+topic, counts[topic]); err != nil {
				return nil, err
			}
		}
	}
	if rec.left, err = d.server.counts(ctx); err != nil {
		return nil, err
	}
	return rec, nil
}
