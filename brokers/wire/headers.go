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
	w := Writer{Headers: make(brokers.Headers, 0, usual)}
	w.meta(msg, m)
	return slices.Concat(User(msg.Headers), w.Headers)
}

// AppendPacked appends what of [AppendMeta] is the framework's as [Pack] has it,
// for one header that is called [Packed], where many headers cost more than few.
// [SplitMeta] reads it.
func AppendPacked(b []byte, msg brokers.Message, m brokers.Meta) []byte {
	w := Writer{packed: append(b, '{')}
	w.meta(msg, m)
	return append(w.packed, '}')
}

// User returns the headers of h that AppendMeta keeps.
func User(h brokers.Headers) brokers.Headers { return without(h, carried) }

// usual is how many headers of the framework the copy of a message has at most,
// mostly.
const usual = 20

func (w *Writer) meta(msg brokers.Message, m brokers.Meta) {
	w.identity(msg)
	w.exact(Topic, msg.Topic, MaxName)
	w.Meta(Prefix, m)
}

// AppendIdentity returns the headers of msg as Publish writes them: the
// user's own, then the identity. An idempotency key and a redrive count among
// msg.Headers are kept, and every trace of progress is taken out, so that no
// publisher can pass on a forged one.
func AppendIdentity(msg brokers.Message) brokers.Headers {
	var w Writer
	w.identity(msg)
	var room [usual]brokers.Header
	_, r := read(msg.Headers, identity, room[:0])
	w.exact(IdempotencyKey, r.Text(IdempotencyKey, MaxName), MaxName)
	w.Int(RedriveCount, r.Int(RedriveCount))
	return slices.Concat(User(msg.Headers), w.Headers)
}

// SplitMeta undoes [AppendMeta], or [AppendPacked], where workers write. The
// message has the user's headers and what of ID, Key, Topic and PublishedAt the
// headers say; a Topic is for the adapter to check against its subscription.
func SplitMeta(h brokers.Headers, limits Limits) (brokers.Message, brokers.Meta) {
	var room [usual]brokers.Header
	user, r := read(h, carried, room[:0])
	msg := r.message(user, limits)
	msg.Topic = r.Text(Topic, MaxName)
	m := r.Meta(Prefix)
	limits.clamp(&m)
	return msg, m
}

// SplitIdentity undoes [AppendIdentity] where anyone may write: the identity
// is read, also out of a header [Packed], and progress is taken out unread.
func SplitIdentity(h brokers.Headers, limits Limits) (brokers.Message, brokers.Meta) {
	var room [usual]brokers.Header
	user, r := read(h, identity, room[:0])
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

func (r Reader) message(user brokers.Headers, limits Limits) brokers.Message {
	return brokers.Message{
		ID:          r.Text(ID, MaxName),
		Key:         r.Text(Key, MaxName),
		Headers:     user,
		PublishedAt: earlier(r.Time(PublishedAt), limits.Now),
	}
}

// read takes the carried headers off h and reads those that are wanted, up to
// the bounds. Of [Packed] ones it reads the last. Room is memory for them.
func read(h brokers.Headers, wanted func(string) bool, room brokers.Headers) (user brokers.Headers, r Reader) {
	packed := ""
	for _, header := range h {
		switch {
		case header.Name == Packed:
			packed = header.Value
		case carried(header.Name):
			room = append(room, header)
		}
	}
	if packed != "" {
		room, _ = appendUnpacked(room, packed) // what is damaged is not there
	}
	return User(h), Reader{bounded(room, wanted)}
}

// bounded returns those of h that are wanted, up to the bounds, in its memory.
func bounded(h brokers.Headers, wanted func(string) bool) brokers.Headers {
	kept := h[:0]
	entries, size := 0, 0
	for _, header := range h {
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
	return kept
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
