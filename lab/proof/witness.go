package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/dlq"
)

// witness is a broker that writes down what one worker asks of it and what it
// answers. Worker 0 is the producer.
type witness struct {
	brokers.Broker
	ledger   *ledger
	scenario *scenario
	worker   int
	trap     *trap
	source   *watched    // once it is open
	copied   atomic.Bool // the worker knows of a copy or a dead letter, and has acked nothing since
}

func newWitness(b brokers.Broker, l *ledger, s *scenario, worker int) *witness {
	return &witness{Broker: b, ledger: l, scenario: s, worker: worker}
}

func (w *witness) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := w.Broker.Open(ctx, sub)
	if err != nil {
		return nil, err
	}
	w.source = &watched{Source: source, witness: w, deliveries: map[*brokers.Delivery]*held{}, bodies: map[*byte]*held{}, sessions: map[context.Context]bool{}}
	return w.source, nil
}

func (w *witness) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	before, yes, no := sent, confirmed, unsent
	if w.worker != 0 {
		before, yes, no = burying, buried, buried
	}
	w.ledger.addAll(len(msgs), func(i int) event {
		e := event{Kind: before, Worker: w.worker, Topic: topic, ID: msgs[i].ID}
		if before == burying {
			w.readLetter(&e, msgs[i])
		}
		return e
	})
	err := w.Broker.Publish(ctx, topic, msgs...)
	if err == nil && before == burying {
		w.trap.reach(inBurial)
		w.copied.Store(true)
	}
	partial, _ := errors.AsType[*brokers.PublishError](err)
	w.ledger.addAll(len(msgs), func(i int) event {
		e := event{Kind: yes, Worker: w.worker, Topic: topic, ID: msgs[i].ID}
		reason := err
		if partial != nil {
			reason = partial.Failed[i]
		}
		if reason != nil {
			e.Kind, e.Err, e.Note = no, failOf(reason), reason.Error()
		}
		return e
	})
	return err
}

// readLetter notes the reason and the meta of a dead letter.
func (w *witness) readLetter(e *event, m brokers.Message) {
	entry, err := dlq.Decode(m)
	if err != nil {
		e.Note = err.Error()
		return
	}
	e.Note = entry.Reason
	e.Abandoned = entry.Abandoned
	e.meta(w.ledger, entry.Meta)
}

// held is a delivery as the ledger knows it.
type held struct {
	number    int
	id, topic string
}

func (h *held) event(k kind, worker int) event {
	return event{Kind: k, Worker: worker, Delivery: h.number, ID: h.id, Topic: h.topic}
}

// fill adds what became of a call.
func (e *event) fill(errs []error, i int) {
	if errs != nil && errs[i] != nil {
		e.Err, e.Note = failOf(errs[i]), errs[i].Error()
	}
}

// watched is a source that writes down what happens to its deliveries.
type watched struct {
	brokers.Source
	witness *witness

	mu         sync.Mutex
	deliveries map[*brokers.Delivery]*held
	bodies     map[*byte]*held
	sessions   map[context.Context]bool
}

// Receive gives every delivery a body of its own, by whose address handlers
// are told apart that work on the same message.
func (s *watched) Receive(ctx context.Context, limit int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.witness.ledger
	for _, d := range ds {
		h := &held{number: l.newDelivery(), id: d.Message.ID, topic: d.Message.Topic}
		e := h.event(received, s.witness.worker)
		e.Abandoned, e.Until, e.Note = d.Abandoned, l.since(d.LeaseUntil), s.witness.scenario.differs(d.Message)
		e.meta(l, d.Meta())
		s.watch(d.Session)
		d.Message.Body = append(make([]byte, 0, len(d.Message.Body)+1), d.Message.Body...)
		s.deliveries[d], s.bodies[address(d.Message.Body)] = h, h
		l.add(e)
	}
	if len(ds) > 0 {
		s.witness.trap.reach(afterReceive)
	}
	return ds, err
}

// watch notes the end of a session, in which others may get what this worker
// holds.
func (s *watched) watch(session context.Context) {
	if s.witness.scenario.broker == "kafka" && !s.sessions[session] {
		s.sessions[session] = true
		context.AfterFunc(session, func() { s.witness.ledger.add(event{Kind: ousted, Worker: s.witness.worker}) })
	}
}

func address(body []byte) *byte {
	if cap(body) == 0 {
		return nil
	}
	return &body[:1][0]
}

// holding returns the delivery that a handler works on. A pipeline that hands
// over another body than it received is found out by it.
func (s *watched) holding(m *brokers.Message) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.bodies[address(m.Body)]; h != nil {
		return h
	}
	return &held{id: m.ID, topic: m.Topic}
}

func (s *watched) held(d *brokers.Delivery) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.deliveries[d]; h != nil {
		return h
	}
	return &held{}
}

func (s *watched) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	l, w := s.witness.ledger, s.witness
	hs := make([]*held, len(batch)) // not under the lock of the ledger, which Receive takes after that of s
	for i, st := range batch {
		hs[i] = s.held(st.Delivery)
	}
	l.addAll(len(batch), func(i int) event {
		e := hs[i].event(settling, w.worker)
		if e.Action = batch[i].Action; e.Action == brokers.Retry {
			e.Delay = batch[i].Delay
			e.meta(l, batch[i].Meta)
		}
		return e
	})
	has := func(a brokers.Action) bool {
		return slices.ContainsFunc(batch, func(st brokers.Settlement) bool { return st.Action == a })
	}
	if has(brokers.Ack) && w.copied.Swap(false) {
		w.trap.reach(beforeAck)
	}
	errs := s.Source.Settle(ctx, batch)
	if errs == nil && has(brokers.Retry) {
		w.trap.reach(beforeConfirm)
		w.copied.Store(true)
	}
	l.addAll(len(batch), func(i int) event {
		e := hs[i].event(settled, w.worker)
		e.Action = batch[i].Action
		e.fill(errs, i)
		return e
	})
	return errs
}

func (s *watched) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	l := s.witness.ledger
	hs := make([]*held, len(ds))
	for i, d := range ds {
		hs[i] = s.held(d)
	}
	asked := l.now()
	errs := s.Source.Extend(ctx, lease, ds)
	l.addAll(len(ds), func(i int) event {
		e := hs[i].event(extended, s.witness.worker)
		e.Until, e.Delay = asked+lease, lease
		e.fill(errs, i)
		return e
	})
	return errs
}

func (s *watched) Close(ctx context.Context) error {
	s.witness.trap.reach(inDrain)
	s.witness.ledger.add(event{Kind: closing, Worker: s.witness.worker})
	return s.Source.Close(ctx)
}

// differs says in what m is not the message that was sent, "" if it is.
func (s *scenario) differs(m brokers.Message) string {
	want := s.message(m.ID)
	if want == nil {
		return "sender: nobody sent it"
	}
	sent := want.Message
	if s.served { // where Publish takes out what only workers may say
		sent.Headers = own(sent.Headers)
	}
	return differs(m, sent, s.topics[want.topic].name)
}

// differs says in what got is not want, "" if it is the same.
func differs(got, want brokers.Message, topic string) string {
	switch {
	case got.Topic != topic:
		return "topic " + got.Topic
	case string(got.Body) != string(want.Body):
		return "body"
	case got.Key != want.Key:
		return "key " + got.Key
	case !slices.Equal(got.Headers, want.Headers):
		return fmt.Sprintf("headers %q instead of %q", got.Headers, want.Headers)
	}
	return ""
}

// own leaves out the headers that belong to the framework: a dead letter has
// room for one story.
func own(h brokers.Headers) brokers.Headers {
	user, _ := wire.Partition(h)
	return user
}
