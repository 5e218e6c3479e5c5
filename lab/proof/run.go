package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// run is a scenario in progress.
type run struct {
	scenario *scenario
	ledger   *ledger
	connect  func() brokers.Broker // a worker, or the producer
	rig      rig
	trap     *trap // of a worker that is a process
	kills    atomic.Int64
	current  []atomic.Pointer[worker] // by slot
	workers  sync.WaitGroup
	handlers sync.WaitGroup // some go on after their worker is gone
}

// record is what a run leaves behind for the checker.
type record struct {
	scenario *scenario
	events   []event
	told     map[string]int // by observers, nil if there were none
	letters  map[string][]brokers.Message
	moved    map[string]bool // those that the broker moved, by ID
	left     map[string]int  // messages by topic
	kills    map[point]int   // of processes
}

// playMemory runs s on the memory broker, whose workers are goroutines, from its
// first message until all are settled, or its time is up. It returns when all
// workers have.
func playMemory(ctx context.Context, s *scenario, l *ledger, g rig) *record {
	b := newMemory(s, l)
	defer b.Close(ctx)
	r := &run{scenario: s, ledger: l, rig: g, connect: func() brokers.Broker { return &memoryLink{Broker: b} }}
	r.kills.Store(int64(s.kills))
	r.current = make([]atomic.Pointer[worker], len(s.slots))
	stop := make(chan struct{})
	for i := range s.slots {
		r.workers.Go(func() { r.supervise(ctx, i, stop) })
	}
	r.workers.Go(func() { r.controlAll(ctx) })
	producer := newWitness(g.under(s, r.connect()), l, s, 0)
	for _, c := range s.calls {
		r.produce(ctx, producer, c)
	}
	if !r.settle(ctx, b) {
		l.add(event{Kind: overdue})
	}
	close(stop)
	r.workers.Wait()
	r.handlers.Wait()
	rec := &record{scenario: s, events: l.events, letters: map[string][]brokers.Message{}, left: map[string]int{}}
	if s.slots[0].observed {
		rec.told = l.told
	}
	for _, t := range s.topics {
		rec.left[t.name] = b.Len(t.name)
	}
	for _, topic := range s.dead() {
		rec.letters[topic] = b.Messages(topic)
	}
	return rec
}

// produce publishes the messages of one call, and repeats what is not confirmed.
func (r *run) produce(ctx context.Context, producer *witness, c call) {
	wait(ctx, c.at-r.ledger.now())
	batch := make([]brokers.Message, len(c.ids))
	for i, id := range c.ids {
		batch[i] = r.scenario.messages[id].Message
	}
	for try := 0; len(batch) > 0 && (try < 4 || r.scenario.served && ctx.Err() == nil); try++ {
		if try > 0 && r.scenario.served {
			wait(ctx, r.scenario.pace.longest/10)
		}
		err := producer.Publish(ctx, r.scenario.topics[c.topic].name, batch...)
		batch = unconfirmed(batch, err)
	}
}

func unconfirmed(batch []brokers.Message, err error) (again []brokers.Message) {
	partial, ok := errors.AsType[*brokers.PublishError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return batch
	}
	for i, m := range batch {
		if partial.Failed[i] != nil {
			again = append(again, m)
		}
	}
	return again
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// settle waits until no topic has a message left. It reports false if that
// takes too long.
func (r *run) settle(ctx context.Context, b *memory.Broker) bool {
	wait(ctx, r.scenario.calm-r.ledger.now())
	pause := r.scenario.pace.work
	for ctx.Err() == nil && r.ledger.now() < r.scenario.limit {
		left := 0
		for _, t := range r.scenario.topics {
			left += b.Len(t.name)
		}
		if left == 0 {
			return true
		}
		wait(ctx, pause)
		pause = min(pause*5/4, r.scenario.pace.longest/30)
	}
	return false
}

// supervise keeps a worker running in a slot until stop is closed, and ends it
// when the scenario wants that.
func (r *run) supervise(ctx context.Context, slot int, stop <-chan struct{}) {
	var mine []incident
	for _, in := range r.scenario.incidents {
		if in.slot == slot {
			mine = append(mine, in)
		}
	}
	for {
		w := r.newWorker(&r.scenario.slots[slot])
		r.current[slot].Store(w)
		life, cancel := context.WithCancel(ctx)
		r.workers.Go(func() {
			defer cancel()
			w.work(life)
		})
		crash := func() {
			w.crash()
			r.workers.Go(func() { // a worker of which all is paused by hand asks its broker for nothing
				<-stop
				cancel()
			})
		}
		next := incident{at: 1 << 62}
		if len(mine) > 0 {
			next = mine[0]
		}
		timer := time.NewTimer(next.at - r.ledger.now())
		select {
		case <-stop:
			w.stop(cancel)
			timer.Stop()
			return
		case <-timer.C:
			mine = mine[1:]
			if next.crash {
				crash()
			} else {
				w.stop(cancel)
			}
			wait(ctx, next.pause)
		case <-w.killed:
			crash()
		case <-w.done: // nobody asked for that: the checker will tell
			wait(ctx, time.Second)
		}
		timer.Stop()
	}
}

// stop ends a worker cleanly, and waits for its end.
func (w *worker) stop(cancel func()) {
	w.asked.Store(true)
	w.run.ledger.add(event{Kind: stopping, Worker: w.number})
	cancel()
	<-w.done
}

// crash kills a worker. What is left of it may run on, like a process that was
// believed dead.
func (w *worker) crash() {
	w.asked.Store(true)
	w.run.ledger.add(event{Kind: crashed, Worker: w.number})
	w.link.(*memoryLink).kill()
}

// newMemory has everything go wrong that s says, and writes it down.
func newMemory(s *scenario, l *ledger) *memory.Broker {
	options := s.options
	options.Fault = func(op memory.Op) memory.Fault {
		f := s.fault(l.now(), op)
		if f == (memory.Fault{}) {
			return f
		}
		e := event{Kind: faulted, Topic: op.Topic, ID: op.ID, Action: op.Action, Err: failOf(f.Err), Delay: f.Latency, Note: string(op.Operation)}
		if f.Lost {
			e.Flags |= isLost
		}
		if f.Done {
			e.Flags |= isDone
		}
		if f.Duplicate {
			e.Flags |= isDuplicate
		}
		l.add(e)
		return f
	}
	return memory.New(options)
}

// memoryLink is one worker's way to the memory broker.
type memoryLink struct {
	*memory.Broker

	mu     sync.Mutex
	source brokers.Source
	dead   bool
}

func (l *memoryLink) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, brokers.ErrClosed
	}
	source, err := l.Broker.Open(ctx, sub)
	l.source = source
	return source, err
}

// kill cuts the link the way that a dying process does.
func (l *memoryLink) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	if l.source != nil {
		l.Crash(l.source)
	}
}
