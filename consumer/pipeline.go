package consumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry/flow"
)

// pipeline is one call of Run. A delivery passes through it in this order:
//
//	receive -> accept -> enqueue -> pool -> admitted -> handler -> conclude -> settlers
//	                        ^                  |                    |
//	                        '---- waiting <----+--------------------|
//	                                                                '-> dead letters -> settlers
//
// A job in line at a dependency goes from waiting to the pool.
//
// Read the files in this order: inflight.go (a delivery and its states), intake.go
// (how much is received), accept.go (which messages do not run), keyqueue.go, waitlist.go,
// pool.go, admission.go and guard.go (which runs start now), worker.go (the run),
// decide.go (what becomes of a failure), deadletter.go, settle.go, lease.go and
// shutdown.go. Beside the way are batch.go, names.go (tenants) and receipt.go.
//
// The pipeline moves deliveries between these types. Each of them owns its state,
// and tells the pipeline through a function or a small interface.
//
// The order of the locks: mu comes first. It guards the counters of topics, the
// keys, the waitlist and the intake. The lock of the admission comes next, then all
// others. So no other type calls the pipeline while it holds a lock of its own.
type pipeline struct {
	*reporter
	*lifetime
	cfg          Config
	caps         brokers.Capabilities
	longestDelay time.Duration // that the broker was told of

	subs    []*subscription
	byTopic map[string]*subscription

	intake    *intake
	admission *admission
	pool      *pool
	leases    *leases
	settlers  *settlers
	letters   *deadLetters
	receipts  *receipts // nil if none are wanted
	control   *control

	mu       sync.Mutex
	keys     keyQueues // nil if nothing is ordered
	waitlist waitlist
	tried    *delivery // on trial, and dead with the next loss
	stuck    int       // runs of handlers that do not return
	skips    skips
}

// lifetime is how long the goroutines of a pipeline go on.
type lifetime struct {
	life     context.Context // ends when the pipeline is done
	began    time.Time
	stages   sync.WaitGroup // keeper and senders
	draining atomic.Bool    // written under the mu of the pipeline
	told     func() error   // not nil when the worker was told to stop, though the receive loop may not have seen it
	pulses   pulses
}

// subscription is what a Consumer has for one topic: slots and room of its own, so
// that it takes none from others. The counters are the pipeline's, under its mu,
// and only pipeline.to changes them. The status reads the atomic ones.
type subscription struct {
	*route
	watched
	slots        int
	values       context.Context // of Run, without its cancellation
	queue        *topicQueue
	dependency   *dependency
	byHand       atomic.Pointer[health.ByHand] // that it is paused; written under the mu of the control
	names        *names
	letters      *sender[*delivery] // to its dead-letter topic
	returned     *semaphore         // slots and budget of messages that were sent back
	window       int                // the most that is queued, running or settling
	least        int                // room that it is received for
	maxHeld      int                // the most that waits or dies
	maxBytes     int                // and the sum of its bodies
	longestDelay time.Duration
	maxLease     time.Duration // no delivery is held for longer; 0 means no limit

	anonymous sync.Once // tells of messages without an ID

	active    atomic.Int32 // deliveries in the window
	hung      int          // of those: of handlers that do not return
	waiting   atomic.Int32
	dying     atomic.Int32
	kept      int              // of those dying: held because the broker refuses every end
	heldBytes int              // bodies of those two
	bodies    sizes            // that came lately
	full      bool             // not received for, because there is no room
	batches   [ranks]collector // no batch holds fresh messages, retries and those that were sent back

	poisonRow atomic.Int32 // poison messages since the last success; written under mu
	inDoubt   []*delivery  // whose verdict waits for a success
}

func newPipeline(life context.Context, c *Consumer, source brokers.Source) *pipeline {
	caps := source.Capabilities()
	p := &pipeline{
		reporter:     &reporter{newLogObserver(c.cfg.Logger, c.cfg.Redact), c.cfg.observers(), c.cfg.Tracer, context.WithoutCancel(life)},
		lifetime:     &lifetime{life: life, began: time.Now()},
		cfg:          c.cfg,
		caps:         caps,
		longestDelay: c.cfg.subscription(c.routes).MaxDelay,
		byTopic:      map[string]*subscription{},
	}
	if c.cfg.OrderByKey || caps.Ordered {
		p.keys = keyQueues{}
	}
	group := cmp.Or(caps.Group, c.cfg.Group) // as the source says, where the broker has such a notion
	p.waitlist.due, p.waitlist.pulse = p.resumeDue, p.pulses.add("retries that are due")
	p.leases = newLeases(p.reporter, source, p)
	p.settlers = newSettlers(p.reporter, source, p.longestDelay, p, &p.pulses)
	p.receipts = newReceipts(p.reporter, c.broker, c.cfg, group, &p.pulses)
	p.letters = &deadLetters{
		reporter: p.reporter, lifetime: p.lifetime, cfg: c.cfg, group: group, broker: c.broker, headerLimit: caps.HeaderLimit,
		settlers: p.settlers, drop: p.drop, senders: map[string]*sender[*delivery]{},
	}
	p.admission = &admission{reporter: p.reporter, random: c.cfg.Random, queues: p, pulses: &p.pulses}
	p.pool = &pool{most: c.cfg.MaxConcurrency, start: func() *worker { return newWorker(p.reporter, p.pool, p.admission, p) }}
	p.control = &control{p: p, pulse: p.pulses.add("pauses by hand")}
	for _, r := range c.routes {
		p.subscribe(r, c.routes)
	}
	p.intake = &intake{
		reporter: p.reporter, source: source, subs: p.subs, admission: p.admission, accept: p.accept,
		random: c.cfg.Random, mu: &p.mu, changed: make(chan struct{}, 1), pulse: p.pulses.add("receive"),
	}
	return p
}

// subscribe adds one of the topics of routes.
func (p *pipeline) subscribe(r *route, routes []*route) {
	s := p.newSubscription(r, len(routes))
	s.dependency = p.admission.add(s, p.cfg, routes)
	s.queue.number = len(p.pool.queues)
	p.pool.queues = append(p.pool.queues, s.queue)
	p.subs = append(p.subs, s)
	p.byTopic[r.topic] = s
	p.log.dependencies[r.topic] = r.dependency
}

func (p *pipeline) newSubscription(r *route, n int) *subscription {
	s := &subscription{
		route:    r,
		watched:  watched{began: p.began},
		slots:    p.cfg.slots(r.concurrency),
		values:   p.values,
		queue:    &topicQueue{limit: r.concurrency},
		window:   r.window(),
		least:    1,
		maxHeld:  (p.cfg.MaxHeld + n - 1) / n,
		maxBytes: p.cfg.MaxHeldBytes / n,
		maxLease: p.caps.MaxLease,
		letters:  p.letters.to(r.deadLetter),
	}
	_, s.longestDelay, _ = r.policy.Limits()
	if n > 1 {
		s.least = max(1, (s.window-r.concurrency+1)/2)
	}
	s.names = newNames(s.slots, 1)
	if r.dependencyOf != nil {
		s.names = newNames(s.slots, bucketCount)
	}
	s.returned = newSemaphore(min(s.slots, s.window/max(1, r.batchSize)))
	for i := range s.batches {
		s.batches[i].sub, s.batches[i].pool = s, p.pool
	}
	return s
}

// start starts everything but receiving.
func (p *pipeline) start() {
	runs := []func(context.Context){p.settlers.settler.run, p.settlers.retrier.run, p.settlers.rejecter.run}
	if p.leases.keeper != nil {
		alive := pulse.With(p.life, p.pulses.add("leases"))
		runs = append(runs, func(context.Context) { p.leases.keeper.Run(alive) })
	}
	if p.receipts != nil {
		runs = append(runs, p.receipts.run)
	}
	for _, run := range runs {
		p.stages.Go(func() { run(p.life) })
	}
	p.admission.start()
}

// enqueue hands d to the workers, alone or as part of a batch, or lets it wait
// until it is due. mu is held.
func (p *pipeline) enqueue(d *delivery) {
	switch {
	case p.draining.Load():
		p.settle(brokers.Release, d)
	case !d.meta.DueAt.IsZero() && time.Until(d.meta.DueAt) > 0:
		p.wait(d, max(p.cfg.HoldLimit, earlyLimit))
	case d.sub.batchHandler != nil && !d.split && !d.onTrial(): // those two run alone
		d.sub.batches[d.rank()].add(d)
	case d.onTrial() && !p.mayTry(d):
		p.deferStart(d, flow.Status{}, time.Now(), noTrial)
	default:
		p.pool.add(d.sub.queue, d.alone())
	}
}

// settle decides how ds end, unless that is decided already, and lets their keys
// go on. mu is held, unless each of ds runs or is queued, and does not have the
// turn of its key.
func (p *pipeline) settle(action brokers.Action, ds ...*delivery) {
	for _, d := range ds {
		if p.to(d, settling) {
			p.settlers.send(d, action)
			p.advance(d, action != brokers.Ack)
		}
	}
}

// hang counts deliveries of s that are with handlers which do not return, and these.
func (p *pipeline) hang(s *subscription, deliveries, handlers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.hung += deliveries
	s.stuckRuns.Add(int32(handlers))
	p.stuck += handlers
	for _, s := range p.subs {
		none := int(s.stuckRuns.Load()) >= s.slots || p.pool.most > 0 && p.stuck >= p.pool.most
		switch since := s.stuckSince.Load(); {
		case !none:
			s.stuckSince.Store(0)
		case since == 0:
			s.stuckSince.Store(time.Now().UnixNano())
		}
	}
}

// settled ends the life of deliveries whose settlement the source has taken over: a copy
// is durable, and an Ack is as good as the broker makes it.
func (p *pipeline) settled(ds []*delivery) {
	for _, d := range ds {
		if p.observed() || d.action == brokers.Release || d.action == brokers.Reject { // the log wants these
			e := Event{Kind: EventSettled, Action: d.action}
			if d.action == brokers.Retry && d.letter != nil {
				e.DeadLetter = d.letter
			}
			p.observe(d, e)
		}
		if d.action == brokers.Reject {
			p.letters.stubs.forget(d.stub)
		}
		if p.receipts != nil && (d.action == brokers.Ack || d.action == brokers.Reject) {
			p.receipts.end(d)
		}
	}
	p.forget(ds...)
}

// loseSession is told that a session has ended.
func (p *pipeline) loseSession(session context.Context, cause error) {
	p.mu.Lock()
	ds := p.allWaiting()
	p.mu.Unlock()
	for _, w := range p.pool.members() {
		if a := w.attempt(); a != nil {
			ds = append(ds, a.runs()...)
		}
	}
	for _, d := range ds {
		if d.Session == session {
			p.lose(d, cause)
		}
	}
}

// lose is told by the keeper, and at the end of a session, that somebody else
// may have the delivery.
func (p *pipeline) lose(d *delivery, cause error) {
	cause = leaseLost(cause)
	p.leases.loss(d.Message.ID, time.Now())
	d.lose(cause)
	if d.isWaiting() { // nobody else looks at it
		p.drop(d, cause)
	}
}

// drop forgets a delivery that belongs to somebody else.
func (p *pipeline) drop(d *delivery, cause error) {
	p.mu.Lock()
	dropped := p.to(d, gone)
	if dropped {
		p.advance(d, true)
	}
	p.mu.Unlock()
	if dropped {
		p.leases.forget(d)
		p.observe(d, Event{Kind: EventLeaseLost, Err: cause})
	}
}

// forget ends the life of deliveries in this process.
func (p *pipeline) forget(ds ...*delivery) {
	p.leases.forget(ds...)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range ds {
		p.to(d, gone)
	}
}

// advance lets the next delivery of d's key go on. If d comes again, which all but an Ack
// and a dead letter mean, and the source keeps the order, the rest of the key is given
// back instead, for the broker to deliver after it. mu is held.
func (p *pipeline) advance(d *delivery, again bool) {
	if !d.turn {
		return
	}
	d.turn = false
	if p.caps.Ordered && again || p.draining.Load() {
		p.settle(brokers.Release, p.keys.clear(d)...)
		return
	}
	if next := p.keys.next(d); next != nil {
		p.to(next, queued)
		p.enqueue(next)
	}
}

// watched has the counters of a topic that its status reads, and the intake.
type watched struct {
	began       time.Time
	ages        ages // under the mu of the pipeline
	lastSuccess atomic.Int64
	took        atomic.Int64 // by successful runs, lately: the mean in nanoseconds
	attempted   recent
	buried      recent

	stuckRuns  atomic.Int32 // of handlers that ignore that their context has ended; written under the mu of the pipeline
	stuckSince atomic.Int64 // since when they have all slots; 0 if they do not
}

// recent counts events of the last ten minutes. Each part is a minute, in the
// upper half, and how often it happened in it.
type recent [11]atomic.Uint64

const recentMinutes = 10

func minute(began, now time.Time) uint64 { return uint64(max(0, now.Sub(began)/time.Minute)) }

func (r *recent) add(began, now time.Time) {
	m := minute(began, now)
	part := &r[m%uint64(len(r))]
	for {
		old := part.Load()
		next := old + 1
		if old>>32 != m {
			next = m<<32 | 1
		}
		if part.CompareAndSwap(old, next) {
			return
		}
	}
}

func (r *recent) sum(began, now time.Time) (n uint64) {
	m := minute(began, now)
	for i := range r {
		if part := r[i].Load(); part>>32+recentMinutes > m {
			n += part & (1<<32 - 1)
		}
	}
	return n
}

// ages counts the messages in flight by the second in which they came in, oldest
// first. The oldest second is kept apart, for the status: counted from 1, and 0 if
// there is none.
type ages struct {
	seconds []second
	oldest  atomic.Int64
}

type second struct{ number, messages int64 }

// count adds n messages that came in at at.
func (a *ages) count(at int64, n int64) {
	if last := len(a.seconds) - 1; last >= 0 && a.seconds[last].number == at && a.seconds[last].messages+n > 0 {
		a.seconds[last].messages += n // most messages come and go within a second
		return
	}
	i, found := slices.BinarySearchFunc(a.seconds, at, func(s second, at int64) int { return cmp.Compare(s.number, at) })
	if !found {
		if len(a.seconds) == cap(a.seconds) { // seconds of which nothing is left, behind one that is
			a.seconds = slices.DeleteFunc(a.seconds, func(s second) bool { return s.messages == 0 })
			i, _ = slices.BinarySearchFunc(a.seconds, at, func(s second, at int64) int { return cmp.Compare(s.number, at) })
		}
		a.seconds = slices.Insert(a.seconds, i, second{number: at})
	}
	a.seconds[i].messages += n
	gone := 0
	for gone < len(a.seconds) && a.seconds[gone].messages == 0 {
		gone++
	}
	if gone > 0 {
		a.seconds = slices.Delete(a.seconds, 0, gone)
	}
	oldest := int64(0)
	if len(a.seconds) > 0 {
		oldest = a.seconds[0].number + 1
	}
	if a.oldest.Load() != oldest {
		a.oldest.Store(oldest)
	}
}

// succeeded notes a success at now, of a run that took so long. Of two that end
// together one may be left out.
func (w *watched) succeeded(now time.Time, took time.Duration) {
	const lately = 16
	w.lastSuccess.Store(now.UnixNano())
	mean := w.took.Load()
	if mean == 0 {
		mean = int64(took)
	}
	w.took.Store(mean + (int64(took)-mean)/lately)
}

// since is the second in which d came in.
func (s *subscription) since(d *delivery) int64 {
	return int64(max(0, d.ReceivedAt.Sub(s.began)) / time.Second)
}
