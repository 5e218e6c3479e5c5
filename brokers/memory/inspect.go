package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// Stats count the messages of a topic.
type Stats struct {
	Ready    int // available, or behind others of their key
	Delayed  int // waiting for their retry
	InFlight int // held by a worker, alive or crashed
}

// Record is one stored message, for inspection.
type Record struct {
	Message   brokers.Message
	Meta      brokers.Meta // as the next delivery will have it
	Abandoned int

	// DueAt is when a delayed message becomes ready, otherwise zero.
	DueAt time.Time

	// LeaseUntil is when the lease of a message in flight runs out, otherwise
	// zero.
	LeaseUntil time.Time
}

// Len returns how many messages topic holds, in whatever state.
func (b *Broker) Len(topic string) int {
	s := b.Stats(topic)
	return s.Ready + s.Delayed + s.InFlight
}

// Stats counts the messages of topic; it takes the same time for any number.
func (b *Broker) Stats(topic string) Stats {
	now := b.lock()
	defer b.unlock(now)
	t := b.topics[topic]
	if t == nil {
		return Stats{}
	}
	return Stats{Ready: t.count[ready], Delayed: t.count[delayed], InFlight: t.count[inFlight]}
}

// Backlogs implements brokers.Source. It asks no broker, and waits for a Fault.
func (s *source) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	faults, err := s.broker.faults(ctx, 1, func(int) Op { return Op{Operation: Count} })
	if err != nil {
		return nil, err
	}
	if f := faultAt(faults, 0); f.Err != nil {
		return nil, fmt.Errorf("memory: count: %w", f.Err)
	}
	now := s.broker.lock()
	defer s.broker.unlock(now)
	if s.closed {
		return nil, brokers.ErrClosed
	}
	var all []brokers.Backlog
	dead := make(map[string]*topic)
	for _, sub := range s.subs {
		all = append(all, sub.topic.backlog())
		if d := sub.deadLetter; d != nil {
			dead[d.name] = d
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dead)) {
		b := dead[name].backlog()
		b.DeadLetters = true
		all = append(all, b)
	}
	return all, nil
}

// backlog is what t has. The lock of the broker is held.
func (t *topic) backlog() brokers.Backlog {
	b := brokers.Backlog{
		Topic: t.name, Ready: new(int64(t.count[ready])), Taken: new(int64(t.count[inFlight])), Delayed: new(int64(t.count[delayed])),
	}
	if t.first != nil {
		b.Oldest = t.first.message.PublishedAt
	}
	return b
}

// Messages returns all messages of topic in the order of their publication:
// ready, delayed and in flight.
func (b *Broker) Messages(topic string) []brokers.Message {
	records := b.Records(topic)
	messages := make([]brokers.Message, len(records))
	for i, r := range records {
		messages[i] = r.Message
	}
	return messages
}

// Records returns what the broker knows about the messages of topic, in the
// order of their publication.
func (b *Broker) Records(topic string) []Record {
	now := b.lock()
	defer b.unlock(now)
	t := b.topics[topic]
	if t == nil {
		return nil
	}
	records := make([]Record, 0, t.len())
	for e := t.first; e != nil; e = e.next {
		r := Record{Message: e.message, Meta: *e.carried(), Abandoned: int(e.abandoned)}
		switch e.state {
		case delayed:
			r.DueAt = b.start.Add(b.delays[e.pos-1].at)
		case inFlight:
			r.LeaseUntil = b.start.Add(e.holds.until)
		}
		records = append(records, r)
	}
	return records
}
