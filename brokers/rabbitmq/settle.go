package rabbitmq

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

// Settle sends acks and releases first; then it publishes the copies of all
// retries, waits for the broker to confirm them, and acks their originals.
func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	errs := make([]error, len(batch))
	b := settlement{source: s, batch: batch, errs: errs}
	b.sort()
	b.ack(b.acks, false)
	b.release()
	b.reject()
	b.retry(ctx)
	failures := adapter.Failures{Broker: "rabbitmq", Entries: len(batch)}
	for i, err := range errs {
		failures.Add(i, batch[i].Action.String(), batch[i].Delivery, err)
	}
	return failures.List
}

// settlement is one call of Settle. Its lists hold indexes of the batch.
type settlement struct {
	source   *source
	batch    []brokers.Settlement
	errs     []error
	acks     []int
	releases []int
	rejects  []int
	copies   []int
}

func (b *settlement) token(i int) *token { return b.batch[i].Delivery.Token.(*token) }

// sort claims what this call may settle.
func (b *settlement) sort() {
	for i, s := range b.batch {
		if s.Action > brokers.Reject {
			b.errs[i] = fmt.Errorf("action %d is none, the delivery is still held", s.Action)
			continue
		}
		if b.errs[i] = b.source.claim(s); b.errs[i] != nil {
			continue
		}
		t := b.token(i)
		switch {
		case s.Action == brokers.Retry && b.source.readOnly:
			b.done(i, adapter.ErrReadOnly)
		case s.Action == brokers.Reject && !t.copied:
			b.rejects = append(b.rejects, i)
		case s.Action == brokers.Retry && !t.copied:
			b.copies = append(b.copies, i)
		case s.Action == brokers.Release && (t.renews || t.often() || t.intake.deleted.Load()):
			b.copies = append(b.copies, i) // its copy begins to count anew, or outlives the deleted queue
		case s.Action == brokers.Release && !t.copied:
			b.releases = append(b.releases, i)
		default:
			b.acks = append(b.acks, i)
		}
	}
}

// check says whether d is held and can be settled.
func (s *source) check(d *brokers.Delivery) error {
	if d == nil {
		return adapter.ErrNotHeld
	}
	t, ok := d.Token.(*token)
	if !ok || t.channel.session.source != s {
		return adapter.ErrNotHeld
	}
	switch t.state.Load() {
	case settled, settling:
		return brokers.ErrSettled
	case lost:
		return brokers.ErrLeaseLost
	}
	if s.isClosed() {
		return brokers.ErrClosed
	}
	if n := t.channel.session; n.ctx.Err() != nil {
		return n.over()
	}
	if time.Now().After(t.deadline) {
		return brokers.ErrLeaseLost
	}
	return nil
}

// claim takes a delivery for this call, so that no other one settles it.
func (s *source) claim(st brokers.Settlement) error {
	d := st.Delivery
	err := s.check(d)
	if err == nil && !d.Token.(*token).state.CompareAndSwap(held, settling) {
		return brokers.ErrSettled
	}
	return err
}

// done ends the claim on entry i with the outcome err.
func (b *settlement) done(i int, err error) {
	t := b.token(i)
	if err == nil {
		t.state.Store(settled)
		t.intake.out.Add(-1)
		t.intake.settled.Add(1)
		if t.count >= suspicious {
			b.source.woken.Wake() // there is room for another trial
		}
		if t.intake.spills.Load() {
			t.channel.session.kick.Wake() // an ordered channel may close
		}
	} else {
		t.state.Store(held)
	}
	b.errs[i] = err
}

// ack removes originals. Where that fails the message comes again; after a
// copy that is a duplicate, and no reason to settle once more. With a copy it is
// urgent: until then there are two of the message.
func (b *settlement) ack(entries []int, urgent bool) {
	byChannel := make(map[*channel][]int, 1)
	for _, i := range entries {
		c := b.token(i).channel
		byChannel[c] = append(byChannel[c], i)
	}
	for c, entries := range byChannel {
		ts := make([]*token, len(entries))
		for at, i := range entries {
			ts[at] = b.token(i)
		}
		err := c.ack(ts, urgent)
		for _, i := range entries {
			if b.token(i).copied {
				b.done(i, nil)
			} else {
				b.done(i, err)
			}
		}
	}
}

func (b *settlement) release() {
	for _, i := range b.releases {
		t := b.token(i)
		b.done(i, t.channel.giveBack(t, true))
	}
}

// reject has the broker dead-letter the messages, where it is known to do so at
// least once: otherwise it would drop them.
func (b *settlement) reject() {
	for _, i := range b.rejects {
		t := b.token(i)
		if !t.intake.kept.Load() {
			b.done(i, fmt.Errorf("the queue %q has no dead-lettering that redrive has declared or compared, and would drop the message: %w",
				t.intake.queue, brokers.ErrRefused))
			continue
		}
		b.done(i, t.channel.giveBack(t, false))
	}
}

// retry publishes the copies and acks the originals of those that are
// confirmed.
func (b *settlement) retry(ctx context.Context) {
	var out []outgoing
	var entries []int
	held := 0
	for _, i := range b.copies {
		if out == nil {
			held = b.token(i).channel.session.retries()
		}
		o, err := b.source.copyOf(b.batch[i], holdable(held, b.source.prefetch))
		if err != nil {
			b.done(i, err)
			continue
		}
		if o.exchange == b.source.broker.names.copies() {
			held++
		}
		out, entries = append(out, o), append(entries, i)
	}
	if len(out) == 0 {
		return
	}
	var confirmed []int
	for at, err := range b.source.broker.publisher.publish(ctx, out) {
		i := entries[at]
		if err != nil {
			b.done(i, fmt.Errorf("the original stays: %w", err))
			continue
		}
		b.token(i).copied = true
		confirmed = append(confirmed, i)
	}
	b.ack(confirmed, true)
}

// copyOf is the message that replaces the delivery of a retry, or of a release
// that is done by a copy. It needs no delay queue if its delay is below hold, unless
// nobody had room to hold it before.
func (s *source) copyOf(st brokers.Settlement, hold time.Duration) (outgoing, error) {
	m, meta, delay := st.Delivery.Message, st.Meta, st.Delay
	if st.Action == brokers.Release {
		meta, delay = st.Delivery.Meta(), 0
	} else if delay > 0 && meta.DueAt.IsZero() {
		meta.DueAt = time.Now().Add(delay)
	}
	p, err := s.broker.copyFor(m, meta)
	if err != nil {
		return outgoing{}, err
	}
	o := outgoing{exchange: s.broker.names.copies(), key: s.broker.names.retry(m.Topic), message: p}
	if max(delay, time.Until(meta.DueAt)) < hold && !meta.DueAt.Equal(st.Delivery.Meta().DueAt) {
		return o, nil
	}
	if wait := s.delays.pick(delay); wait > 0 {
		o.exchange = s.broker.names.delay(wait)
	}
	return o, nil
}

// copyFor is the message of a retry of m, which is signed.
func (b *Broker) copyFor(m brokers.Message, meta brokers.Meta) (amqp.Publishing, error) {
	topic := m.Topic
	m.Topic = "" // the queue of retries says it
	return b.publishing(m, b.seal.Sign(wire.Encode(withoutID(m), meta), topic, propertyID(m), m.Body))
}

// propertyID is the ID as a property of the message, if it fits.
func propertyID(m brokers.Message) string {
	if len(m.ID) > longestName {
		return ""
	}
	return m.ID
}

// withoutID leaves the ID to the property.
func withoutID(m brokers.Message) brokers.Message {
	if propertyID(m) != "" {
		m.ID = ""
	}
	return m
}

// outgoing is a message on its way to an exchange.
type outgoing struct {
	exchange, key string
	message       amqp.Publishing
}
