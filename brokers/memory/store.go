package memory

import (
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// hand makes a delivery of e, which is in flight from now on.
func (b *Broker) hand(e *entry, s *source, now time.Duration) *brokers.Delivery {
	h := &hold{entry: e, source: s, next: e.holds, since: now, until: later(now, s.capabilities.Lease)}
	h.Message = e.message
	h.Abandoned = int(e.abandoned)
	h.ReceivedAt = b.start.Add(now)
	h.LeaseUntil = b.start.Add(h.until)
	h.Session = s.session
	h.Token = h
	h.Carried = e.carried()
	e.holds = h
	b.leases.push(timed{at: h.until, seq: e.seq, entry: e, hold: h})
	return &h.Delivery
}

// drop ends h without a settlement of its message, which is available again
// unless somebody else holds it, too.
func (b *Broker) drop(h *hold, how end) {
	e := h.entry
	b.end(h, how)
	for at := &e.holds; *at != nil; at = &(*at).next {
		if *at == h {
			*at = h.next
			break
		}
	}
	if how == lost {
		e.abandoned++
	}
	if e.holds == nil {
		e.topic.set(e, ready)
		e.topic.place(e)
	}
}

func (b *Broker) end(h *hold, how end) {
	h.end = how
	if h.pos > 0 {
		b.leases.remove(&h.pos)
	}
}

// win ends all holds of the message of h, of which h was settled first.
func (b *Broker) win(h *hold) {
	for other := h.entry.holds; other != nil; other = other.next {
		b.end(other, lost)
	}
	h.end = settled
	h.entry.holds = nil
}

// postpone makes e available after delay.
func (b *Broker) postpone(e *entry, now, delay time.Duration) {
	if delay > 0 {
		e.topic.set(e, delayed)
		b.delays.push(timed{at: later(now, delay), seq: e.seq, entry: e})
		e.topic.place(e)
		return
	}
	e.topic.set(e, ready)
	b.requeue(e)
	e.topic.place(e)
}

// retryCopy stores a copy of e as if st had been settled by copying.
func (b *Broker) retryCopy(e *entry, now time.Duration, st brokers.Settlement) {
	twin := &entry{message: e.message}
	twin.storeMeta(st.Meta)
	b.insert(e.topic, twin)
	b.postpone(twin, now, st.Delay)
}

// bury stores e, which was removed, in the dead-letter topic of its own: as it is,
// whatever the limits, and as a message that was never delivered.
func (b *Broker) bury(e *entry, dead *topic) {
	buried := &entry{message: e.message}
	buried.message.Topic = dead.name
	if e.meta != nil {
		buried.meta = &brokers.Meta{IdempotencyKey: e.meta.IdempotencyKey, RedriveCount: e.meta.RedriveCount, Send: e.meta.Send, Origin: e.meta.Origin}
	}
	b.insert(dead, buried)
	dead.place(buried)
}

// due makes e, whose delay is over, available behind those that are. A
// message that has an order kept its place in it.
func (b *Broker) due(e *entry) {
	e.topic.set(e, ready)
	if e.lane != nil {
		e.topic.offer(e.lane)
		return
	}
	b.requeue(e)
	e.topic.place(e)
}

func (b *Broker) requeue(e *entry) {
	if e.lane == nil {
		b.seq++
		e.seq = b.seq
	}
}

// insert stores e, ready or about to be delayed, as the newest of t.
func (b *Broker) insert(t *topic, e *entry) {
	b.seq++
	e.seq = b.seq
	t.add(e, b.options.Ordered)
}

// later returns now + d, or the end of time.
func later(now, d time.Duration) time.Duration {
	if d > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + d
}

// carried is what a delivery of e has. First deliveries share that of their topic.
func (e *entry) carried() *brokers.Meta {
	if e.meta == nil {
		return &e.topic.carried
	}
	m := cloneMeta(*e.meta)
	return &m
}

func (e *entry) storeMeta(m brokers.Meta) {
	if e.meta == nil {
		e.meta = new(brokers.Meta)
	}
	*e.meta = cloneMeta(m)
}

// cloneMeta copies the parts of m that a caller may edit in place, history and
// death, so that the edits do not reach the store. Headers are shared everywhere
// and never edited.
func cloneMeta(m brokers.Meta) brokers.Meta {
	m.History = slices.Clone(m.History)
	if m.Death != nil {
		death := *m.Death
		death.Truncated = slices.Clone(death.Truncated)
		m.Death = &death
	}
	return m
}
