package main

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// rig is what tests put between the parts, to plant a bug. Nil is nothing.
type rig struct {
	above   func(s *scenario, b brokers.Broker) brokers.Broker // between the consumer and the ledger
	below   func(s *scenario, b brokers.Broker) brokers.Broker // between the ledger and the broker
	handler func(consumer.Handler) consumer.Handler            // between the consumer and the handler
	config  func(*consumer.Config, []topic)
	control func() error // instead of what a person asks for
}

// worker is one life of a consumer.
type worker struct {
	number int
	run    *run
	slot   *slot
	link   brokers.Broker
	seen   *witness
	killed chan struct{} // closed by the handler that takes the worker with it
	dying  atomic.Bool
	asked  atomic.Bool // to stop
	done   chan struct{}

	consumer atomic.Pointer[consumer.Consumer]
}

func (r *run) newWorker(sl *slot) *worker {
	number := r.ledger.newWorker()
	r.ledger.add(sl.up(number))
	return r.connectWorker(number, sl)
}

func (r *run) connectWorker(number int, sl *slot) *worker {
	w := &worker{number: number, run: r, slot: sl, killed: make(chan struct{}), done: make(chan struct{})}
	w.link = r.connect()
	w.seen = newWitness(r.rig.under(r.scenario, w.link), r.ledger, r.scenario, number)
	w.seen.trap = r.trap
	return w
}

// up is the start of a worker in this slot.
func (sl *slot) up(number int) event {
	return event{Kind: up, Worker: number, Delay: max(0, sl.config.DrainTimeout), Attempt: sl.config.Concurrency}
}

func (g rig) under(s *scenario, b brokers.Broker) brokers.Broker {
	if g.below != nil {
		return g.below(s, b)
	}
	return b
}

// work runs a consumer until ctx ends, and writes down how it went.
func (w *worker) work(ctx context.Context) {
	defer close(w.done)
	l := w.run.ledger
	e := event{Kind: down, Worker: w.number}
	if err := w.consume(ctx); err != nil {
		e.Err, e.Note = failOf(err), err.Error()
	}
	l.add(e)
}

func (w *worker) consume(ctx context.Context) error {
	s, g := w.run.scenario, w.run.rig
	config := w.slot.config
	config.Logger = slog.New(slog.DiscardHandler)
	config.Instance = "proof"
	config.DeadLetter = "*.dead" // each topic has its own
	config.Random = w.random()
	if w.slot.observed {
		config.Observers = []consumer.Observer{observer{w}}
	}
	topics := s.topics
	if g.config != nil {
		topics = append([]topic{}, topics...)
		g.config(&config, topics)
	}
	var broker brokers.Broker = w.seen
	if g.above != nil {
		broker = g.above(s, broker)
	}
	c, err := consumer.New(broker, config)
	if err != nil {
		return err
	}
	for i := range topics {
		w.register(c, &topics[i])
	}
	w.consumer.Store(c)
	return c.Run(ctx)
}

// random draws the jitter of this life.
func (w *worker) random() func() float64 {
	var mu sync.Mutex
	source := rand.New(rand.NewPCG(w.run.scenario.seed, uint64(w.number)))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Float64()
	}
}

func (w *worker) register(c *consumer.Consumer, t *topic) {
	settings := consumer.TopicConfig{
		DeadLetter:     cmp.Or(t.dead, dlq.Discard),
		Retry:          &t.policy,
		HandlerTimeout: t.timeout,
		MaxBody:        t.maxBody,
		NoRepeat:       t.noRepeat,
	}
	if t.tenants {
		settings.DependencyOf = func(m *brokers.Message) string { return t.dependency(m.Headers) }
	}
	if t.batchSize > 0 {
		settings.BatchSize, settings.BatchWait = t.batchSize, t.batchWait
		c.HandleBatch(t.name, w.handleBatch, settings)
		return
	}
	handle := consumer.Handler(w.handle)
	if wrap := w.run.rig.handler; wrap != nil {
		handle = wrap(handle)
	}
	c.HandleWith(t.name, handle, settings)
}

// handle is the handler: it does what the script of the message says.
func (w *worker) handle(ctx context.Context, m *brokers.Message) error {
	w.run.handlers.Add(1)
	defer w.run.handlers.Done()
	st := w.begin(m, consumer.MetaFrom(ctx), isFirst)
	w.run.trap.reach(inHandler)
	o := w.endure(ctx, st)
	w.end(ctx, m, o, st.hint, isFirst)
	return o.perform(ctx, st.hint)
}

// handleBatch works as long as the slowest script says. What tears down the
// goroutine does so for all messages of the batch.
func (w *worker) handleBatch(ctx context.Context, batch []brokers.Item) []error {
	w.run.handlers.Add(1)
	defer w.run.handlers.Done()
	steps := make([]step, len(batch))
	slowest := 0
	var tearing outcome
	for i, item := range batch {
		steps[i] = w.begin(item.Message, item.Meta, first(i))
		if steps[i].works > steps[slowest].works && !steps[slowest].hangs || steps[i].kills || steps[i].hangs && !steps[slowest].kills {
			slowest = i
		}
	}
	w.run.trap.reach(inHandler)
	how := w.endure(ctx, steps[slowest])
	ends := make([]outcome, len(batch))
	for i, st := range steps {
		if ends[i] = w.now(st); how == interrupted {
			ends[i] = interrupted
		}
		if tearing == okay && (ends[i] == panicking || ends[i] == exiting || ends[i] == spoiling) {
			tearing = ends[i]
		}
	}
	errs := make([]error, len(batch))
	whole := isWhole
	for i := range ends {
		if tearing != okay {
			ends[i] = tearing
		}
		if len(batch) == 1 || ends[i] == okay || ends[i] != ends[0] {
			whole = 0
		}
	}
	for i, item := range batch {
		w.end(ctx, item.Message, ends[i], steps[i].hint, first(i)|whole)
	}
	for i := range errs {
		errs[i] = ends[i].perform(ctx, steps[i].hint)
	}
	return errs
}

func first(i int) flags {
	if i == 0 {
		return isFirst
	}
	return 0
}

// begin writes down the start of a run, and returns what it shall do.
func (w *worker) begin(m *brokers.Message, meta brokers.Meta, f flags) step {
	l, s := w.run.ledger, w.run.scenario
	e := w.seen.source.holding(m).event(started, w.number)
	e.ID, e.Flags, e.Note = m.ID, f, s.differs(*m)
	e.meta(l, meta)
	l.add(e)
	sent := s.message(m.ID)
	if sent == nil {
		return step{}
	}
	st := sent.script[min(l.run(m.ID), len(sent.script)-1)]
	if o := s.topics[sent.topic].outage; !st.fatal && o.holds(l.now()) {
		return step{outcome: o.how, hint: o.hint, works: st.works, hangs: o.how == interrupted}
	}
	return st
}

func (w *worker) end(ctx context.Context, m *brokers.Message, o outcome, hint time.Duration, f flags) {
	e := w.seen.source.holding(m).event(ended, w.number)
	e.Flags, e.Outcome, e.Cause, e.Delay = f, o, causeOf(ctx), hint
	w.run.ledger.add(e)
}

// endure works for as long as st says, and returns how the run ends.
func (w *worker) endure(ctx context.Context, st step) outcome {
	if st.fatal {
		w.run.trap.spring()
	}
	if st.kills && !w.kill() {
		return okay
	}
	if st.kills || st.hangs {
		<-ctx.Done()
		return interrupted
	}
	over := ctx.Done()
	if st.deaf {
		over = nil
	}
	if st.works > 0 {
		timer := time.NewTimer(st.works)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-over:
			return interrupted
		}
	}
	return w.now(st)
}

// now returns how st ends at this moment.
func (w *worker) now(st step) outcome {
	over := st.outage && w.run.ledger.now() >= w.run.scenario.outageEnd
	if over || st.kills {
		return okay
	}
	return st.outcome
}

// kill asks for the death of the worker, unless enough have died.
func (w *worker) kill() bool {
	if w.asked.Load() || w.run.kills.Add(-1) < 0 {
		return false
	}
	if w.dying.CompareAndSwap(false, true) {
		close(w.killed)
	}
	return true
}

// observer writes down what the consumer says that it does.
type observer struct{ w *worker }

func (o observer) Observe(_ context.Context, e consumer.Event) {
	l := o.w.run.ledger
	l.mu.Lock()
	told := e.Kind
	switch {
	case e.Kind == consumer.EventSettled:
		told = e.Action.String()
	case e.DeadLetterTopic == dlq.Discard:
		told = "discard"
	}
	l.told[told]++
	l.mu.Unlock()
	switch {
	case e.Kind == consumer.EventPaused:
		l.add(event{Kind: paused, Worker: o.w.number, Note: e.Dependency})
	case e.Kind == consumer.EventResumed:
		l.add(event{Kind: resumed, Worker: o.w.number, Note: e.Dependency})
	case e.Kind == consumer.EventFailed && e.Decision.Reason != "batch":
		d := o.w.seen.source.holding(e.Message).event(decided, o.w.number)
		d.Delay = e.Decision.Delay
		if e.Decision.Retry {
			d.Note = "retry"
		}
		d.meta(l, e.Meta)
		l.add(d)
	}
}
