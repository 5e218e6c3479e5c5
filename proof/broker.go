package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
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
	source   *watched // once it is open
}

func newWitness(b brokers.Broker, l *ledger, s *scenario, worker int) *witness {
	return &witness{Broker: b, ledger: l, scenario: s, worker: worker}
}

func (w *witness) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := w.Broker.Open(ctx, sub)
	if err != nil {
		return nil, err
	}
	w.source = &watched{Source: source, witness: w, deliveries: map[*brokers.Delivery]*held{}, bodies: map[*byte]*held{}}
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
	number  int
	id      string
	topic   string
	message *brokers.Message
	settled func() (stopped bool) // unless nil, its session need not be watched any more
}

// watched is a source that writes down what happens to its deliveries.
type watched struct {
	brokers.Source
	witness *witness

	mu         sync.Mutex
	deliveries map[*brokers.Delivery]*held
	bodies     map[*byte]*held
}

// Receive gives every delivery a body of its own, by whose address handlers
// are told apart that work on the same message.
func (s *watched) Receive(ctx context.Context, limit int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.witness.ledger
	for _, d := range ds {
		h := &held{number: l.newDelivery(), id: d.Message.ID, topic: d.Message.Topic, message: &d.Message}
		e := event{Kind: received, Worker: s.witness.worker, Delivery: h.number, ID: h.id, Topic: h.topic,
			Abandoned: d.Abandoned, Until: l.since(d.LeaseUntil), Note: s.witness.scenario.differs(d.Message)}
		e.meta(l, d.Meta)
		if s.witness.scenario.broker == "kafka" {
			e.Partition, e.Offset = origin(d.Message, d.Meta)
			h.settled = context.AfterFunc(d.Session, func() {
				l.add(event{Kind: ousted, Worker: s.witness.worker, Delivery: h.number, ID: h.id, Topic: h.topic})
			})
		}
		d.Message.Body = append(make([]byte, 0, len(d.Message.Body)+1), d.Message.Body...)
		s.deliveries[d], s.bodies[address(d.Message.Body)] = h, h
		l.add(e)
	}
	if len(ds) > 0 {
		s.witness.trap.reach(afterReceive)
	}
	return ds, err
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
	l, worker := s.witness.ledger, s.witness.worker
	hs := make([]*held, len(batch))
	for i, st := range batch {
		hs[i] = s.held(st.Delivery)
	}
	l.addAll(len(batch), func(i int) event {
		e := event{Kind: settling, Worker: worker, Delivery: hs[i].number, ID: hs[i].id, Topic: hs[i].topic, Action: batch[i].Action}
		if batch[i].Action == brokers.Retry {
			e.Delay = batch[i].Delay
			e.meta(l, batch[i].Meta)
		}
		return e
	})
	errs := s.Source.Settle(ctx, batch)
	l.addAll(len(batch), func(i int) event {
		e := event{Kind: settled, Worker: worker, Delivery: hs[i].number, ID: hs[i].id, Topic: hs[i].topic, Action: batch[i].Action}
		if errs != nil && errs[i] != nil {
			e.Err, e.Note = failOf(errs[i]), errs[i].Error()
		} else if hs[i].settled != nil {
			hs[i].settled()
		}
		return e
	})
	return errs
}

func (s *watched) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	l := s.witness.ledger
	hs := make([]*held, len(ds)) // not under the lock of the ledger, which Receive takes after that of s
	for i, d := range ds {
		hs[i] = s.held(d)
	}
	asked := l.now()
	errs := s.Source.Extend(ctx, lease, ds)
	l.addAll(len(ds), func(i int) event {
		h := hs[i]
		e := event{Kind: extended, Worker: s.witness.worker, Delivery: h.number, ID: h.id, Topic: h.topic,
			Until: asked + lease, Delay: lease}
		if errs != nil && errs[i] != nil {
			e.Err, e.Note = failOf(errs[i]), errs[i].Error()
		}
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

func equalHeaders(a, b brokers.Headers) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
