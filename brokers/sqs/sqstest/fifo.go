package sqstest

import (
	"container/list"
	"slices"
	"time"
)

// dedupWindow is how long a deduplication ID or a receive attempt ID works.
const dedupWindow = 5 * time.Minute

// A group is a message group of a FIFO queue. It can be received from, up to
// the first message that is not visible, while that is not its first.
type group struct {
	id       string
	messages *list.List
	element  *list.Element // in queue.open
}

// join adds a message to its group.
func (q *queue) join(m *message) {
	g := q.groups[m.group]
	if g == nil {
		g = &group{id: m.group, messages: list.New()}
		q.groups[m.group] = g
	}
	m.lane = g
	m.place = g.messages.PushBack(m)
}

// part removes a message from its group.
func (q *queue) part(m *message) {
	g := m.lane
	g.messages.Remove(m.place)
	m.lane = nil
	q.review(g)
	if g.messages.Len() == 0 {
		delete(q.groups, g.id)
	}
}

// review opens or locks a group.
func (q *queue) review(g *group) {
	head := g.messages.Front()
	open := head != nil && head.Value.(*message).state == Visible
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
		if !visible(e.Value.(*group).messages, yield) {
			return
		}
		e = following
	}
}

// visible goes through messages up to the first that is not visible. It reports
// whether yield wants more. The one that it is at may be received or removed.
func visible(messages *list.List, yield func(*message) bool) bool {
	for e := messages.Front(); e != nil && e.Value.(*message).state == Visible; {
		next := e.Next()
		if !yield(e.Value.(*message)) {
			return false
		}
		e = next
	}
	return true
}

// recent remembers what came with an ID, for as long as that ID works.
type recent[V any] struct {
	seen  map[string]V
	order []remembered
}

type remembered struct {
	id string
	at time.Time
}

// find returns what was added last with that ID within the window.
func (r *recent[V]) find(id string, now time.Time) (V, bool) {
	for len(r.order) > 0 && now.Sub(r.order[0].at) >= dedupWindow {
		delete(r.seen, r.order[0].id)
		r.order = r.order[1:]
	}
	v, ok := r.seen[id]
	return v, ok
}

func (r *recent[V]) add(id string, v V, now time.Time) {
	if r.seen == nil {
		r.seen = make(map[string]V)
	}
	if _, again := r.seen[id]; again {
		r.order = slices.DeleteFunc(r.order, func(old remembered) bool { return old.id == id })
	}
	r.seen[id] = v
	r.order = append(r.order, remembered{id, now})
}

// A sending is what a deduplicated send answers.
type sending struct {
	id       string
	sequence uint64
}

// An attempt is what was received with a receive attempt ID.
type attempt struct {
	messages []*message
	handles  []handle
}

// attempted remembers what was received with a receive attempt ID.
func (q *queue) attempted(id string, now time.Time, messages []*message) {
	made := attempt{messages: messages}
	for _, m := range messages {
		made.handles = append(made.handles, q.handle(m))
	}
	q.attempts.add(id, made, now)
}

// repeat returns what the attempt of that ID received, if all of it is still
// in flight and unchanged, and starts its visibility timeouts anew.
func (q *queue) repeat(id string, now time.Time, visibility time.Duration) []*message {
	made, ok := q.attempts.find(id, now)
	if !ok {
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
