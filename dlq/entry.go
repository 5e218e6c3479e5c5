package dlq

import (
	"errors"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// ErrNotDeadLetter reports a message without the metadata of a dead letter, for
// example because the broker itself moved it to the dead-letter topic.
var ErrNotDeadLetter = errors.New("dlq: the message is not a dead letter of redrive: it lacks the header " + wire.DeadVersion)

// defaultLimit is the room for framework headers where the broker names none.
const defaultLimit = 16 << 10

// version of the spelling. Readers take what they know of a later one.
const version = 1

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
	//	exhausted      the last attempt failed
	//	expired        the next attempt would not be over before MaxAge
	//	poison         no attempt can succeed
	//	undecodable    the body is not what the handler expects
	//	validation     a service refused the content
	//	panic          the handler panicked once more
	//	timeout        the handler ran into its timeout once more
	//	unclassified   no rule knows the error, and it did not go away
	//	ambiguous      the effect of the failed call is unknown, and must not happen twice
	//	crash-loop     the message seems to kill its worker
	//	oversize       the message is over the limit of the worker
	//	refused        the broker will not take its retry: too large, or characters it does not allow
	//	unroutable     no handler takes its topic
	//	redrive-limit  it came back from the dead-letter topic too often
	//	operator       somebody decided so
	//
	// The list is open: a classification rule may bring words of its own.
	Reason string

	// The last error: its most telling Go type, its short code if it has one,
	// its text (at most 2 KiB, redacted), and, only if asked for, the stack of
	// a panic (at most 4 KiB). Fingerprint groups equal faults. SetError fills
	// them.
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
	// error-stack, history, error-message, origin, rule, and others whose
	// value was too long.
	Truncated []string
}

// shedding is the order in which parts go when there is no room for all.
var shedding = []wire.Step{
	{Name: wire.ErrorStack, Cut: true},
	{Name: wire.DeadHistory},
	{Name: wire.ErrorMessage, Cut: true},
	{Name: wire.DeadOrigin},
	{Name: wire.DeadRule},
}

// Encode returns the dead letter to publish. The framework's headers, counted
// as the bytes of their names and values, take at most limit bytes; 0 means
// 16 KiB. If they would take more, these go, in this order: the stack, the
// history, the error text, the details of the origin, the rule. Stack and text
// are cut to the room that is left where that is worth it. The rest stays even
// if limit is smaller: it takes less than 1 KiB as a rule, and 4 KiB at most.
//
// Times are rounded down to the millisecond, due times and delays up. The
// dead letter's own PublishedAt is left for Publish to set.
func (e Entry) Encode(limit int) brokers.Message {
	if limit <= 0 {
		limit = defaultLimit
	}
	var w wire.Writer
	w.Headers = make(brokers.Headers, 0, 32)
	w.Int(wire.DeadVersion, version)
	w.Text(wire.DeadReason, e.Reason, wire.MaxWord)
	w.Text(wire.DeadTopic, e.Message.Topic, wire.MaxName)
	w.Text(wire.DeadGroup, e.Group, wire.MaxShort)
	w.Time(wire.DeadAt, e.DeadAt)
	w.Text(wire.DeadBy, e.DeadBy, wire.MaxShort)
	w.Int(wire.DeadAbandoned, e.Abandoned)
	w.Time(wire.DeadPublishedAt, e.Message.PublishedAt)
	w.Meta(wire.DeadPrefix, e.Meta)
	w.Text(wire.ErrorType, e.ErrorType, wire.MaxShort)
	w.Text(wire.ErrorCode, e.ErrorCode, wire.MaxShort)
	w.Text(wire.ErrorFingerprint, e.Fingerprint, wire.MaxWord)
	w.Text(wire.DeadRule, e.Rule, wire.MaxShort)
	w.Text(wire.ErrorMessage, e.ErrorText, wire.MaxError)
	w.Lines(wire.ErrorStack, e.Stack, wire.MaxStack)
	metadata := wire.Fit(w.Headers, limit, wire.DeadTruncated, slices.Concat(e.Truncated, w.Cut), shedding...)

	m := e.Message
	m.Topic, m.PublishedAt = "", time.Time{}
	user, _ := wire.Partition(m.Headers)
	m.Headers = slices.Concat(user, metadata)
	return m
}

// Decode reads a dead letter as it was received. If m is none, the error is
// [ErrNotDeadLetter] and the entry holds nothing but m; that is the only error.
// Parts that cannot be read are left empty.
func Decode(m brokers.Message) (Entry, error) {
	user, metadata := wire.Partition(m.Headers)
	r := wire.NewReader(metadata)
	if r.Int(wire.DeadVersion) == 0 {
		return Entry{Message: m}, ErrNotDeadLetter
	}
	m.Headers = user
	m.Topic = r.Text(wire.DeadTopic, wire.MaxName)
	m.PublishedAt = r.Time(wire.DeadPublishedAt)
	return Entry{
		Message:     m,
		Meta:        r.Meta(wire.DeadPrefix),
		Reason:      r.Text(wire.DeadReason, wire.MaxWord),
		ErrorType:   r.Text(wire.ErrorType, wire.MaxShort),
		ErrorCode:   r.Text(wire.ErrorCode, wire.MaxShort),
		ErrorText:   r.Text(wire.ErrorMessage, wire.MaxError),
		Stack:       r.Lines(wire.ErrorStack, wire.MaxStack),
		Fingerprint: r.Text(wire.ErrorFingerprint, wire.MaxWord),
		Rule:        r.Text(wire.DeadRule, wire.MaxShort),
		Group:       r.Text(wire.DeadGroup, wire.MaxShort),
		DeadAt:      r.Time(wire.DeadAt),
		DeadBy:      r.Text(wire.DeadBy, wire.MaxShort),
		Abandoned:   r.Int(wire.DeadAbandoned),
		Truncated:   wire.Names(r.Text(wire.DeadTruncated, wire.MaxError)),
	}, nil
}
