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
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/visibility"
)

// pipeline is one call of Run. A delivery passes through it in this order:
//
//	receive -> admit -> (lane) -> crew -> conclude -> settler
//	                               ^         |-> retrier
//	                               |         |-> letters -> settler
//	                               '- held <-'
//
// mu guards what decides whether a delivery may move on.
type pipeline struct {
	cfg    Config
	routes map[string]*route
	broker brokers.Broker
	source brokers.Source
	caps   brokers.Capabilities
	lanes  lanes
	log    *logObserver

	values context.Context         // of Run, without its cancellation
	life   context.Context         // ends when the pipeline is done
	stop   context.CancelCauseFunc // stops receiving, with the fatal error
	room   chan struct{}           // there may be room for another delivery

	gate   *gate
	budget Budget        // nil if switched off
	opened chan struct{} // the gate may have opened
	pace   *pace         // nil unless adaptive
	delay  time.Duration // the longest that the broker was told of

	window int
	crew   *crew
	stages sync.WaitGroup // keeper and outboxes

	keeper  *visibility.Keeper[*run] // nil if leases have no deadline
	settler *settler
	retrier *settler

	mu       sync.Mutex
	active   int // deliveries that count against window
	held     held
	gated    gated
	parked   int // dead letters on their way, outside the window
	batches  map[*route]*collector
	letters  map[string]*outbox // by dead-letter topic
	sessions map[context.Context]func() bool
	draining atomic.Bool // written under mu
}

func newPipeline(life context.Context, stop context.CancelCauseFunc, c *Consumer, source brokers.Source) *pipeline {
	p := &pipeline{
		cfg:      c.cfg,
		routes:   map[string]*route{},
		broker:   c.broker,
		source:   source,
		window:   c.cfg.window(c.routes),
		caps:     source.Capabilities(),
		delay:    c.cfg.subscription(c.routes).MaxDelay,
		log:      newLogObserver(c.cfg.Logger, c.cfg.Redact),
		values:   context.WithoutCancel(life),
		life:     life,
		stop:     stop,
		room:     make(chan struct{}, 1),
		opened:   make(chan struct{}, 1),
		gate:     c.cfg.Restraint.gate(longest(c.routes), c.cfg.Random),
		budget:   c.cfg.Restraint.Budget,
		batches:  map[*route]*collector{},
		letters:  map[string]*outbox{},
		sessions: map[context.Context]func() bool{},
	}
	for _, r := range c.routes {
		p.routes[r.topic] = r
	}
	if c.cfg.Order == ByKey || p.caps.Ordered {
		p.lanes = lanes{}
	}
	p.crew = &crew{limit: c.cfg.Concurrency, start: func() *worker { return newWorker(p) }}
	if c.cfg.Restraint.Adaptive {
		p.pace = newPace(c.cfg.Concurrency)
	}
	p.settler, p.retrier = newSettler(p), newSettler(p)
	return p
}

// start starts everything but receiving.
func (p *pipeline) start() {
	if p.caps.Lease > 0 {
		p.keeper = visibility.New(visibility.Config[*run]{
			Lease:    p.caps.Lease,
			MaxLease: p.caps.MaxLease,
			Extend:   p.extend,
			Times:    func(r *run) (time.Time, time.Time) { return r.delivery.ReceivedAt, r.delivery.LeaseUntil },
			Final:    final,
			Lost:     p.lose,
		})
		p.stages.Go(func() { p.keeper.Run(p.life) })
	}
	p.stages.Go(func() { p.settler.run(p.life) })
	p.stages.Go(func() { p.retrier.run(p.life) })
}

// receive takes deliveries in until ctx ends or the source fails for good.
func (p *pipeline) receive(ctx context.Context) error {
	backoff := retry.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second, Floor: 10 * time.Millisecond}
	for failures := 0; ; {
		n := p.awaitRoom(ctx)
		granted, n := p.awaitGate(ctx, n)
		if ctx.Err() != nil {
			p.gate.done(time.Now(), granted, breaker.Ignored, breaker.Ignored)
			return nil
		}
		deliveries, err := p.fetch(ctx, n, granted)
		switch {
		case err == nil:
			failures = 0
			p.admit(deliveries, granted)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, brokers.ErrClosed), errors.Is(err, brokers.ErrMisconfigured):
			return fmt.Errorf("consumer: receive: %w", err)
		default:
			failures++
			p.report(p.values, Event{Kind: EventError, Operation: OperationReceive, Err: fmt.Errorf("receive: %w", err)})
			sleep(ctx, backoff.Delay(failures, 0, p.cfg.Random()))
		}
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// receiveLimit bounds one Receive, so that a batch stays in the cache.
const receiveLimit = 256

// awaitRoom returns how many deliveries may be received, at least 1 unless
// ctx has ended.
func (p *pipeline) awaitRoom(ctx context.Context) int {
	for {
		p.mu.Lock()
		n := p.window - p.active
		p.mu.Unlock()
		if n > 0 {
			return min(n, receiveLimit)
		}
		select {
		case <-ctx.Done():
			return 0
		case <-p.room:
		}
	}
}

// leave takes n deliveries off the count. mu is held.
func (p *pipeline) leave(n int) {
	p.active -= n
	select {
	case p.room <- struct{}{}:
	default:
	}
}

// admitted is how many runs share a piece of memory: one that is held for long
// keeps the others, too.
const admitted = 16

// admit takes deliveries over from the source, which were fetched with granted.
func (p *pipeline) admit(deliveries []*brokers.Delivery, granted permit) {
	var block []run
	runs := make([]*run, len(deliveries))
	fresh := 0
	for i, d := range deliveries {
		if len(block) == 0 {
			block = make([]run, min(admitted, len(deliveries)-i))
		}
		r := &block[0]
		block = block[1:]
		r.delivery, r.meta, r.permit = d, &d.Meta, granted
		if first(&d.Meta) {
			fresh++
		}
		r.route = p.routes[d.Message.Topic]
		r.self[0] = r
		runs[i] = r
		if p.observed() {
			p.observe(r, Event{Kind: EventReceived})
		}
	}
	if p.budget != nil && fresh > 0 {
		p.budget.Delivered(time.Now(), fresh)
	}
	if p.keeper != nil {
		p.keeper.Track(runs...)
	}
	p.mu.Lock()
	p.active += len(runs)
	p.watchSessions(deliveries)
	p.mu.Unlock()
	runs = slices.DeleteFunc(runs, p.refuse)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range runs {
		if p.lanes == nil || p.lanes.enter(r) {
			p.enqueue(r)
		}
	}
}

// refuse dead-letters what must not run. It reports whether it did.
func (p *pipeline) refuse(r *run) bool {
	reason, err := p.refusal(r)
	if err == nil {
		return false
	}
	if r.permit.probe() {
		p.tell(r, time.Now(), &skipped)
	}
	p.bury(r, reason, p.entry(r, err, refusedVerdict))
	return true
}

func (p *pipeline) refusal(r *run) (reason string, err error) {
	m := &r.delivery.Message
	switch {
	case r.route == nil:
		r.route = p.strayRoute(m.Topic)
		return reasonUnroutable, fmt.Errorf("no handler is registered for topic %q", m.Topic)
	case p.cfg.CrashLimit > 0 && r.delivery.Abandoned >= p.cfg.CrashLimit:
		return reasonCrashLoop, fmt.Errorf("%d deliveries ended without a settlement: the message seems to kill its worker", r.delivery.Abandoned)
	case r.delivery.Meta.Attempt >= r.route.attempts:
		return retry.ReasonExhausted, fmt.Errorf("all %d attempts were used before this delivery, but no dead letter was confirmed", r.delivery.Meta.Attempt)
	case r.route.maxBody > 0 && len(m.Body) > r.route.maxBody:
		return reasonOversize, fmt.Errorf("the body of %d bytes is over the limit of %d bytes", len(m.Body), r.route.maxBody)
	}
	return "", nil
}

// strayRoute says where messages of a topic without a handler go, should a
// source deliver any.
func (p *pipeline) strayRoute(topic string) *route {
	for _, stray := range p.routes {
		deadLetter := stray.deadLetter
		if p.cfg.DeadLetter != nil {
			deadLetter = p.cfg.DeadLetter(topic)
		}
		return &route{topic: topic, deadLetter: deadLetter, policy: p.cfg.Retry}
	}
	return nil
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

// enqueue hands r to the workers, alone or as part of a batch, or lets it wait
// until it is due. mu is held.
func (p *pipeline) enqueue(r *run) {
	switch {
	case p.draining.Load():
		p.settleLocked(r, brokers.Release)
	case !r.meta.DueAt.IsZero() && time.Until(r.meta.DueAt) > 0:
		p.waitLocked(r, max(p.cfg.HoldLimit, earlyLimit))
	case r.route.batch != nil:
		p.collect(r)
	default:
		p.crew.add(r.self[:])
	}
}

// reschedule lets r wait for its due time: in the process if that is near, in
// the broker otherwise.
func (p *pipeline) reschedule(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitLocked(r, p.holdLimit(r))
}

// holdLimit is the longest that r may be held after a failure. Where holding is
// dear, that is next to nothing, unless the key of r waits for it or the broker
// has stored it for a retry before.
func (p *pipeline) holdLimit(r *run) time.Duration {
	if p.caps.MaxHold == 0 || r.laned || !first(&r.delivery.Meta) {
		return p.cfg.HoldLimit
	}
	return min(p.cfg.HoldLimit, p.caps.MaxHold)
}

// first reports whether meta is that of a first delivery.
func first(meta *brokers.Meta) bool { return meta.FirstFailedAt.IsZero() && meta.DueAt.IsZero() }

// earlyLimit is how early a delivery may be and is still held, even if
// HoldLimit is less: a broker that came that close may come no closer.
const earlyLimit = 2 * time.Second

// waitLocked is reschedule with mu held, holding for at most limit.
func (p *pipeline) waitLocked(r *run, limit time.Duration) {
	wait := time.Until(r.meta.DueAt)
	if p.draining.Load() || wait > limit || !p.roomToHold() || !p.lasts(r, r.meta.DueAt) {
		p.settleLocked(r, brokers.Retry)
		return
	}
	p.holdUntilDue(r)
}

// roomToHold reports whether one more delivery may wait outside the window.
// mu is held.
func (p *pipeline) roomToHold() bool { return p.held.count+p.parked < p.cfg.MaxHeld }

// lasts reports whether the delivery of r can be held until a run that begins
// at start is over.
func (p *pipeline) lasts(r *run, start time.Time) bool {
	end := r.delivery.ReceivedAt.Add(p.caps.MaxLease)
	return p.caps.MaxLease == 0 || start.Add(r.route.timeout).Before(end)
}

// lose is told by the keeper, and at the end of a session, that somebody else
// may have the delivery.
func (p *pipeline) lose(r *run, cause error) {
	cause = leaseLost(cause)
	r.lose(cause)
	p.mu.Lock()
	held := p.unhold(r)
	p.mu.Unlock()
	if held {
		p.refund(r)
		p.drop(r, cause)
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
	var lost []*run
	for _, r := range p.heldRuns() {
		if r.delivery.Session == session {
			lost = append(lost, r)
		}
	}
	p.mu.Unlock()
	for _, w := range p.crew.members() {
		for _, r := range w.runs() {
			if r.delivery.Session == session {
				lost = append(lost, r)
			}
		}
	}
	for _, r := range lost {
		p.lose(r, cause)
	}
}

// drop forgets a delivery that belongs to somebody else.
func (p *pipeline) drop(r *run, cause error) {
	if !r.settled.CompareAndSwap(false, true) {
		return
	}
	p.observe(r, Event{Kind: EventLeaseLost, Err: cause})
	p.mu.Lock()
	p.advance(r, false)
	p.mu.Unlock()
	p.forget(r)
}

// forget ends the life of runs in this process.
func (p *pipeline) forget(runs ...*run) {
	if p.keeper != nil {
		p.keeper.Forget(runs...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	active := len(runs)
	for _, r := range runs {
		if r.parked {
			r.parked = false
			p.parked--
			active--
		}
	}
	p.leave(active)
}

// advance lets the next run of r's key start. If r did not succeed on a source
// that keeps the order, the rest of the key is given back instead, for the
// broker to deliver after it. mu is held.
func (p *pipeline) advance(r *run, succeeded bool) {
	if !r.laned {
		return
	}
	r.laned = false
	if p.caps.Ordered && !succeeded || p.draining.Load() {
		for _, next := range p.lanes.clear(r) {
			p.settleLocked(next, brokers.Release)
		}
		return
	}
	if next := p.lanes.next(r); next != nil {
		p.enqueue(next)
	}
}
