package memory

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/wire"
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
	// flight. Publish waits for room; a Retry needs none. 0 means 1,048,576.
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
// first used. A Broker that is used inside a testing/synctest bubble must be
// created there.
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
		ids:     rand.Text() + "-",
		topics:  make(map[string]*topic),
		sources: make(map[*source]struct{}),
		ops:     make(map[Op]int),
	}
}

// lock locks the broker, and settles first what time has done until now.
func (b *Broker) lock() (now time.Duration) {
	b.mu.Lock()
	now = time.Since(b.start)
	for a := b.leases.pop(now); a != nil; a = b.leases.pop(now) {
		b.drop(a.hold, brokers.ErrLeaseLost)
	}
	for a := b.delays.pop(now); a != nil; a = b.delays.pop(now) {
		b.due(a.entry)
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
	if due, any := b.delays.next(); any && (!ok || due < next) {
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
	if t == nil {
		t = &topic{
			name:   name,
			origin: origin(name),
			lanes:  make(map[string]*lane),
		}
		b.topics[name] = t
	}
	return t
}

// Open subscribes to the topics of sub, and creates them and the dead-letter
// topics where they are missing. The sources of one topic compete for its
// messages, whatever their Group, which is ignored: there is one set of
// workers per topic. Delays and ages of any length are fine.
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
	for _, name := range sub.DeadLetters {
		b.topic(name)
	}
	return b.subscribe(sub.Topics, lease), nil
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

// hand makes a delivery of e, which is in flight from now on.
func (b *Broker) hand(e *entry, s *source, now time.Duration) *brokers.Delivery {
	h := &hold{entry: e, source: s, next: e.holds, since: now, until: later(now, s.capabilities.Lease)}
	received := b.start.Add(now)
	h.Delivery = brokers.Delivery{
		Message:    e.message,
		Abandoned:  e.abandoned,
		ReceivedAt: received,
		LeaseUntil: received.Add(h.until - now),
		Session:    s.session,
		Token:      h,
	}
	h.Meta = e.loadMeta()
	h.lease.hold = h
	e.holds = h
	b.leases.push(&h.lease, h.until, e.seq)
	return &h.Delivery
}

// drop ends h without a settlement of its message, which is available again
// unless somebody else holds it, too.
func (b *Broker) drop(h *hold, end error) {
	e := h.entry
	b.end(h, end)
	for at := &e.holds; *at != nil; at = &(*at).next {
		if *at == h {
			*at = h.next
			break
		}
	}
	if end == brokers.ErrLeaseLost {
		e.abandoned++
	}
	if e.holds == nil {
		e.topic.set(e, ready)
		e.topic.place(e)
	}
}

func (b *Broker) end(h *hold, end error) {
	h.end = end
	if h.lease.pos > 0 {
		b.leases.remove(&h.lease)
	}
}

// win ends all holds of the message of h, of which h was settled first.
func (b *Broker) win(h *hold) {
	for other := h.entry.holds; other != nil; other = other.next {
		b.end(other, brokers.ErrLeaseLost)
	}
	h.end = brokers.ErrSettled
	h.entry.holds = nil
}

// postpone makes e available after delay.
func (b *Broker) postpone(e *entry, now, delay time.Duration) {
	if delay > 0 {
		e.topic.set(e, delayed)
		b.delays.push(&e.delay, later(now, delay), e.seq)
		e.topic.place(e)
		return
	}
	e.topic.set(e, ready)
	b.requeue(e)
	e.topic.place(e)
}

// retryCopy stores a copy of e as if st had been settled by copying.
func (b *Broker) retryCopy(e *entry, now time.Duration, st brokers.Settlement) {
	twin := &entry{message: e.message}
	twin.storeMeta(st.Meta)
	b.insert(e.topic, twin)
	b.postpone(twin, now, st.Delay)
}

// due makes e, whose delay is over, available behind those that are. A
// message that has an order kept its place in it.
func (b *Broker) due(e *entry) {
	e.topic.set(e, ready)
	if e.lane != nil {
		e.topic.offer(e.lane)
		return
	}
	b.requeue(e)
	e.topic.place(e)
}

func (b *Broker) requeue(e *entry) {
	if e.lane == nil {
		b.seq++
		e.seq = b.seq
	}
}

// insert stores e, ready or about to be delayed, as the newest of t.
func (b *Broker) insert(t *topic, e *entry) {
	b.seq++
	e.seq = b.seq
	e.delay.entry = e
	t.add(e, b.options.Ordered)
}

// later returns now + d, or the end of time.
func later(now, d time.Duration) time.Duration {
	if d > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + d
}

func (b *Broker) newID() string {
	return b.ids + strconv.FormatUint(b.id.Add(1), 36)
}

// identify sets what m lacks of an identity, and returns the rest of it.
func (b *Broker) identify(m *brokers.Message) *brokers.Meta {
	now := time.Now()
	var carried brokers.Message
	var meta brokers.Meta
	if len(m.Headers) > 0 {
		carried, meta = wire.SplitIdentity(m.Headers, wire.Limits{Now: now})
	}
	if m.ID == "" {
		m.ID = carried.ID
	}
	if m.ID == "" {
		m.ID = b.newID()
	}
	if m.PublishedAt.IsZero() {
		m.PublishedAt = carried.PublishedAt
	}
	if m.PublishedAt.IsZero() {
		m.PublishedAt = now
	}
	if meta.IdempotencyKey == "" && meta.RedriveCount == 0 {
		return nil
	}
	return &meta
}

// newEntry copies m, so that the producer may reuse what it passed.
func newEntry(topic string, m brokers.Message, meta *brokers.Meta) *entry {
	m.Topic = topic
	m.Body = bytes.Clone(m.Body)
	m.Headers = slices.Clip(slices.Clone(m.Headers))
	if meta != nil {
		meta.Origin = origin(topic)
	}
	return &entry{message: m, meta: meta}
}

func origin(topic string) brokers.Headers {
	return brokers.Headers{{Name: "topic", Value: topic}}
}

func (e *entry) loadMeta() brokers.Meta {
	if e.meta == nil {
		return brokers.Meta{Origin: e.topic.origin}
	}
	return cloneMeta(*e.meta)
}

func (e *entry) storeMeta(m brokers.Meta) {
	m = cloneMeta(m)
	e.meta = &m
}

// cloneMeta keeps whoever changes a Meta in place from changing the store.
func cloneMeta(m brokers.Meta) brokers.Meta {
	m.History = slices.Clone(m.History)
	m.Origin = slices.Clone(m.Origin)
	return m
}
