package wire

import (
	"cmp"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// What reading looks at; framework headers beyond it are dropped unread.
const (
	maxEntries = 64
	maxBytes   = 24 << 10 // names and values
)

// usual is how many headers of the framework the copy of a message has at most,
// mostly.
const usual = 20

// Limits bound what incoming headers may claim.
type Limits struct {
	// Now: failures and publishing lie before it. Needed.
	Now time.Time

	// MaxDelay is the longest delay that a retry may ask for: a due time is
	// at most MaxDelay after Now. 0 or less makes every message due.
	MaxDelay time.Duration

	// Trusted says that workers alone write where the headers come from, or
	// that the broker leaves no choice. Without it only the identity of a
	// message is read, and its progress is taken out unread.
	Trusted bool
}

// Encode returns the headers of a copy of m that carries meta: the user's own,
// then the framework's, in place of those that are among m.Headers. They
// include the identity and the topic of m; an adapter clears the fields for
// which its broker has a better place (ID, Key, Topic, PublishedAt) before the
// call. IDs, keys and topics of more than 512 bytes, or with control characters,
// are left out.
func Encode(m brokers.Message, meta brokers.Meta) brokers.Headers {
	w := writer{headers: make(brokers.Headers, 0, usual)}
	w.copy(m, meta)
	return slices.Concat(without(m.Headers, carried), w.headers)
}

// EncodePacked is [Encode] for brokers where many headers cost more than few:
// the framework's are appended to b as [Pack] has them, for one header that is
// called [Packed].
func EncodePacked(b []byte, m brokers.Message, meta brokers.Meta) (user brokers.Headers, packed []byte) {
	w := writer{packed: append(b, '{')}
	w.copy(m, meta)
	return without(m.Headers, carried), append(w.packed, '}')
}

// EncodeIdentity returns the headers of m as Publish writes them: the user's
// own, then the identity. An idempotency key, a redrive count and a send among
// m.Headers are kept, and every trace of progress is taken out, so that no publisher can
// pass on a forged one.
func EncodeIdentity(m brokers.Message) brokers.Headers {
	var w writer
	w.identity(m)
	var room [usual]brokers.Header
	_, r := read(m.Headers, identity, room[:0])
	w.exact(nameIdempotencyKey, r.line(nameIdempotencyKey))
	w.count(nameRedriveCount, r.count(nameRedriveCount))
	w.word(nameSend, r.word(nameSend))
	return slices.Concat(without(m.Headers, carried), w.headers)
}

// Identify gives m, which is about to be published, the ID and the PublishedAt
// that it lacks: those that its headers carry, else what newID returns and now.
// The Meta has the rest of what they carry, which is the idempotency key, the
// redrive count and the send.
func Identify(m *brokers.Message, now time.Time, newID func() string) brokers.Meta {
	var said brokers.Message
	var meta brokers.Meta
	if len(m.Headers) > 0 {
		said, meta = Decode(m.Headers, Limits{Now: now})
	}
	if m.ID = cmp.Or(m.ID, said.ID); m.ID == "" {
		m.ID = newID()
	}
	if m.PublishedAt.IsZero() {
		m.PublishedAt = said.PublishedAt
	}
	if m.PublishedAt.IsZero() {
		m.PublishedAt = now
	}
	return meta
}

// Decode reads what [Encode], [EncodePacked] or [EncodeIdentity] wrote. The
// message has the user's headers, and what of ID, Key, Topic and PublishedAt the
// headers say; a Topic is for the adapter to check against its subscription.
func Decode(h brokers.Headers, limits Limits) (brokers.Message, brokers.Meta) {
	var room [usual]brokers.Header
	wanted := identity
	if limits.Trusted {
		wanted = carried
	}
	user, r := read(h, wanted, room[:0])
	m := brokers.Message{
		ID:          r.line(nameID),
		Topic:       r.line(nameTopic),
		Key:         r.line(nameKey),
		Headers:     user,
		PublishedAt: earlier(r.time(namePublishedAt), limits.Now),
	}
	meta := r.meta() // of what is wanted
	limits.clamp(&meta)
	return m, meta
}

// read takes the carried headers off h and reads those that are wanted, up to
// the bounds. Of [Packed] ones it reads the last. Room is memory for them.
func read(h brokers.Headers, wanted func(string) bool, room brokers.Headers) (user brokers.Headers, r reader) {
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
	return without(h, carried), reader(bounded(room, wanted))
}

// bounded returns those of h that are wanted, up to the bounds, in its memory.
func bounded(h brokers.Headers, wanted func(string) bool) brokers.Headers {
	kept := h[:0]
	entries, size := 0, 0
	for _, header := range h {
		if !wanted(header.Name) {
			continue
		}
		if entries++; entries > maxEntries {
			break
		}
		if n := len(header.Name) + len(header.Value); size+n <= maxBytes {
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
	if m.FirstFailedAt.IsZero() {
		m.Excused = 0
	}
	m.Excused = min(m.Excused, l.Now.Sub(m.FirstFailedAt))
	if d := m.Death; d != nil {
		d.At = earlier(d.At, l.Now)
		d.DueAt = earlier(d.DueAt, l.Now.Add(maxDelay))
	}
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
