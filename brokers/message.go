package brokers

import (
	"fmt"
	"slices"
	"time"
)

// Message is what a producer published, untouched by the framework.
type Message struct {
	// ID identifies the message over all of its hops: retries, dead letter,
	// redrive. Publish sets it when it is empty.
	ID string

	// Topic names the queue or topic: on a delivery the one it was received
	// from, or would have been had it not been retried. Publish ignores it.
	Topic string

	// Key groups messages that belong together: Kafka key, SQS message group,
	// RabbitMQ routing hint. Empty means no key.
	Key string

	// Body is the payload. It is shared, not copied: do not write to it.
	Body []byte

	// Headers are the producer's own, in the order of the broker.
	Headers Headers

	// PublishedAt is when the broker, or failing that the producer, first saw
	// the message. Zero when unknown. Publish sets it when it is zero. Copies
	// carry it with them; it is never the broker's own timestamp of a copy,
	// which would let retention delete the copy early.
	PublishedAt time.Time
}

// deadlineHeader is the header of a deadline.
const deadlineHeader = "redrive-deadline"

// SetDeadline sets the time until which workers may run the message, in the header
// redrive-deadline. After it the message is a dead letter: see
// consumer.TopicConfig.Deadline. The headers that m had are not changed.
func (m *Message) SetDeadline(at time.Time) {
	m.Headers = m.Headers.With(deadlineHeader, at.Format(time.RFC3339Nano))
}

// Deadline returns what the producer set with SetDeadline, zero if that is nothing.
// The error says that the header is not a time of RFC 3339.
func (m *Message) Deadline() (time.Time, error) {
	value, given := m.Headers.Lookup(deadlineHeader)
	if !given {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}, fmt.Errorf("header %s: %.40q is not a time of RFC 3339, such as 2006-01-02T15:04:05Z", deadlineHeader, value)
	}
	return at, nil
}

// Header is one name and value of a message.
type Header struct {
	Name string

	// Value holds any bytes; text is UTF-8.
	Value string

	// Type is the broker's own type of the value where it is not text, or says
	// that the value is a property of the broker rather than a header, in the
	// adapter's spelling, so that a copy on the same broker keeps it. Empty
	// means text. Handlers may ignore it.
	Type string
}

// Headers is an ordered list that may repeat a name, as Kafka allows.
// Names are case-sensitive.
type Headers []Header

// Get returns the last value of name, or "".
func (h Headers) Get(name string) string {
	value, _ := h.Lookup(name)
	return value
}

// Lookup returns the last value of name and whether there is one.
func (h Headers) Lookup(name string) (string, bool) {
	for _, header := range slices.Backward(h) {
		if header.Name == name {
			return header.Value, true
		}
	}
	return "", false
}

// With returns a copy of h in which name occurs once, with value. The
// receiver is not changed, so headers may be shared between messages.
func (h Headers) With(name, value string) Headers {
	return append(h.Without(name), Header{Name: name, Value: value})
}

// Without returns a copy of h without any header called name.
func (h Headers) Without(name string) Headers {
	out := make(Headers, 0, len(h)+1)
	for _, header := range h {
		if header.Name != name {
			out = append(out, header)
		}
	}
	return out
}

// Meta is what the framework carries with a message from one delivery to the
// next. Adapters store it next to the message (package brokers/wire has the
// spelling) and hand it back; only the pipeline changes it. An adapter whose
// broker retries in place and cannot store anything (SQS FIFO) gives its best
// estimate, with Attempt as an upper bound.
type Meta struct {
	// Attempt counts the handler runs that count: 0 before the first one.
	Attempt int

	// Throttles counts the retries a throttling dependency got free of charge.
	Throttles int

	// FirstFailedAt and LastFailedAt are when handler runs failed, zero
	// before the first failure.
	FirstFailedAt time.Time
	LastFailedAt  time.Time

	// Excused is the part of the time since FirstFailedAt that does not count for
	// the default MaxAge: the dependency was overloaded or down.
	Excused time.Duration

	// Crashes is above 0 on trial: a worker has sent the message back because of
	// Delivery.Abandoned, and each delivery that is lost from then on had begun to
	// run. It is one more than the lost deliveries of earlier copies on the trial.
	Crashes int

	// DueAt is the time before which the message must not be handled; zero on
	// a message that was never retried. The pipeline sets it with every Retry
	// and, should the delivery arrive before, holds it until then.
	DueAt time.Time

	// Delay is the delay chosen for the last retry.
	Delay time.Duration

	// Class is the class of the last failure, see package classify.
	Class string

	// History holds the last failures, oldest first, at most ten.
	History []Failure

	// IdempotencyKey is made once per message and kept over hops and
	// redrives. Empty means that ID serves as the key.
	IdempotencyKey string

	// RedriveCount says how often the message came back from a dead-letter
	// queue.
	RedriveCount int

	// Send is the token, a word of at most 64 bytes, by which whoever sent the
	// message back last knows this sending again. The worker repeats it in its
	// receipts and in the next dead letter. Empty means that nobody asked.
	Send string

	// Origin says where the broker had the message when it was first
	// received, in the broker's own words: partition and offset, exchange and
	// routing key, message id. The adapter sets it on the first delivery;
	// retries keep it.
	Origin Headers

	// Trace is the W3C traceparent of the last run that failed, if Config.Tracer
	// of package consumer made one. A job that sends the message back may add a
	// comma and the traceparent of its own span. Anybody may have written it: it is
	// for traces alone, and the first to go where headers have no room.
	Trace string

	// Death says why the message is dead, while it waits in its queue for its
	// dead letter. No handler runs it again. Nil if the message is not dead.
	Death *Death
}

// Death is the part of a dead letter that a message carries while it waits for
// this dead letter. Most fields are those of the same name in dlq.Entry. Attempt
// and DueAt save the values of Meta, because the wait changes them in Meta: its
// DueAt is the end of the wait, and its Attempt is at least the limit of the
// topic. So a worker of a version without Death does not run the message either.
type Death struct {
	Reason    string    // one word; if it is empty, the message is not dead
	At        time.Time // when the message died
	By        string    // the worker that found it dead
	Abandoned int

	// Meta.Attempt and Meta.DueAt when the message died.
	Attempt int
	DueAt   time.Time

	// The last error, redacted and bounded as in dlq.Entry.
	ErrorType, ErrorCode, ErrorText, Stack, Fingerprint, Rule string

	// Truncated names the parts that were cut or left out for lack of room.
	Truncated []string
}

// Restart returns the Meta of a message that comes back from a dead-letter queue
// once more: attempts, throttles, failure times, due time, delay, class, crashes and
// death start over. Idempotency key, send token, history, origin and trace stay.
func (m Meta) Restart() Meta {
	return Meta{
		History:        m.History,
		IdempotencyKey: m.IdempotencyKey,
		RedriveCount:   m.RedriveCount + 1,
		Send:           m.Send,
		Origin:         m.Origin,
		Trace:          m.Trace,
	}
}

// Failure is one failed handler run in Meta.History.
type Failure struct {
	Attempt     int           // the run, counted from 1
	At          time.Time     // when it failed
	Class       string        // see package classify
	Fingerprint string        // groups equal faults, see package dlq
	Delay       time.Duration // chosen before the next run
	Ambiguous   bool          // the run may have had its effect
	TimedOut    bool          // the handler ran into its time limit
}
