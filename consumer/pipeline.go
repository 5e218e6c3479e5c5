package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/visibility"
)

// pipeline is one call of Run. A delivery passes through it in this order:
//
//	receive -> accept -> enqueue -> pool -> admitted -> handler -> conclude -> settler
//	                        ^                  |                    |-> retrier
//	                        '---- waiting <----+--------------------|
//	                                                                '-> dead letters -> settler, or rejecter
//
// Where each delivery is, its state says (inflight.go). What is received is
// decided in intake.go, what may start in admission.go, what becomes of a
// failure in decide.go.
//
// mu guards what decides whether a delivery may move on.
type pipeline struct {
	cfg    Config
	broker brokers.Broker
	source brokers.Source
	caps   brokers.Capabilities
	log    *logObserver

	values context.Context // of Run, without its cancellation
	life   context.Context // ends when the pipeline is done

	subs         []*subscription
	byTopic      map[string]*subscription
	dependencies []*dependency
	longestDelay time.Duration // that the broker was told of

	pool     *pool
	keeper   *visibility.Keeper[*delivery] // nil if leases have no deadline
	settler  *settler
	retrier  *settler
	rejecter *settler
	receipts *sender[brokers.Message] // nil if none are wanted
	stages   sync.WaitGroup           // keeper and senders
	stubs    stubs
	leases   leaseWatch

	mu       sync.Mutex
	intake   intake
	keys     keyQueues // nil if nothing is ordered
	waitlist waitlist
	sentBack map[*semaphore]bool           // those that jobs wait for
	watch    *time.Timer                   // looks at shared limiters; nil if there are none
	letters  map[string]*sender[*delivery] // by dead-letter topic
	sessions map[context.Context]func() bool
	draining atomic.Bool // written under mu
}

// subscription is what a Consumer has for one topic: slots and room of its own, so
// that it takes none from others. The counters are the pipeline's, under its mu,
// and only pipeline.to changes them.
type subscription struct {
	*route
	values       context.Context // of Run, without its cancellation
	line         *line
	dependency   *dependency
	names        *names
	returned     *semaphore // slots and budget of messages that were sent back
	window       int        // the most that is queued, running or settling
	least        int        // room that it is received for
	maxHeld      int        // the most that waits or dies
	maxBytes     int        // and the sum of its bodies
	longestDelay time.Duration

	anonymous sync.Once // tells of messages without an ID

	active  int // deliveries in the window
	hung    int // of those: of handlers that do not return
	waiting int
	dying   int
	stuck   int              // of those dying: held because the broker refuses every end
	held    int              // bytes of those two
	full    bool             // not received for, because there is no room
	batches [ranks]collector // no batch holds fresh messages, retries and those that were sent back

	poisonRow int          // poison messages since the last success
	doubted   atomic.Int32 // the same, to be read without mu
	inDoubt   []*delivery  // whose verdict waits for a success
}

func newPipeline(life context.Context, c *Consumer, source brokers.Source) *pipeline {
	p := &pipeline{
		cfg:          c.cfg,
		broker:       c.broker,
		source:       source,
		caps:         source.Capabilities(),
		log:          newLogObserver(c.cfg.Logger, c.cfg.Redact),
		values:       context.WithoutCancel(life),
		life:         life,
		byTopic:      map[string]*subscription{},
		longestDelay: c.cfg.subscription(c.routes).MaxDelay,
		intake:       intake{changed: make(chan struct{}, 1)},
		letters:      map[string]*sender[*delivery]{},
		sentBack:     map[*semaphore]bool{},
		sessions:     map[context.Context]func() bool{},
	}
	if c.cfg.OrderByKey || p.caps.Ordered {
		p.keys = keyQueues{}
	}
	p.pool = &pool{most: c.cfg.MaxConcurrency, start: func() *worker { return newWorker(p) }}
	for _, r := range c.routes {
		p.subscribe(r, c.routes)
	}
	p.settler, p.retrier, p.rejecter = newSettler(p, settleBackoff), newSettler(p, settleBackoff), newSettler(p, letterBackoff)
	if c.cfg.Receipts != "" {
		p.receipts = newSender(settleBackoff, p.publishReceipts)
	}
	return p
}

// subscribe adds one of the topics of routes.
func (p *pipeline) subscribe(r *route, routes []*route) {
	s := p.newSubscription(r, len(routes))
	s.dependency = p.dependencyOf(r, routes)
	s.line.number = len(p.pool.lines)
	p.pool.lines = append(p.pool.lines, s.line)
	p.subs = append(p.subs, s)
	p.byTopic[r.topic] = s
}

func (p *pipeline) newSubscription(r *route, n int) *subscription {
	s := &subscription{
		route:    r,
		values:   p.values,
		line:     &line{limit: r.concurrency},
		window:   r.window(),
		least:    1,
		maxHeld:  p.cfg.heldPerTopic(n),
		maxBytes: p.cfg.MaxHeldBytes / n,
	}
	_, s.longestDelay, _ = r.policy.Limits()
	if n > 1 {
		s.least = max(1, (s.window-r.concurrency+1)/2)
	}
	slots := p.cfg.slots(r.concurrency)
	s.names = newNames(slots, 1)
	if r.dependencyOf != nil {
		s.names = newNames(slots, bucketCount)
	}
	s.returned = newSemaphore(min(slots, s.window/max(1, r.batchSize)))
	return s
}

// dependencyOf returns the dependency of r, which those of routes may share.
func (p *pipeline) dependencyOf(r *route, routes []*route) *dependency {
	i := slices.IndexFunc(p.dependencies, func(g *dependency) bool { return g.name == r.dependency })
	if i >= 0 {
		return p.dependencies[i]
	}
	slots := 0
	for _, other := range routes {
		if other.dependency == r.dependency {
			slots += other.concurrency
		}
	}
	g := p.newDependency(r.dependency, p.cfg.guardOf(r.dependency), p.cfg.slots(slots))
	p.dependencies = append(p.dependencies, g)
	return g
}

// start starts everything but receiving.
func (p *pipeline) start() {
	if p.caps.Lease > 0 {
		p.keeper = visibility.New(visibility.Config[*delivery]{
			Lease:    p.caps.Lease,
			MaxLease: p.caps.MaxLease,
			Extend:   p.extend,
			Times:    func(d *delivery) (time.Time, time.Time) { return d.ReceivedAt, d.LeaseUntil },
			Final:    final,
			Lost:     p.lose,
		})
		p.stages.Go(func() { p.keeper.Run(p.life) })
	}
	p.stages.Go(func() { p.settler.run(p.life) })
	p.stages.Go(func() { p.retrier.run(p.life) })
	p.stages.Go(func() { p.rejecter.run(p.life) })
	if p.receipts != nil {
		p.stages.Go(func() { p.receipts.run(p.life) })
	}
	p.watchShared()
}

// block is how many deliveries share a piece of memory, which fits a size class
// with its header of 8 bytes: one that is held for long keeps the others, too.
const block = 26

// accept takes deliveries over from the source.
func (p *pipeline) accept(received []*brokers.Delivery) {
	ds := make([]*delivery, len(received))
	p.track(ds, received)
	ds = slices.DeleteFunc(ds, p.refuse)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys != nil { // all at once, so that one that does not stay finds who is behind it
		ds = slices.DeleteFunc(ds, p.behindKey)
	}
	for _, d := range ds {
		p.enqueue(d)
	}
}

// behindKey reports whether d has to wait for the turn of its key. It does so
// outside the window, so that other keys go on, as long as there is room. mu is
// held.
func (p *pipeline) behindKey(d *delivery) bool {
	if p.keys.enter(d) {
		return false
	}
	if p.roomToWait(d) {
		p.to(d, waiting)
	}
	return true
}

// track begins to look after what was received, and lists it in ds.
func (p *pipeline) track(ds []*delivery, received []*brokers.Delivery) {
	var some []delivery
	for i, from := range received {
		if len(some) == 0 {
			some = make([]delivery, min(block, len(received)-i))
		}
		d := &some[0]
		some = some[1:]
		d.rare, d.first.one[0] = &nothing, d
		d.Delivery, d.sub = from, p.byTopic[from.Message.Topic]
		d.meta = d.came()
		if death := d.meta.Death; death != nil && death.Reason != "" {
			p.recall(d)
		}
		if p.observed() && d.meta == &unfailed { // each event has the Origin
			m := d.Meta()
			d.meta = &m
		}
		ds[i] = d
	}
	if p.keeper != nil {
		p.keeper.Track(ds...)
	}
	p.mu.Lock()
	for _, d := range ds {
		if d.sub == nil {
			d.sub = p.stray(d.Message.Topic)
		}
		d.sub.active++
	}
	p.watchSessions(received)
	p.mu.Unlock()
	now := time.Now()
	for _, d := range ds {
		if name := p.nameOf(d); name != 0 {
			d.own().name = name
		}
		if d.Anonymous {
			d.sub.anonymous.Do(func() { p.log.anonymous(d.Message.Topic) })
		}
		if p.observed() {
			p.observe(d, Event{Kind: EventReceived})
		}
		if at := p.deadlineOf(d, now); !at.IsZero() {
			d.own().deadline, d.expiring = at, true
		}
	}
	deposit(ds, now)
}

// deposit has budgets earn by messages that are delivered for the first time.
func deposit(ds []*delivery, now time.Time) {
	for len(ds) > 0 {
		g, n, firsts := ds[0].sub.dependency, 0, 0
		for ; n < len(ds) && ds[n].sub.dependency == g; n++ {
			if first(ds[n].meta) && !ds[n].returned() {
				firsts++
			}
		}
		ds = ds[n:]
		if firsts > 0 && g.budget != nil {
			g.budget.Deposit(now, firsts)
		}
	}
}

// stray returns the subscription of a topic without a handler, should a source
// deliver any of it. mu is held.
func (p *pipeline) stray(topic string) *subscription {
	s := p.byTopic[topic]
	if s == nil {
		r := &route{topic: topic, dependency: topic, stray: true, deadLetter: p.cfg.DeadLetter(topic), policy: p.cfg.Retry, timeout: p.cfg.HandlerTimeout}
		s = p.newSubscription(r, len(p.subs))
		s.dependency = p.newDependency(topic, Guard{Off: true}, 0)
		p.byTopic[topic] = s
	}
	return s
}

// refuse dead-letters a message that must not run, sends on one that is not due by
// far, and puts off one that has to wait before its first run. It reports whether
// it did.
func (p *pipeline) refuse(d *delivery) bool {
	reason, err := "", error(nil)
	if d.letter == nil {
		if reason, err = p.refusal(d); err == nil {
			return p.postpone(d) || p.putOnTrial(d)
		}
	}
	if time.Until(d.meta.DueAt) > earlyLimit { // the broker was asked for no longer delay
		p.settle(d, brokers.Retry)
		return true
	}
	if d.letter == nil {
		p.kill(d, reason, p.letter(d, err, refusedVerdict))
	}
	p.mu.Lock()
	p.bury(d)
	p.mu.Unlock()
	return true
}

func (p *pipeline) refusal(d *delivery) (reason string, err error) {
	m := &d.Message
	switch {
	case d.sub.stray:
		return reasonUnroutable, fmt.Errorf("no handler is registered for topic %q", m.Topic)
	case d.Unreadable != nil:
		return reasonUnreadable, d.Unreadable
	case p.suspicion(d) == guilty:
		return reasonCrashLoop, fmt.Errorf("%d deliveries ended without a settlement: the message seems to kill its worker", d.Abandoned)
	case d.sub.maxBody > 0 && len(m.Body) > d.sub.maxBody:
		return reasonOversize, fmt.Errorf("the body of %d bytes is over the limit of %d bytes", len(m.Body), d.sub.maxBody)
	case d.meta.Attempt >= d.sub.attempts && d.meta.Class == poisonClass:
		return "poison", errors.New("it was found to be poison before this delivery, but no dead letter was confirmed; the history has the failure")
	case d.meta.Attempt >= d.sub.attempts && d.sub.noRepeat && ambiguous(d.meta.History):
		return reasonAmbiguous, errors.New("its last run may have had its effect, but no dead letter was confirmed then; the history has the failure")
	case d.meta.Attempt >= d.sub.attempts:
		return "exhausted", spent(d)
	}
	return "", nil
}

// ambiguous reports whether the last failure was.
func ambiguous(history []brokers.Failure) bool {
	return len(history) > 0 && history[len(history)-1].Ambiguous
}

// spent says why d has no attempt left. Versions before brokers.Death stored no
// other reason with a message whose dead letter found no room.
func spent(d *delivery) error {
	if h := d.meta.History; len(h) > 0 && h[len(h)-1].Attempt < d.sub.attempts {
		return errors.New("it had to be dead-lettered before this delivery, but no dead letter was confirmed; the history has its failures")
	}
	return fmt.Errorf("all %d attempts were used before this delivery, but no dead letter was confirmed", d.meta.Attempt)
}

// first reports whether meta is that of a first delivery.
func first(meta *brokers.Meta) bool { return meta.FirstFailedAt.IsZero() && meta.DueAt.IsZero() }

// earlyLimit is how early a delivery may be and is still held, even if
// HoldLimit is less: a broker that came that close may come no closer.
const earlyLimit = 2 * time.Second

// enqueue hands d to the workers, alone or as part of a batch, or lets it wait
// until it is due. mu is held.
func (p *pipeline) enqueue(d *delivery) {
	switch {
	case p.draining.Load():
		p.settleLocked(d, brokers.Release)
	case !d.meta.DueAt.IsZero() && time.Until(d.meta.DueAt) > 0:
		p.waitLocked(d, max(p.cfg.HoldLimit, earlyLimit))
	case d.sub.batchHandler != nil:
		p.collect(d)
	default:
		p.pool.add(d.sub.line, d.alone())
	}
}

// watchSessions has the deliveries of a session lost when it ends. mu is held.
func (p *pipeline) watchSessions(deliveries []*brokers.Delivery) {
	for _, d := range deliveries {
		session := d.Session
		if session == nil || p.sessions[session] != nil {
			continue
		}
		p.sessions[session] = context.AfterFunc(session, func() { p.loseSession(session) })
	}
}

// unwatch stops to watch sessions: nothing is left to lose.
func (p *pipeline) unwatch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stop := range p.sessions {
		stop()
	}
}

func (p *pipeline) loseSession(session context.Context) {
	cause := leaseLost(context.Cause(session))
	p.mu.Lock()
	delete(p.sessions, session)
	ds := p.held()
	p.mu.Unlock()
	for _, w := range p.pool.members() {
		ds = append(ds, w.deliveries()...)
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
	if state(d.state.Load()) == waiting { // nobody else looks at it
		p.drop(d, cause)
	}
}

// drop forgets a delivery that belongs to somebody else.
func (p *pipeline) drop(d *delivery, cause error) {
	p.mu.Lock()
	dropped := p.to(d, gone)
	if dropped {
		p.advance(d, false)
	}
	p.mu.Unlock()
	if !dropped {
		return
	}
	if p.keeper != nil {
		p.keeper.Forget(d)
	}
	p.observe(d, Event{Kind: EventLeaseLost, Err: cause})
}

// forget ends the life of deliveries in this process.
func (p *pipeline) forget(ds ...*delivery) {
	if p.keeper != nil {
		p.keeper.Forget(ds...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range ds {
		p.to(d, gone)
	}
}

// advance lets the next delivery of d's key go on. If d did not succeed on a
// source that keeps the order, the rest of the key is given back instead, for
// the broker to deliver after it. mu is held.
func (p *pipeline) advance(d *delivery, succeeded bool) {
	if !d.turn {
		return
	}
	d.turn = false
	if p.caps.Ordered && !succeeded || p.draining.Load() {
		for _, next := range p.keys.clear(d) {
			p.settleLocked(next, brokers.Release)
		}
		return
	}
	if next := p.keys.next(d); next != nil {
		p.to(next, queued)
		p.enqueue(next)
	}
}
