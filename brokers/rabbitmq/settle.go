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

// way is how a delivery is settled.
type way int

const (
	acking way = iota
	releasing
	rejecting
	copying
)

// claimed is a settlement that a call of Settle has claimed.
type claimed struct {
	*brokers.Settlement
	*token
	err error
}

// Settle sends acks, releases and rejections first; then it publishes the copies of all
// retries, waits for the broker to confirm them, and acks their originals. Each is
// claimed before, so that it is settled once. After ErrLeaseLost the message comes
// again. After any other error that is not final the delivery is still held, and its
// copy may be there already (ErrUnknownOutcome). An ack of an original that fails is no
// error: the retry is durable, and the original comes as a duplicate.
func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	entries := make([]claimed, len(batch))
	var by [copying + 1][]*claimed
	for i := range batch {
		e := &entries[i]
		e.Settlement = &batch[i]
		if e.err = s.claim(e); e.err == nil {
			w := e.way()
			by[w] = append(by[w], e)
		}
	}
	s.ack(by[acking], false)
	for _, e := range by[releasing] {
		s.done(e, e.giveBack(true))
	}
	for _, e := range by[rejecting] {
		s.done(e, e.reject())
	}
	s.retry(ctx, by[copying])
	failures := adapter.Failures{Broker: "rabbitmq", Entries: len(batch)}
	for i, e := range entries {
		failures.Add(i, e.Action.String(), e.Delivery, e.err)
	}
	return failures.List
}

// way returns how to settle e. A release is done by a copy where that begins to count
// anew, or outlives the deleted queue.
func (e *claimed) way() way {
	switch {
	case e.Action == brokers.Release && (e.renews || e.often() || e.intake.deleted.Load()):
		return copying
	case e.Action == brokers.Ack:
		return acking
	case e.Action == brokers.Retry:
		return copying
	case e.Action == brokers.Reject:
		return rejecting
	}
	return releasing
}

// check says whether d is held and can be settled.
func (s *source) check(d *brokers.Delivery) error {
	if d == nil {
		return adapter.ErrNotHeld
	}
	t, ok := d.Token.(*token)
	if !ok || t.intake.session.source != s {
		return adapter.ErrNotHeld
	}
	switch t.state.Load() {
	case settled, settling:
		return brokers.ErrSettled
	case lost:
		return brokers.ErrLeaseLost
	}
	if s.ctx.Err() != nil {
		return brokers.ErrClosed
	}
	if n := t.intake.session; n.ctx.Err() != nil {
		return n.over()
	}
	if time.Now().After(t.deadline) {
		return brokers.ErrLeaseLost
	}
	return nil
}

// claim takes a delivery for this call, so that no other one settles it.
func (s *source) claim(e *claimed) error {
	if e.Action > brokers.Reject {
		return fmt.Errorf("action %d is none, the delivery is still held", e.Action)
	}
	if err := s.check(e.Delivery); err != nil {
		return err
	}
	e.token = e.Delivery.Token.(*token)
	if e.Action == brokers.Retry && s.readOnly {
		return adapter.ErrReadOnly
	}
	if !e.state.CompareAndSwap(held, settling) {
		return brokers.ErrSettled
	}
	return nil
}

// done ends the claim on e with the outcome err.
func (s *source) done(e *claimed, err error) {
	if e.err = err; err != nil {
		e.state.Store(held)
		return
	}
	e.state.Store(settled)
	e.intake.out.Add(-1)
	e.intake.settled.Add(1)
	if e.count >= suspicious {
		s.woken.Wake() // there is room for another trial
	}
	if e.intake.spills.Load() {
		e.intake.session.kick.Wake() // an ordered channel may close
	}
}

// ack removes originals. Where that fails the message comes again. If it is copied, that
// is a duplicate, and no reason to settle once more; until then there are two of it, so
// the ack is urgent.
func (s *source) ack(entries []*claimed, copied bool) {
	byIntake := make(map[*intake][]*claimed, 1)
	for _, e := range entries {
		byIntake[e.intake] = append(byIntake[e.intake], e)
	}
	for in, entries := range byIntake {
		err := in.ack(entries, copied)
		if copied {
			err = nil
		}
		for _, e := range entries {
			s.done(e, err)
		}
	}
}

// reject has the broker dead-letter the message, where it is known to do so at
// least once: otherwise it would drop it.
func (e *claimed) reject() error {
	if !e.intake.kept.Load() {
		return fmt.Errorf("the queue %q has no dead-lettering that redrive has declared or compared, and would drop the message: %w",
			e.intake.queue, brokers.ErrRefused)
	}
	return e.giveBack(false)
}

// retry publishes the copies and acks the originals of those that are
// confirmed.
func (s *source) retry(ctx context.Context, entries []*claimed) {
	if len(entries) == 0 {
		return
	}
	var out []outgoing
	var sent, confirmed []*claimed
	held := entries[0].intake.session.retries()
	for _, e := range entries {
		o, err := s.copyOf(*e.Settlement, holdable(held, s.prefetch))
		if err != nil {
			s.done(e, err)
			continue
		}
		if o.exchange == s.broker.names.copies() {
			held++
		}
		out, sent = append(out, o), append(sent, e)
	}
	for i, err := range s.broker.publisher.publish(ctx, out) {
		e := sent[i]
		if err != nil {
			s.done(e, fmt.Errorf("the original stays: %w", err))
			continue
		}
		confirmed = append(confirmed, e)
	}
	s.ack(confirmed, true)
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
