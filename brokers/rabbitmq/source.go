package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/health"
)

// source merges the consumers of a subscription. Receive does all the work of
// connecting again: as long as nobody calls it, nothing is consumed.
type source struct {
	broker   *Broker
	sub      brokers.Subscription
	readOnly bool
	delays   delayPlan
	prefetch int
	caps     brokers.Capabilities
	feeds    []*feed

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	woken  adapter.Waker
	link   adapter.Link // changed under mu
	work   sync.WaitGroup
	asker  *publisher // which publishes nothing

	mu         sync.Mutex
	session    *session // nil before the first and between two
	connecting bool
	failures   []error      // of attempts to connect and of queues, not yet reported
	denials    int          // attempts in a row that only an operator could cure
	begun      time.Time    // when the session did; zero until Open has made sure of the topology
	brief      int          // sessions in a row that ended soon
	taken      time.Time    // when Receive last looked for deliveries
	turn       adapter.Turn // of the feeds
	paused     []string     // topics, as the last Pause named them
}

// feed is a queue that the source consumes from.
type feed struct {
	topic   string
	queue   string
	retried bool
	ordered bool        // deliveries are handed out in the order of the queue
	single  bool        // the broker has one consumer at a time get it
	merges  bool        // a consumer can take over the unacked deliveries of its tag
	kept    atomic.Bool // the broker keeps rejected messages
	deleted atomic.Bool // the queue is, so that nothing can go back to it
	paused  time.Time   // since when; zero if it is not
	unsure  bool        // its queue may be another one, or gone
	misses  int         // times in a row that it could not be consumed from
	again   time.Time   // when to look for it again
}

var _ brokers.Source = (*source)(nil)

const (
	// patience is how many attempts to connect in a row must be denied before
	// that is taken for final: a broker that is going down denies too.
	patience = 3

	// mostBuffered bounds in bytes the bodies that wait to be handed out. Each feed
	// has an equal share of it, so that none that is paused takes the room of others;
	// beside that there may be one that is larger, and those below a size that cannot
	// add up to much.
	mostBuffered = 64 << 20
	smallBody    = 8 << 10

	// blockedPace is how often a delivery is handed out while the broker
	// blocks publishing: seldom, as a retry could not be stored, but not
	// never, as consuming may be what frees its memory.
	blockedPace = time.Second

	// shortestRest and longestRest bound the wait between brief sessions, which are
	// those that last for less than the longest. The broker charges a lost connection
	// to every message that was on it, so a network that keeps failing must not do so
	// often.
	shortestRest = 500 * time.Millisecond
	longestRest  = 8 * time.Second
)

func newSource(b *Broker, sub brokers.Subscription) *source {
	s := &source{
		broker:   b,
		sub:      sub,
		readOnly: sub.ReadOnly(),
		delays:   planDelays(sub.MaxDelay),
		prefetch: max(sub.InFlight, 1),
		woken:    adapter.NewWaker(),
		asker:    newPublisher(b, "backlog"),
	}
	margin := min(b.options.ConsumerTimeout/10, time.Minute)
	lease := b.options.ConsumerTimeout - margin
	s.caps = brokers.Capabilities{Lease: lease, MaxLease: lease, MaxHold: tick, MessageLimit: b.options.MessageLimit}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	for _, topic := range sub.Topics {
		s.feeds = append(s.feeds, &feed{topic: topic, queue: topic, ordered: sub.Ordered})
		if !s.readOnly {
			s.feeds = append(s.feeds, &feed{topic: topic, queue: b.names.retry(topic), retried: true})
		}
	}
	return s
}

func (s *source) Capabilities() brokers.Capabilities { return s.caps }

// Connection implements health.Connected.
func (s *source) Connection() health.Connection { return s.link.Connection() }

// start declares the topology and opens the first session.
func (s *source) start(ctx context.Context) error {
	t := s.broker.names.plan(s.sub, s.delays)
	n, err := s.begin(ctx, &t)
	if err != nil {
		return err
	}
	return s.adopt(n, nil)
}

// consuming are the arguments of consumers. A priority, even if it is the default,
// is refused by streams, of which nobody without the right to configure them learns
// what they are.
func (s *source) consuming() amqp.Table {
	if s.readOnly {
		return amqp.Table{"x-priority": int32(0)}
	}
	return nil
}

// leadsTo reports whether dead letters or receipts of s go to topic, which Open has
// bound.
func (s *source) leadsTo(topic string) bool {
	s.mu.Lock()
	opened := !s.begun.IsZero()
	s.mu.Unlock()
	return opened && topic != "" && (topic == s.sub.Receipts || slices.ContainsFunc(s.sub.Topics, func(name string) bool {
		return s.sub.DeadLetters[name] == topic
	}))
}

// rest is how long to wait after so many brief sessions in a row, half of it
// by chance, so that workers do not come back all at once.
func rest(brief int) time.Duration {
	if brief == 0 {
		return 0
	}
	d := min(shortestRest<<min(brief-1, 4), longestRest)
	return d/2 + rand.N(d/2)
}

// note counts a session that lasted for d. mu is held, or nobody else connects.
func (s *source) note(d time.Duration) {
	if s.brief++; d > longestRest {
		s.brief = 0
	}
}

// connect opens the next session after a wait.
func (s *source) connect(wait time.Duration) {
	adapter.Rest(s.ctx, wait)
	n, err := s.begin(s.ctx, nil)
	s.adopt(n, err)
}

// adopt makes n the session of the source, or err its failure.
func (s *source) adopt(n *session, err error) error {
	s.mu.Lock()
	s.connecting = false
	closed := s.ctx.Err() != nil
	switch {
	case closed:
		err = brokers.ErrClosed
	case err != nil:
		s.link.Down(err)
		s.failures = append(s.failures, fmt.Errorf("receive from %q: %w", s.sub.Topics, s.judge(err)))
	default:
		s.link.Up()
		s.session, s.begun, s.denials = n, time.Now(), 0
		s.steer() // what is paused may be about to be parked
	}
	s.mu.Unlock()
	if closed && n != nil {
		n.finish(s.ctx, brokers.ErrClosed)
	}
	s.woken.Wake()
	return err
}

// judge takes a denial for temporary until it is repeated.
func (s *source) judge(err error) error {
	if !errors.Is(err, brokers.ErrMisconfigured) {
		s.denials = 0
		return err
	}
	if s.denials++; s.denials >= patience {
		return err
	}
	return fmt.Errorf("attempt %d of %d: %v", s.denials, patience, err)
}

// steer has the session look at its consumers. mu is held.
func (s *source) steer() {
	if s.session != nil {
		s.session.kick.Wake()
	}
}

// push adds what a consumer received. What came in while the session was being set
// up belongs to it too.
func (s *source) push(t *token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, n, size := t.intake, t.intake.session, len(t.delivery.Body)
	if in.spills.Load() || size > smallBody && n.isFull(in, s.share()-size) {
		// Messages have become too large for what was granted. What is on its way is
		// dropped, too, be there room, or it would overtake that, and all of it is
		// given back together with the buffer. Prefetching begins anew, with what
		// there is room for.
		if t.lose() {
			in.spilled = append(in.spilled, t)
		}
		in.spills.Store(true)
		n.kick.Wake()
		return
	}
	alone := seclusion(t.count)
	if alone > 0 {
		in.careful = time.Now().Add(alone)
		time.AfterFunc(alone, s.woken.Wake) // for it to grow, however long this one takes
	}
	if alone > 0 && !in.ordered {
		n.suspects = append(n.suspects, t)
	} else {
		in.items = append(in.items, t)
	}
	s.woken.Wake()
}

// share is how many bytes of bodies of a feed may wait to be handed out.
func (s *source) share() int { return mostBuffered / len(s.feeds) }

// isFull reports whether the buffer of in has anything in it, and more than so many
// bytes. The lock of the source is held.
func (n *session) isFull(in *intake, most int) bool {
	_, size := n.buffered(in)
	return size > max(most, 0)
}

func (s *source) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("rabbitmq: receive at most %d messages: the least is 1", max)
	}
	for {
		most := s.pace(ctx, max)
		if ctx.Err() != nil && s.ctx.Err() == nil {
			return nil, context.Cause(ctx)
		}
		ds, err := s.take(most)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		s.woken.Wait(ctx, time.Time{})
	}
}

// pace returns how many deliveries may be handed out. While the broker blocks
// publishing that is one now and then, after a wait.
func (s *source) pace(ctx context.Context, max int) int {
	free := s.broker.publisher.blocked()
	if free == nil {
		return max
	}
	select {
	case <-free:
		return max
	case <-time.After(blockedPace):
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return 1
}

// take returns what is buffered, and sees to it that there is a session.
func (s *source) take(most int) ([]*brokers.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, brokers.ErrClosed
	}
	if s.session != nil && s.session.ctx.Err() != nil {
		s.drop()
	}
	if len(s.failures) > 0 {
		err := s.failures[0]
		s.failures = s.failures[1:]
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	if s.session == nil {
		if !s.connecting {
			s.connecting = true
			wait := rest(s.brief)
			s.work.Go(func() { s.connect(wait) })
		}
		return nil, nil
	}
	s.taken = time.Now()
	ds := s.session.addSuspects(s.gather(most), most)
	if s.session.grow(s.taken); !s.session.isCalm(s.taken) {
		s.steer()
	}
	return ds, nil
}

// drop forgets a session that has ended, and what it left in the buffers: the
// broker delivers it again.
func (s *source) drop() {
	n := s.session
	s.session = nil
	s.link.Down(context.Cause(n.ctx))
	s.note(time.Since(s.begun))
	s.work.Go(func() { n.finish(s.ctx, context.Cause(n.ctx)) })
}

// gather takes from the intakes in turn, an equal share from each.
func (s *source) gather(most int) []*brokers.Delivery {
	now, ins := time.Now(), s.session.intakes
	var ds []*brokers.Delivery
	ready := func(i int) int { return ins[i].ready(now) }
	s.turn.Take(most, len(ins), ready, func(i, most int) int {
		in := ins[i]
		n := min(most, in.ready(now))
		for _, t := range in.items[:n] {
			ds = append(ds, s.next(t, now))
		}
		clear(in.items[:n])
		in.items = in.items[n:]
		return n
	})
	return ds
}

// next hands out the next message of an intake.
func (s *source) next(t *token, now time.Time) *brokers.Delivery {
	in, d := t.intake, s.delivery(t, now)
	t.begun.Store(true)
	t.delivery = amqp.Delivery{} // d has it now
	if alone := seclusion(t.count); in.ordered && alone > 0 {
		in.trial, in.tried = t, now
		time.AfterFunc(alone, s.woken.Wake)
	}
	if in.ordered && in.taken > 0 {
		d.Abandoned = 0 // the one that ends its workers is the first of the next session
	}
	in.taken++
	return d
}

func (s *source) delivery(t *token, now time.Time) *brokers.Delivery {
	f := t.intake.feed
	m, meta := s.broker.understand(&t.delivery, f.topic, f.retried, wire.Limits{Now: now, MaxDelay: s.sub.MaxDelay})
	anonymous := m.ID == ""
	if anonymous {
		m.ID = newID()
	}
	h := &handed{meta: meta}
	h.Delivery = brokers.Delivery{
		Anonymous:  anonymous,
		Message:    m,
		Carried:    &h.meta,
		Unreadable: unreadableError(&t.delivery),
		Abandoned:  t.abandoned(&meta),
		ReceivedAt: now,
		LeaseUntil: t.deadline,
		Session:    t.intake.session.ctx,
		Token:      t,
	}
	return &h.Delivery
}

// handed is a delivery and what it carries, in one piece of memory.
type handed struct {
	brokers.Delivery
	meta brokers.Meta
}

// Extend has no effect on the broker: how long it lets a message be held is
// counted from its delivery.
func (s *source) Extend(_ context.Context, _ time.Duration, ds []*brokers.Delivery) []error {
	failures := adapter.Failures{Broker: "rabbitmq", Entries: len(ds)}
	for i, d := range ds {
		failures.Add(i, "extend", d, s.check(d))
	}
	return failures.List
}

func (s *source) Close(ctx context.Context) error {
	s.mu.Lock()
	n := s.session
	s.mu.Unlock()
	if n != nil { // if that fails, they are given back as the others are
		for _, in := range n.intakes {
			n.renew(ctx, in)
		}
	}
	s.mu.Lock()
	n = s.session
	s.session = nil
	s.cancel(brokers.ErrClosed)
	s.mu.Unlock()
	s.woken.Wake()
	if n != nil {
		n.finish(ctx, brokers.ErrClosed)
	}
	s.work.Wait()
	s.asker.close(ctx)
	s.broker.sources.Remove(s)
	return nil
}
