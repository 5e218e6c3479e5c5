package sqstest

import (
	"container/list"
	"time"
)

// dedupWindow is how long a deduplication ID or a receive attempt ID works.
const dedupWindow = 5 * time.Minute

// A group is a message group of a FIFO queue. It can be received from, up to
// the first message that is not visible, while that is not its first.
type group struct {
	id       string
	messages sequence
	element  *list.Element // in queue.open
}

// join adds a message to its group.
func (q *queue) join(m *message) {
	g := q.groups[m.group]
	if g == nil {
		g = &group{id: m.group}
		q.groups[m.group] = g
	}
	m.lane = g
	g.messages.append(m)
}

// part removes a message from its group.
func (q *queue) part(m *message) {
	g := m.lane
	g.messages.remove(m)
	m.lane = nil
	q.review(g)
	if g.messages.head == nil {
		delete(q.groups, g.id)
	}
}

// review opens or locks a group.
func (q *queue) review(g *group) {
	head := g.messages.head
	open := head != nil && head.state == Visible
	switch {
	case open && g.element == nil:
		g.element = q.open.PushBack(g)
	case !open && g.element != nil:
		q.open.Remove(g.element)
		g.element = nil
	}
}

// receivableInGroups goes through the messages that one receive can return: as
// many as possible of one group, then of the next.
func (q *queue) receivableInGroups(yield func(*message) bool) {
	for e := q.open.Front(); e != nil; {
		following := e.Next()
		for m := e.Value.(*group).messages.head; m != nil && m.state == Visible; {
			next := m.next
			if !yield(m) {
				return
			}
			m = next
		}
		e = following
	}
}

// A window remembers deduplication IDs of sends, even when the message is gone.
type window struct {
	seen  map[string]sending
	order []string
}

// A sending is what a deduplicated send answers.
type sending struct {
	id       string
	sequence uint64
	at       time.Time
}

// find returns the first sending with that key within the window.
func (w *window) find(key string, now time.Time) (sending, bool) {
	for len(w.order) > 0 && now.Sub(w.seen[w.order[0]].at) >= dedupWindow {
		delete(w.seen, w.order[0])
		w.order = w.order[1:]
	}
	first, ok := w.seen[key]
	return first, ok
}

func (w *window) add(key string, s sending) {
	if w.seen == nil {
		w.seen = make(map[string]sending)
	}
	w.seen[key] = s
	w.order = append(w.order, key)
}

// attempts remember what was received with a receive attempt ID.
type attempts struct {
	seen  map[string]attempt
	order []string
}

type attempt struct {
	at       time.Time
	messages []*message
	handles  []handle
}

func (a *attempts) add(id string, at time.Time, q *queue, messages []*message) {
	if a.seen == nil {
		a.seen = make(map[string]attempt)
	}
	for len(a.order) > 0 && at.Sub(a.seen[a.order[0]].at) >= dedupWindow {
		delete(a.seen, a.order[0])
		a.order = a.order[1:]
	}
	made := attempt{at: at, messages: messages}
	for _, m := range messages {
		made.handles = append(made.handles, q.handle(m))
	}
	if _, known := a.seen[id]; !known {
		a.order = append(a.order, id)
	}
	a.seen[id] = made
}

// repeat returns what the attempt of that ID received, if all of it is still
// in flight and unchanged, and starts its visibility timeouts anew.
func (q *queue) repeat(id string, now time.Time, visibility time.Duration) []*message {
	made, ok := q.attempts.seen[id]
	if !ok || now.Sub(made.at) >= dedupWindow {
		return nil
	}
	for i, m := range made.messages {
		if q.messages[m.number] != m || m.state != InFlight || m.changed || q.handle(m) != made.handles[i] {
			return nil
		}
	}
	for _, m := range made.messages {
		q.hide(m, now.Add(visibility))
	}
	return made.messages
}

func (q *queue) handle(m *message) handle {
	return handle{queue: q.number, message: m.number, generation: m.generation}
}
