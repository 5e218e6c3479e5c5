package kafka

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// token is what a delivery carries for its source.
type token struct {
	state  atomic.Int32
	reader *reader
	record *record // nil when it is settled; belongs to the call of Settle
	offset int64
}

// Origin is that of the message on its first delivery.
func (t *token) Origin() brokers.Headers { return originOf(t.reader.partition, t.offset) }

// How far the settlement of a delivery is. Nothing leaves settled again.
const (
	held int32 = iota
	settling
	settled
)

// Settle ends deliveries in this order:
//
//  1. Each is claimed, so that it is settled once. One that is settled, lost or closed
//     has a final error, and nothing is done with it.
//  2. Ack and Reject mark their records as done. A commit takes that to the broker up
//     to 200 ms later.
//  3. Release hands its record out again.
//  4. Retry stores its copy. When that is confirmed, the original is done.
//
// After ErrLeaseLost the message comes again, after a Retry beside its copy. After
// any other error that is not final the delivery is still held, and nothing is done.
// The copy of a Retry may then be stored (ErrUnknownOutcome), and costs a duplicate.
func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	failures := adapter.Failures{Broker: "kafka", Entries: len(batch)}
	fail := func(i int, err error) { failures.Add(i, batch[i].Action.String(), batch[i].Delivery, err) }
	var retries []int
	acked := make([]*token, 0, len(batch))
	for i := range batch {
		st := &batch[i]
		t, err := s.claim(st)
		switch {
		case err != nil:
			fail(i, err)
		case st.Action == brokers.Retry && s.plan.readOnly:
			t.state.Store(held)
			fail(i, adapter.ErrReadOnly)
		case st.Action == brokers.Retry && st.Delivery.Unreadable != nil: // the copy would be a message that is run
			t.state.Store(held)
			fail(i, fmt.Errorf("%w: what is not read cannot be copied, the original stays: %w", brokers.ErrRefused, st.Delivery.Unreadable))
		case st.Action == brokers.Retry:
			retries = append(retries, i)
		case st.Action == brokers.Release:
			t.release()
		default:
			acked = append(acked, t)
		}
	}
	if lost := finish(acked); lost != nil {
		for i := range batch {
			if t, ok := batch[i].Delivery.Token.(*token); ok && lost[t] {
				fail(i, brokers.ErrLeaseLost)
			}
		}
	}
	for i, err := range s.retry(ctx, batch, retries) {
		fail(i, err)
	}
	return failures.List
}

// check says whether d is held and can be settled.
func (s *source) check(d *brokers.Delivery) (*token, error) {
	if d == nil {
		return nil, adapter.ErrNotHeld
	}
	t, ok := d.Token.(*token)
	if !ok || t.reader.source != s {
		return nil, adapter.ErrNotHeld
	}
	switch {
	case t.state.Load() != held:
		return nil, brokers.ErrSettled
	case s.closed.Load():
		return nil, brokers.ErrClosed
	case t.reader.ctx.Err() != nil:
		return nil, brokers.ErrLeaseLost
	}
	return t, nil
}

// claim takes a delivery for this call, so that no other one settles it.
func (s *source) claim(st *brokers.Settlement) (*token, error) {
	if st.Action > brokers.Reject {
		return nil, fmt.Errorf("action %d is none, the delivery is still held", st.Action)
	}
	t, err := s.check(st.Delivery)
	if err == nil && !t.state.CompareAndSwap(held, settling) {
		err = brokers.ErrSettled
	}
	return t, err
}

func (t *token) done() { finish([]*token{t}) }

// finish marks deliveries as done, those of one reader that follow each other
// together. It returns those whose partition was given up meanwhile: they come again.
func finish(tokens []*token) (lost map[*token]bool) {
	for len(tokens) > 0 {
		r, n := tokens[0].reader, 1
		for n < len(tokens) && tokens[n].reader == r {
			n++
		}
		isDone := r.done(tokens[:n])
		for _, t := range tokens[:n] {
			t.state.Store(settled)
			if r.delayed == nil { // where records are kept by offset, too
				t.record.free()
			}
			t.record = nil
			if !isDone {
				if lost == nil {
					lost = make(map[*token]bool)
				}
				lost[t] = true
			}
		}
		r.ended(n)
		tokens = tokens[n:]
	}
	return lost
}

func (t *token) release() {
	t.state.Store(settled)
	t.reader.release(t.record)
	t.record = nil
	t.reader.ended(1)
}

// retry stores the copies of the given entries of batch, and returns the errors
// of those that failed.
func (s *source) retry(ctx context.Context, batch []brokers.Settlement, entries []int) map[int]error {
	if len(entries) == 0 {
		return nil
	}
	out := make([]outgoing, len(entries))
	for at, i := range entries {
		out[at] = s.copyOf(batch[i])
	}
	errs := s.broker.producer.produce(ctx, out)
	failed := make(map[int]error)
	copied := make([]*token, 0, len(entries))
	for at, i := range entries {
		t := batch[i].Delivery.Token.(*token)
		if errs != nil && errs[at] != nil {
			t.state.Store(held)
			failed[i] = fmt.Errorf("the original stays: %w", errs[at])
			continue
		}
		copied = append(copied, t)
	}
	lost := finish(copied)
	for _, i := range entries {
		if lost[batch[i].Delivery.Token.(*token)] {
			failed[i] = fmt.Errorf("%w: the copy is stored, and the original comes again, as its partition was given up meanwhile", brokers.ErrLeaseLost)
		}
	}
	return failed
}

// copyOf is the record that replaces the delivery of a retry.
func (s *source) copyOf(st brokers.Settlement) outgoing {
	meta := st.Meta
	if meta.DueAt.IsZero() {
		meta.DueAt = time.Now().Add(max(0, st.Delay))
	}
	return outgoing{topic: s.plan.pick(st.Delay), partition: byKey, record: copyOf(s.broker.seal, st.Delivery.Message, meta)}
}
