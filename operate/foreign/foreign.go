// Package foreign reads the dead letters of other systems, and of brokers that
// gave a message up by themselves, so that they can be browsed, grouped and sent
// back like those of redrive.
//
// Guarantees:
//
//   - [Decode] never fails. What no table knows is [Raw], with all its headers.
//   - The message is the producer's: key, body and headers, without those that the
//     other system added when the message died. Sent back with them, it would
//     count as failed already.
//   - Nothing is invented. What a dead letter does not say stays empty.
//   - Every text of the metadata is valid UTF-8, bounded and free of control
//     characters, and text and stack of an error are redacted, whoever wrote
//     them; so [dlq.Entry.Encode] writes what [dlq.Decode] reads.
//
// Not promised: that a dead letter is genuine. Whoever may write to the topic may
// write any header, so the topic of origin is a hint that a redrive checks.
package foreign

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/text"
)

// Format says who wrote a dead letter. It is a word, and stays the same.
type Format string

// The formats. Those of other systems have a table of headers and fields in
// docs/how-to/read-other-systems-dead-letters.md.
const (
	Redrive     Format = "redrive"      // a consumer of redrive
	SpringKafka Format = "spring-kafka" // Spring for Apache Kafka, and the Kafka binder of Spring Cloud Stream
	Watermill   Format = "watermill"    // the poison queue of Watermill
	MassTransit Format = "masstransit"  // a queue _error or _skipped of MassTransit
	RabbitMQ    Format = "rabbitmq"     // RabbitMQ itself, by a dead-letter exchange
	SQS         Format = "sqs"          // SQS itself, by a redrive policy
	Raw         Format = "raw"          // anybody else: what happened is not known
)

// Bounds of what a dead letter can carry.
const (
	maxOrigin = 16     // details of an origin
	maxCount  = 10_000 // attempts and other counters
	maxName   = 512    // bytes of a key or topic
	maxShort  = 256    // bytes of a group, a worker or a detail
)

// Decode reads what an adapter delivered from a dead-letter topic, and says who
// wrote it. If there are headers of several systems, the one that comes first in
// the list of formats counts: an application says more of a fault than a broker.
//
// The ID is the one under which the adapter delivered the dead letter. The topic
// is where the message died, as the letter says, and empty where it does not. Of
// Meta, idempotency key, redrive count, send and origin are what the adapter
// found, and the rest what the letter says. A fingerprint is there if anything is
// known of the error.
//
// PublishedAt is what the adapter says, unless the letter knows better: where a
// client wrote the letter, that may be when it did so.
func Decode(d *brokers.Delivery) (dlq.Entry, Format) {
	if entry, err := dlq.Decode(d.Message); err == nil {
		return entry, Redrive
	}
	l := letter{Entry: dlq.Entry{Message: d.Message, Meta: carried(d.Meta())}, written: d.Message.PublishedAt}
	l.Message.Topic = ""
	for _, p := range peers {
		if notes := p.notes(d); slices.ContainsFunc(notes, p.marks) {
			l.read(p, notes)
			return l.Entry, p.format
		}
	}
	return l.Entry, Raw
}

// carried is what of the metadata belongs to the message, rather than to its
// time in the dead-letter topic.
func carried(m brokers.Meta) brokers.Meta {
	c := brokers.Meta{
		IdempotencyKey: exact(m.IdempotencyKey, maxName),
		RedriveCount:   min(max(m.RedriveCount, 0), maxCount),
		Send:           word(m.Send),
	}
	for _, detail := range m.Origin {
		c.Origin = withDetail(c.Origin, detail)
	}
	return c
}

// withDetail adds a detail to an origin, made safe, if there is room.
func withDetail(origin brokers.Headers, detail brokers.Header) brokers.Headers {
	detail.Value = text.Line(detail.Value, maxShort)
	detail.Type = word(detail.Type)
	if len(origin) == maxOrigin || !text.IsWord(detail.Name) || detail.Value == "" {
		return origin
	}
	return append(origin, detail)
}

// exact returns s, or nothing where it would have to be made safe, and so become
// another name.
func exact(s string, max int) string {
	if !text.IsLine(s, max) {
		return ""
	}
	return s
}

func word(s string) string {
	if !text.IsWord(s) {
		return ""
	}
	return s
}

// letter is an entry in the making.
type letter struct {
	dlq.Entry
	written                     time.Time // as the adapter says
	errorType, errorText, stack string
}

// read fills in what a peer notes, and takes its headers out of the message.
func (l *letter) read(p peer, notes brokers.Headers) {
	for _, r := range p.rows {
		if value := r.value(notes); value != "" {
			l.set(r.field, value)
		}
	}
	l.DescribeError(l.errorType, "", l.errorText, l.stack, nil)
	if p.ofBroker {
		return
	}
	var kept brokers.Headers
	for _, h := range l.Message.Headers {
		if !p.knows(h.Name) {
			kept = append(kept, h)
		}
	}
	l.Message.Headers = kept
}

// set sets one field to what a form made of a value.
func (l *letter) set(f field, value string) {
	switch f {
	case ignored:
	case topic:
		l.Message.Topic = exact(value, maxName)
	case publishedAt:
		l.published(value)
	case reason:
		l.Reason = word(value)
	case errorType:
		l.errorType = value
	case errorText:
		l.errorText = value
	case stack:
		l.stack = value
	case group:
		l.Group = exact(value, maxShort)
	case deadAt:
		l.DeadAt = timeOf(value)
	case deadBy:
		l.DeadBy = text.Line(value, maxShort)
	case attempt:
		n, _ := number(value)
		l.Meta.Attempt = int(min(n, maxCount))
	case firstFailedAt:
		l.Meta.FirstFailedAt = timeOf(value)
	default:
		l.Meta.Origin = withDetail(l.Meta.Origin, brokers.Header{Name: f.detail(), Value: value})
	}
}

// published takes the time of the original. If the letter was written after it,
// that was when the message died.
func (l *letter) published(value string) {
	original := timeOf(value)
	if original.IsZero() {
		return
	}
	l.Message.PublishedAt = original
	if l.written.After(original) {
		l.DeadAt = l.written
	}
}
