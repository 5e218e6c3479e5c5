package dlq

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/internal/text"
)

var errNotDeadLetter = errors.New("dlq: the message is not a dead letter of redrive: it lacks the header " + headerVersion)

// defaultLimit is the room for framework headers where the broker names none.
const defaultLimit = 16 << 10

// version of the spelling. Readers take what they know of a later one.
const version = "1"

// Entry is a dead message and what is known of its failure.
type Entry struct {
	// Message as the producer published it. Its Topic is the one where it
	// died, empty if the dead letter does not say.
	Message brokers.Message

	// Meta is what the framework knew when the message died: attempts, first
	// and last failure, history, origin.
	Meta brokers.Meta

	// Reason says why the message is dead, in one word:
	//
	//	exhausted        the last attempt failed
	//	expired          its deadline has passed, or the next attempt would be too late for it or for MaxAge
	//	outage           what its handler depends on was overloaded or down for days
	//	poison           no attempt can succeed
	//	undecodable      the body is not what the handler expects
	//	validation       a service refused the content
	//	panic            the handler panicked once more
	//	timeout          the handler ran into its timeout once more
	//	unclassified     no rule knows the error, and it did not go away
	//	ambiguous        the effect of the failed call is unknown, and must not happen twice
	//	crash-loop       the message seems to kill its worker
	//	oversize         the message is over the limit of the worker
	//	refused          the broker will not take its retry: too large, or characters it does not allow
	//	unreadable       what the broker delivered cannot be read as a message
	//	unroutable       no handler takes its topic
	//	redrive-limit    it came back from the dead-letter topic too often
	//	operator         somebody decided so
	//	skipped-by-hand  a person took it away from its handler, or from its place in a worker
	//
	// The list is open: a classification rule may bring words of its own.
	Reason string

	// The last error: its most telling Go type, its short code if it has one,
	// its text (at most 2 KiB, redacted), and, only if asked for, the stack of
	// a panic (at most 4 KiB). Fingerprint groups equal faults. DescribeError
	// fills them.
	ErrorType, ErrorCode, ErrorText, Stack, Fingerprint string

	// Rule is the classification rule that hit.
	Rule string

	// Group is the consumer group, DeadAt the time of death, and DeadBy the
	// worker that found it.
	Group  string
	DeadAt time.Time
	DeadBy string

	// Abandoned counts deliveries that ended without a settlement, because
	// the worker crashed or its lease ran out.
	Abandoned int

	// Truncated names the parts that were shed or cut for lack of room:
	// traceparent, error-stack, history, error-message, origin, rule, and others whose
	// value was too long.
	Truncated []string

	// Original is set in a stub, which stands for a message that the broker never
	// takes with its metadata. It is to be read, not to be sent back. Its Message
	// has at most 128 bytes of ID and key, the first 512 bytes of the body, and
	// none of the headers. The original is where the broker keeps what it
	// dead-letters itself.
	Original *Original
}

// Encode returns the dead letter to publish. The framework's headers, counted
// as the bytes of their names and values, take at most limit bytes; 0 means
// 16 KiB. If they would take more, these go, in this order: the trace, the
// stack, the history, the error text, the details of the origin, the rule. Stack
// and text are cut to the room that is left where that is worth it. The rest stays
// even if limit is smaller: it takes less than 1 KiB as a rule, and 4 KiB at most.
//
// Times are rounded down to the millisecond, due times and delays up. The
// dead letter's own PublishedAt is left for Publish to set.
func (e Entry) Encode(limit int) brokers.Message {
	if limit <= 0 {
		limit = defaultLimit
	}
	record := make(brokers.Headers, 0, 32)
	put := func(name, value string) {
		if value != "" {
			record = append(record, brokers.Header{Name: name, Value: value})
		}
	}
	truncated := slices.Clone(e.Truncated)
	put(headerVersion, version)
	for _, f := range e.fields() {
		value, cut := f.safe()
		if put(f.header, value); cut {
			truncated = append(truncated, f.name())
		}
	}
	put(headerAt, string(text.AppendTime(nil, e.DeadAt)))
	put(headerAbandoned, string(text.AppendCount(nil, e.Abandoned)))
	put(headerPublishedAt, string(text.AppendTime(nil, e.Message.PublishedAt)))
	e.Original.put(put)
	e.Meta.Death = nil // only a message that waits for its dead letter has one
	for _, h := range wire.Encode(brokers.Message{}, e.Meta) {
		h.Name = deadPrefix + strings.TrimPrefix(h.Name, prefix)
		record = append(record, h)
	}
	if slices.ContainsFunc(e.Meta.Origin, isLong) {
		truncated = append(truncated, "origin")
	}
	put(headerTruncated, strings.Join(truncated, ","))

	m := e.Message
	m.Topic, m.PublishedAt = "", time.Time{}
	user, _ := wire.Partition(m.Headers)
	m.Headers = slices.Concat(user, wire.Fit(record, limit))
	return m
}

func isLong(detail brokers.Header) bool {
	_, cut := text.Line(detail.Value, text.MaxShort)
	return cut
}

// Decode reads a dead letter as it was received. It returns an error only if m has
// no metadata of a dead letter, for example because the broker itself moved it to
// the dead-letter topic. The entry then holds nothing but m. Parts that cannot be
// read are left empty.
func Decode(m brokers.Message) (Entry, error) {
	user, record := wire.Partition(m.Headers)
	if text.Count(record.Get(headerVersion)) == 0 {
		return Entry{Message: m}, errNotDeadLetter
	}
	e := Entry{
		Message:   m,
		Meta:      metaOf(record),
		DeadAt:    text.Time(record.Get(headerAt)),
		Abandoned: text.Count(record.Get(headerAbandoned)),
	}
	e.Original = originalOf(record)
	e.Message.Headers = user
	e.Message.PublishedAt = text.Time(record.Get(headerPublishedAt))
	for _, f := range e.fields() {
		f.read(record.Get(f.header))
	}
	if names := record.Get(headerTruncated); len(names) <= maxError {
		e.Truncated = text.Words(strings.Split(names, ","))
	}
	return e, nil
}

// metaOf reads what is carried from one delivery to the next, and has the same
// words here, after another prefix.
func metaOf(record brokers.Headers) brokers.Meta {
	var carried brokers.Headers
	for _, h := range record {
		if word, ok := strings.CutPrefix(h.Name, deadPrefix); ok {
			h.Name = prefix + word
			carried = append(carried, h)
		}
	}
	unclamped := wire.Limits{Now: time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC), MaxDelay: math.MaxInt64, Trusted: true}
	_, meta := wire.Decode(carried, unclamped)
	return meta
}
