package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

// Publish stores copies of msgs in topic, in order. While the topic is full it
// waits for room; if ctx ends first, the messages that are not stored yet are
// reported and not stored. Errors are *brokers.PublishError.
//
// An ID that is empty is taken from the header redrive-id or made up, and
// PublishedAt from redrive-published-at or the clock. The headers
// redrive-idempotency-key, redrive-count and redrive-send set fields of the first
// Meta.
// All other headers are data, and all of them are delivered as published.
func (b *Broker) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	metas := make([]brokers.Meta, len(msgs))
	now := time.Now()
	for i := range msgs {
		metas[i] = wire.Identify(&msgs[i], now, b.newID)
	}
	return b.store(ctx, Publish, topic, len(msgs), func(i int) (brokers.Message, brokers.Meta) { return msgs[i], metas[i] })
}

// SendBack sends msgs back to topic. There is one set of workers per topic, so
// group is ignored. It waits for room and reports as Publish does.
func (b *Broker) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	now := time.Now()
	for i := range msgs {
		wire.Identify(msgs[i].Message, now, b.newID)
	}
	return b.store(ctx, SendBack, topic, len(msgs), func(i int) (brokers.Message, brokers.Meta) {
		return *msgs[i].Message, msgs[i].Meta.Restart()
	})
}

// store stores n messages, with what is carried beside each.
func (b *Broker) store(ctx context.Context, operation Operation, topic string, n int, at func(i int) (brokers.Message, brokers.Meta)) error {
	p := publishing{broker: b, topic: topic, entries: make([]*entry, n)}
	if topic == "" {
		return p.fail(0, fmt.Errorf("the topic has no name: %w", brokers.ErrMisconfigured))
	}
	ids := make([]string, n)
	for i := range n {
		m, meta := at(i)
		ids[i] = m.ID
		if err := b.fits(m); err != nil {
			p.failed(i, err)
			continue
		}
		p.entries[i] = newEntry(topic, m, meta)
	}
	faults, err := b.faults(ctx, n, func(i int) Op { return Op{Operation: operation, Topic: topic, ID: ids[i]} })
	if err != nil {
		return p.fail(0, fmt.Errorf("not stored: %w", err))
	}
	return p.run(ctx, faults)
}

// publishing is one call of Publish or SendBack.
type publishing struct {
	broker  *Broker
	topic   string
	entries []*entry // nil where the message is refused
	err     *brokers.PublishError
}

func (p *publishing) failed(i int, err error) {
	if p.err == nil {
		p.err = &brokers.PublishError{Topic: p.topic, Failed: make(map[int]error)}
	}
	p.err.Failed[i] = err
}

// fail reports err for the messages from i on.
func (p *publishing) fail(i int, err error) error {
	for ; i < len(p.entries); i++ {
		if p.err == nil || p.err.Failed[i] == nil {
			p.failed(i, err)
		}
	}
	return p.result()
}

func (p *publishing) result() error {
	if p.err == nil {
		return nil
	}
	return p.err
}

func (p *publishing) run(ctx context.Context, faults []Fault) error {
	b := p.broker
	now := b.lock()
	defer func() { b.unlock(now) }()
	for i, e := range p.entries {
		if b.closed {
			return p.fail(i, brokers.ErrClosed)
		}
		fault := faultAt(faults, i)
		if fault.Err != nil && e != nil {
			p.failed(i, fault.Err)
		}
		if e == nil || fault.skip() {
			continue
		}
		t := b.topic(p.topic)
		var err error
		if now, err = b.room(ctx, t, now); err != nil {
			return p.fail(i, err)
		}
		if fault.Duplicate {
			twin := *e
			b.insert(t, &twin)
			t.place(&twin)
		}
		b.insert(t, e)
		t.place(e)
	}
	return p.result()
}

// room waits until t can take one more message. The broker is unlocked
// meanwhile.
func (b *Broker) room(ctx context.Context, t *topic, now time.Duration) (time.Duration, error) {
	for waited := false; t.len() >= b.options.Limit; waited = true {
		ticket := make(chan struct{})
		t.queueUp(ticket, waited)
		b.unlock(now)
		select {
		case <-ticket:
		case <-ctx.Done():
		}
		now = b.lock()
		if b.closed {
			return now, brokers.ErrClosed
		}
		if ctx.Err() != nil {
			t.leave(ticket)
			return now, fmt.Errorf("not stored: the topic is full with %d messages, settle faster or raise Options.Limit: %w",
				t.len(), context.Cause(ctx))
		}
	}
	return now, nil
}

// queueUp puts a publisher at the end of the line, or back at its head if it
// was let in and somebody else was quicker.
func (t *topic) queueUp(ticket chan struct{}, waited bool) {
	at := len(t.blocked)
	if waited {
		at = 0
	}
	t.blocked = slices.Insert(t.blocked, at, ticket)
}

// leave takes a publisher that gave up out of the line; if it was let in
// already, the next one is.
func (t *topic) leave(ticket chan struct{}) {
	if i := slices.Index(t.blocked, ticket); i >= 0 {
		t.blocked = slices.Delete(t.blocked, i, i+1)
		return
	}
	t.admit()
}

func (b *Broker) fits(m brokers.Message) error {
	size := len(m.Body) + adapter.Size(m.Headers)
	if limit := b.options.MessageLimit; limit > 0 && size > limit {
		return fmt.Errorf("%d bytes, the limit is %d: %w", size, limit, brokers.ErrRefused)
	}
	if limit := b.options.HeaderLimit; limit > 0 {
		_, framework := wire.Partition(m.Headers)
		if size := adapter.Size(framework); size > limit {
			return fmt.Errorf("%d bytes of %s headers, the limit is %d: %w", size, "redrive-", limit, brokers.ErrRefused)
		}
	}
	return nil
}

func (b *Broker) newID() string {
	id := append(make([]byte, 0, 32), b.ids...)
	return string(strconv.AppendUint(id, b.id.Add(1), 36))
}

// newEntry copies m, so that the producer may reuse what it passed.
func newEntry(topic string, m brokers.Message, meta brokers.Meta) *entry {
	m.Topic = topic
	m.Body = bytes.Clone(m.Body)
	m.Headers = slices.Clip(slices.Clone(m.Headers))
	e := &entry{message: m}
	if meta.IdempotencyKey != "" || meta.RedriveCount != 0 || meta.Send != "" {
		first := cloneMeta(meta) // what escapes is only that
		if first.Origin == nil {
			first.Origin = origin(topic)
		}
		e.meta = &first
	}
	return e
}
