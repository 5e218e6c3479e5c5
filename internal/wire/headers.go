package wire

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// What reading looks at; framework headers beyond it are dropped unread.
const (
	MaxEntries = 64
	MaxBytes   = 16 << 10 // names and values
)

// Limits bound what incoming headers may claim. Both fields are needed.
type Limits struct {
	// Now: failures and publishing lie before it.
	Now time.Time
	// MaxDelay is the longest delay that a retry may ask for: a due time is
	// at most MaxDelay after Now.
	MaxDelay time.Duration
}

// AppendMeta returns the headers of a copy of msg that carries m: the user's
// own, then the framework's. They include the identity and the topic of msg;
// an adapter clears the fields for which its broker has a better place (ID,
// Key, Topic, PublishedAt) before the call. IDs, keys and topics of more than
// [MaxName] bytes, or with control characters, are left out.
func AppendMeta(msg brokers.Message, m brokers.Meta) brokers.Headers {
	w := metaWriter(msg, m)
	return w.after(msg.Headers)
}

// AppendPacked is [AppendMeta] with all that is the framework's in one header,
// [Packed], for brokers to which many headers cost more than few. [Unpack] has
// them back for [SplitMeta].
func AppendPacked(msg brokers.Message, m brokers.Meta) brokers.Headers {
	w := metaWriter(msg, m)
	user, _ := partition(msg.Headers, carried)
	h := make(brokers.Headers, 0, len(user)+1)
	return append(append(h, user...), brokers.Header{Name: Packed, Value: Pack(w.Headers)})
}

// usual is how many headers the copy of a message has.
const usual = 20

func metaWriter(msg brokers.Message, m brokers.Meta) Writer {
	w := Writer{Headers: make(brokers.Headers, 0, usual)}
	w.identity(msg)
	w.exact(Topic, msg.Topic, MaxName)
	w.Meta(Prefix, m)
	return w
}

// AppendIdentity returns the headers of msg as Publish writes them: the
// user's own, then the identity. An idempotency key and a redrive count among
// msg.Headers are kept, and every trace of progress is taken out, so that no
// publisher can pass on a forged one.
func AppendIdentity(msg brokers.Message) brokers.Headers {
	var w Writer
	w.identity(msg)
	_, r := read(msg.Headers, identity)
	w.exact(IdempotencyKey, r.Text(IdempotencyKey, MaxName), MaxName)
	w.Int(RedriveCount, r.Int(RedriveCount))
	return w.after(msg.Headers)
}

// SplitMeta undoes [AppendMeta] where workers write. The message has the
// user's headers and what of ID, Key, Topic and PublishedAt the headers say;
// a Topic is for the adapter to check against its subscription.
func SplitMeta(h brokers.Headers, limits Limits) (brokers.Message, brokers.Meta) {
	user, r := read(h, carried)
	msg := r.message(user, limits)
	msg.Topic = r.Text(Topic, MaxName)
	m := r.Meta(Prefix)
	limits.clamp(&m)
	return msg, m
}

// SplitIdentity undoes [AppendIdentity] where anyone may write: the identity
// is read, and progress is taken out unread.
func SplitIdentity(h brokers.Headers, limits Limits) (brokers.Message, brokers.Meta) {
	user, r := read(h, identity)
	return r.message(user, limits), brokers.Meta{
		IdempotencyKey: r.Text(IdempotencyKey, MaxName),
		RedriveCount:   r.Int(RedriveCount),
	}
}

func (w *Writer) identity(msg brokers.Message) {
	w.exact(ID, msg.ID, MaxName)
	w.exact(Key, msg.Key, MaxName)
	w.Time(PublishedAt, msg.PublishedAt)
}

func (w *Writer) after(h brokers.Headers) brokers.Headers {
	user, _ := partition(h, carried)
	return slices.Concat(user, w.Headers)
}

func (r Reader) message(user brokers.Headers, limits Limits) brokers.Message {
	return brokers.Message{
		ID:          r.Text(ID, MaxName),
		Key:         r.Text(Key, MaxName),
		Headers:     user,
		PublishedAt: earlier(r.Time(PublishedAt), limits.Now),
	}
}

// read takes the carried headers off h and reads those that are wanted, up
// to the bounds.
func read(h brokers.Headers, wanted func(string) bool) (user brokers.Headers, r Reader) {
	user, framework := partition(h, carried)
	kept := framework[:0] // its memory is not that of h
	entries, size := 0, 0
	for _, header := range framework {
		if !wanted(header.Name) {
			continue
		}
		if entries++; entries > MaxEntries {
			break
		}
		if n := len(header.Name) + len(header.Value); size+n <= MaxBytes {
			size += n
			kept = append(kept, header)
		}
	}
	return user, Reader{kept}
}

func (l Limits) clamp(m *brokers.Meta) {
	maxDelay := max(l.MaxDelay, 0)
	m.Delay = min(m.Delay, maxDelay)
	m.DueAt = earlier(m.DueAt, l.Now.Add(maxDelay))
	m.FirstFailedAt = earlier(m.FirstFailedAt, l.Now)
	m.LastFailedAt = earlier(m.LastFailedAt, l.Now)
	for i := range m.History {
		f := &m.History[i]
		f.At = earlier(f.At, l.Now)
		f.Delay = min(f.Delay, maxDelay)
	}
}

func earlier(t, limit time.Time) time.Time {
	if t.After(limit) {
		return limit
	}
	return t
}
