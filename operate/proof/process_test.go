package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// supervise keeps a process running until ctx ends, however often it dies.
func (v *virtual) supervise(ctx context.Context, number int, life []doom, work func(context.Context, *process) error) {
	for ctx.Err() == nil {
		p := &process{virtual: v, number: number}
		var end <-chan time.Time
		if len(life) > 0 && v.now() < calm {
			p.doom, life = life[0], life[1:]
			end = time.After(p.doom.at)
		}
		inner, cancel := context.WithCancel(ctx)
		p.cancel = cancel
		ended := make(chan error, 1)
		go func() { ended <- work(inner, p) }()
		select {
		case <-end:
			p.crash()
			<-ended
		case err := <-ended:
			if ctx.Err() == nil && !p.gone() {
				v.Errorf("seed %d: process %d ended by itself: %v", v.seed, number, err)
				pause(ctx, time.Second)
			}
		}
		cancel()
		pause(ctx, p.doom.pause)
	}
}

// process is one of redrive, or a worker, until it dies.
type process struct {
	*virtual
	number int
	cancel context.CancelFunc

	mu      sync.Mutex
	doom    doom
	dead    bool
	store   *store.Store // nil for a worker
	sources []func()     // each ends as in a crash
}

func (p *process) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// reach has the process die if it is its time, and reports whether it is dead.
func (p *process) reach(at point) bool {
	p.mu.Lock()
	if p.doom.point == at {
		p.doom.nth--
	}
	now := p.doom.point == at && p.doom.nth == 0
	p.mu.Unlock()
	if now {
		p.crash()
	}
	return p.gone()
}

// crash ends a process from one moment to the other: nothing is cleaned up.
func (p *process) crash() {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return
	}
	p.dead = true
	for _, crash := range p.sources {
		crash()
	}
	s := p.store
	p.mu.Unlock()
	p.ledger.add(event{Kind: crashed, Process: p.number})
	if s != nil {
		_ = s.Close() // what fails now is a matter of nobody any more
	}
	p.cancel()
	p.shoot()
}

// worker is the work of one that handles a topic.
func (v *virtual) worker(broker, topic, group string) func(context.Context, *process) error {
	return func(ctx context.Context, p *process) error {
		w := &worker{
			play: v.play, Broker: &link{v.brokers[broker], p}, topic: topic, receipts: "receipts", group: group, gone: p.gone,
			dead: "*-dead", work: func(context.Context) { time.Sleep(20 * time.Millisecond) }, // of virtual time
		}
		return w.run(ctx)
	}
}

// serve is the work of redrive serve.
func (v *virtual) serve(ctx context.Context, p *process) error {
	s, err := store.Open(ctx, v.url)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.store = s
	p.mu.Unlock()
	server := serve.Server{
		Config: v.config, Store: s, Owner: fmt.Sprint("process ", p.number), Logger: slog.New(slog.DiscardHandler),
		Brokers: serve.NewBrokers(func(_ context.Context, name string) (brokers.Broker, error) { return &link{v.brokers[name], p}, nil }),
	}
	server.Run(ctx)
	return errors.Join(context.Cause(ctx), s.Close())
}

// link is the way of a process to a broker.
type link struct {
	*memory.Broker
	*process
}

func (l *link) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, brokers.ErrClosed
	}
	source, err := l.Broker.Open(ctx, sub)
	if err != nil {
		return nil, err
	}
	l.sources = append(l.sources, func() { l.Crash(source) })
	return &tap{source, l.process}, nil
}

// Close leaves the broker open, which others use.
func (l *link) Close(context.Context) error { return nil }

func (l *link) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	return l.put(topic, group, len(msgs), func(i int) (id, send string) { return msgs[i].Message.ID, msgs[i].Meta.Send }, func() error {
		return l.Broker.SendBack(ctx, group, topic, msgs...)
	})
}

func (l *link) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	publish := func() error { return l.Broker.Publish(ctx, topic, msgs...) }
	if l.store == nil { // a worker
		return publish()
	}
	return l.put(topic, allGroups, len(msgs), func(i int) (id, send string) { return msgs[i].ID, msgs[i].Headers.Get("redrive-send") }, publish)
}

// put notes what is sent back.
func (l *link) put(topic, group string, n int, at func(i int) (id, send string), do func() error) error {
	if l.reach(beforeReturn) {
		return errGone
	}
	began := time.Now()
	err := do()
	gone := l.gone()
	for i := range n {
		e := event{Kind: returned, Began: began, Process: l.number, Topic: topic, Group: group, Err: text(answer(err, i))}
		if e.ID, e.Send = at(i); gone {
			e.Err = text(errGone)
		}
		l.ledger.add(e)
	}
	if l.reach(afterReturn) {
		return errGone
	}
	return err
}

// tap is a source of a process.
type tap struct {
	brokers.Source
	*process
}

func (t *tap) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := t.Source.Receive(ctx, max)
	if len(ds) > 0 && t.reach(received) {
		return nil, brokers.ErrClosed
	}
	return ds, err
}

func (t *tap) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	if len(batch) > 0 && batch[0].Action == brokers.Ack && t.reach(beforeAck) {
		errs := make([]error, len(batch))
		for i := range errs {
			errs[i] = brokers.ErrClosed
		}
		return errs
	}
	errs := t.Source.Settle(ctx, batch)
	if len(batch) > 0 && batch[0].Action == brokers.Ack {
		t.reach(afterAck)
	}
	return errs
}
