package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// Options configure a Broker. The zero value is ready to use.
type Options struct {
	// Lease is how long a delivery is held without Extend. 0 means 30 s. The
	// lease that a Subscription asks for wins.
	Lease time.Duration

	// MaxLease is how long a delivery can be held in all, however often it is
	// extended. 0 means no limit.
	MaxLease time.Duration

	// Limit is the most messages that a topic holds: ready, delayed and in
	// flight. Publish waits for room; Retry and Reject need none. 0 means 1,048,576.
	Limit int

	// MessageLimit is the largest message in bytes, body and headers
	// together; Publish refuses larger ones with brokers.ErrRefused. 0 means
	// no limit.
	MessageLimit int

	// HeaderLimit is the room in bytes for the headers of the framework on
	// one message, names and values together; Publish refuses more with
	// brokers.ErrRefused. 0 means 16 KiB, and that it is not checked.
	HeaderLimit int

	// Ordered delivers the messages of one key in order, even over retries;
	// see brokers.Capabilities. Messages without a key have no order.
	Ordered bool

	// Fault, unless nil, is asked before every operation what goes wrong with
	// it. It is called by the goroutine of the operation, under no lock, and
	// must be safe for concurrent use. With a hook the broker remembers one
	// counter per operation and message, for Op.Nth.
	Fault func(Op) Fault
}

const (
	defaultLease = 30 * time.Second
	defaultLimit = 1 << 20
)

// Broker is a message broker in memory. Topics come into being when they are
// first published to, or opened by more than a reader. A Broker that is used
// inside a testing/synctest bubble must be created there.
type Broker struct {
	options Options
	start   time.Time
	ids     string // prefix of the message ids of this broker
	id      atomic.Uint64

	mu      sync.Mutex
	closed  bool
	topics  map[string]*topic
	sources map[*source]struct{}
	seq     uint64 // of the entry that became ready last
	leases  alarms
	delays  alarms
	waiting int // sources that wait in Receive
	timer   *time.Timer
	armed   bool
	fires   time.Duration // when the timer does, if armed
	ops     map[Op]int
}

var _ brokers.Broker = (*Broker)(nil)

// New returns an empty broker. Contradictory options are an error from Open.
func New(options Options) *Broker {
	if options.Lease <= 0 {
		options.Lease = defaultLease
	}
	if options.Limit <= 0 {
		options.Limit = defaultLimit
	}
	return &Broker{
		options: options,
		start:   time.Now(),
		ids:     rand.Text()[:13] + "-",
		topics:  make(map[string]*topic),
		sources: make(map[*source]struct{}),
		ops:     make(map[Op]int),
	}
}

// lock locks the broker, and settles first what time has done until now.
func (b *Broker) lock() (now time.Duration) {
	b.mu.Lock()
	now = time.Since(b.start)
	for t, ok := b.leases.pop(now); ok; t, ok = b.leases.pop(now) {
		b.drop(t.hold, lost)
	}
	for t, ok := b.delays.pop(now); ok; t, ok = b.delays.pop(now) {
		b.due(t.entry)
	}
	return now
}

// unlock unlocks the broker. While a source waits in Receive, the timer fires
// at the next time at which a message can become ready.
func (b *Broker) unlock(now time.Duration) {
	defer b.mu.Unlock()
	if b.waiting == 0 {
		return
	}
	next, ok := b.leases.next()
	if due, waits := b.delays.next(); waits && (!ok || due < next) {
		next, ok = due, true
	}
	if !ok || b.armed && b.fires <= next {
		return
	}
	b.armed, b.fires = true, next
	if b.timer == nil {
		b.timer = time.AfterFunc(next-now, b.tick)
	} else {
		b.timer.Reset(next - now)
	}
}

func (b *Broker) tick() {
	now := b.lock()
	b.armed = false
	b.unlock(now)
}

func (b *Broker) topic(name string) *topic {
	t := b.topics[name]
	if t != nil {
		t.deleted = false
	} else {
		t = &topic{
			name:    name,
			carried: brokers.Meta{Origin: origin(name)},
			lanes:   make(map[string]*lane),
		}
		b.topics[name] = t
	}
	return t
}

func origin(topic string) brokers.Headers {
	return brokers.Headers{{Name: "topic", Value: topic}}
}

// Open subscribes to the topics of sub, and creates them, the dead-letter topics
// and the one for receipts where they are missing, unless it only reads. The sources of one topic
// compete for its messages, whatever their Group, which is ignored: there is one
// set of workers per topic. Delays and ages of any length are fine, and every Retry
// is done in place.
func (b *Broker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("memory: open %q: %w", sub.Topics, context.Cause(ctx))
	}
	lease := b.options.Lease
	if sub.Lease > 0 {
		lease = sub.Lease
	}
	if err := b.check(sub, lease); err != nil {
		return nil, fmt.Errorf("memory: open %q: %w", sub.Topics, err)
	}
	now := b.lock()
	defer b.unlock(now)
	if b.closed {
		return nil, fmt.Errorf("memory: open %q: %w", sub.Topics, brokers.ErrClosed)
	}
	if err := b.missing(sub); err != nil {
		return nil, fmt.Errorf("memory: open %q: %w", sub.Topics, err)
	}
	s := b.subscribe(sub.Topics, lease)
	for _, own := range s.subs {
		if dead := sub.DeadLetters[own.topic.name]; dead != "" {
			own.deadLetter = b.topic(dead)
		}
	}
	if sub.Receipts != "" {
		b.topic(sub.Receipts)
	}
	return s, nil
}

func (b *Broker) check(sub brokers.Subscription, lease time.Duration) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format+": %w", append(args, brokers.ErrMisconfigured)...))
	}
	if len(sub.Topics) == 0 {
		fault("the subscription names no topic")
	}
	if slices.Contains(sub.Topics, "") {
		fault("a topic of the subscription has no name")
	}
	for topic, dead := range sub.DeadLetters {
		if dead == "" {
			fault("the dead-letter topic of %q has no name", topic)
		}
	}
	if names := slices.Sorted(slices.Values(sub.Topics)); len(slices.Compact(names)) < len(sub.Topics) {
		fault("the subscription names a topic twice")
	}
	if limit := b.options.MaxLease; limit > 0 && lease > limit {
		fault("a lease of %v is longer than Options.MaxLease, %v: shorten the one or raise the other", lease, limit)
	}
	return errors.Join(faults...)
}

// missing says which topics are not there for a subscription that only reads.
func (b *Broker) missing(sub brokers.Subscription) error {
	var faults []error
	for _, name := range sub.Topics {
		if t := b.topics[name]; (t == nil || t.deleted) && sub.ReadOnly() {
			faults = append(faults, fmt.Errorf("the topic %q is missing, and a subscription that only reads makes none: %w", name, brokers.ErrNotFound))
		}
	}
	return errors.Join(faults...)
}

func (b *Broker) subscribe(topics []string, lease time.Duration) *source {
	s := &source{
		broker: b,
		woken:  make(chan struct{}, 1),
		capabilities: brokers.Capabilities{
			Lease:        lease,
			MaxLease:     b.options.MaxLease,
			Ordered:      b.options.Ordered,
			HeaderLimit:  b.options.HeaderLimit,
			MessageLimit: b.options.MessageLimit,
		},
	}
	s.session, s.cancel = context.WithCancelCause(context.Background())
	for _, name := range topics {
		sub := &subscription{source: s, topic: b.topic(name)}
		sub.topic.subs = append(sub.topic.subs, sub)
		s.subs = append(s.subs, sub)
		sub.activate()
	}
	b.sources[s] = struct{}{}
	return s
}

// Close closes the sources that are still open, and makes later calls fail
// with brokers.ErrClosed. Messages stay where they are and can be inspected.
func (b *Broker) Close(context.Context) error {
	now := b.lock()
	defer b.unlock(now)
	b.closed = true
	for s := range b.sources {
		s.close(false)
	}
	for _, t := range b.topics {
		for len(t.blocked) > 0 {
			t.admit()
		}
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	return nil
}

// Delete deletes a topic and its messages, as an operator may delete a queue that
// is in use. The leases of its deliveries are lost. The next Receive of each source
// of the topic returns a *brokers.TopicError, and other topics go on. A Publish
// creates the topic again, and so does an Open of a subscription that does not
// only read.
func (b *Broker) Delete(topic string) {
	now := b.lock()
	defer b.unlock(now)
	t := b.topics[topic]
	if t == nil || t.deleted {
		return
	}
	for e := t.first; e != nil; e = e.next {
		for h := e.holds; h != nil; h = h.next {
			b.end(h, lost)
		}
		if e.pos > 0 {
			b.delays.remove(&e.pos)
		}
	}
	t.empty()
	for _, sub := range t.subs {
		sub.source.deleted = append(sub.source.deleted, topic)
		sub.source.wake()
	}
}

// Crash kills src, a source of this broker, the way that a worker dies:
// nothing is released. Its deliveries become available when their leases run
// out and count as Abandoned; every later call on src is brokers.ErrClosed.
func (b *Broker) Crash(src brokers.Source) {
	s, ok := src.(*source)
	if !ok || s.broker != b {
		panic(fmt.Sprintf("memory: Crash of a %T that this broker did not open", src))
	}
	now := b.lock()
	defer b.unlock(now)
	s.close(true)
}
