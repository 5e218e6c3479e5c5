package memory

import (
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
