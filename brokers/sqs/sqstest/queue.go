package sqstest

import (
	"container/heap"
	"container/list"
	"iter"
	"time"
)

// A queue holds the messages of one queue. Its methods are called with the
// server's lock held.
type queue struct {
	server   *Server
	number   uint64
	fifo     bool
	settings settings
	created  time.Time
	modified time.Time
	purged   time.Time

	messages map[uint64]*message
	due      messages
	age      messages
	ready    *list.List        // visible messages of a standard queue
	groups   map[string]*group // of a FIFO queue
	open     *list.List        // groups of a FIFO queue that can be received from
	window   recent[sending]   // deduplication of sends
	attempts recent[attempt]   // deduplication of receives
	inFlight int
	delayed  int

	waiters *list.List
	polls   int         // waiters whose client is there
	alarm   *time.Timer // for what comes due while there are such
	touched bool
	report  Queue // but for what it holds at a moment
}

func newQueue(s *Server, name string, now time.Time) *queue {
	s.numbers++
	return &queue{
		server:   s,
		number:   s.numbers,
		report:   Queue{Name: name, URL: s.URL + "/" + account + "/" + name, ARN: arnPrefix + name},
		created:  now,
		modified: now,
		messages: make(map[uint64]*message),
		groups:   make(map[string]*group),
		open:     list.New(),
		ready:    list.New(),
		due:      whenDue(),
		age:      whenSent(),
		waiters:  list.New(),
	}
}

// put adds a message that becomes visible after delay.
func (q *queue) put(m *message, now time.Time, delay time.Duration) {
	if m.number == 0 {
		q.server.numbers++
		m.number = q.server.numbers
	}
	q.messages[m.number] = m
	heap.Push(&q.age, m)
	if q.fifo {
		q.join(m)
	}
	if delay > 0 {
		m.state, m.due = Delayed, now.Add(delay)
		q.delayed++
		heap.Push(&q.due, m)
	} else {
		q.appear(m)
	}
	q.server.touch(q)
}

// appear makes a message visible that is in no heap of what comes due.
func (q *queue) appear(m *message) {
	m.state = Visible
	if q.fifo {
		q.review(m.lane)
	} else {
		m.place = q.ready.PushBack(m)
	}
}

// leave ends the state of a message that is in flight or delayed.
func (q *queue) leave(m *message) {
	switch m.state {
	case InFlight:
		q.inFlight--
	case Delayed:
		q.delayed--
	}
}

// show makes a message visible before it is due.
func (q *queue) show(m *message) {
	heap.Remove(&q.due, m.dueIndex)
	q.leave(m)
	q.appear(m)
	q.server.touch(q)
}

// hide changes when a message that is not visible will be.
func (q *queue) hide(m *message, due time.Time) {
	m.due = due
	heap.Fix(&q.due, m.dueIndex)
	q.server.touch(q)
}

// remove takes a message out of the queue.
func (q *queue) remove(m *message) {
	if m.state == Visible {
		if !q.fifo {
			q.ready.Remove(m.place)
		}
	} else {
		heap.Remove(&q.due, m.dueIndex)
		q.leave(m)
	}
	heap.Remove(&q.age, m.ageIndex)
	delete(q.messages, m.number)
	if q.fifo {
		q.part(m)
		q.server.touch(q)
	}
}

// tick lets happen what was due at or before now: messages become visible, and
// open polls get them, at the time that they were due; old messages expire.
func (q *queue) tick(now time.Time) {
	for len(q.due.items) > 0 && !q.due.first().due.After(now) {
		at := q.due.first().due
		for len(q.due.items) > 0 && q.due.first().due.Equal(at) {
			m := heap.Pop(&q.due).(*message)
			q.leave(m)
			q.appear(m)
		}
		q.serve(at)
	}
	oldest := now.Add(-q.settings.retention)
	for len(q.age.items) > 0 && !q.age.first().sent.After(oldest) {
		q.remove(q.age.first())
		q.report.Expired++
	}
}

// take hands out up to most messages. What was received too often goes to the
// dead-letter queue instead.
func (q *queue) take(now time.Time, most int, visibility time.Duration) []*message {
	var out []*message
	for m := range q.receivable() {
		if len(out) == most || q.inFlight >= q.server.options.InFlightLimit {
			break
		}
		if q.exhausted(m, now) {
			continue
		}
		q.receive(m, now, visibility)
		out = append(out, m)
	}
	return out
}

// receivable goes through the messages that one receive can return, in order.
// The one that it is at may be received or removed.
func (q *queue) receivable() iter.Seq[*message] {
	if q.fifo {
		return q.receivableInGroups
	}
	return func(yield func(*message) bool) { visible(q.ready, yield) }
}

// receive puts a visible message in flight.
func (q *queue) receive(m *message, now time.Time, visibility time.Duration) {
	if m.receives == 0 {
		m.first = now
	}
	m.receives++
	m.here++
	m.generation++
	m.changed = false
	m.state, m.received, m.due = InFlight, now, now.Add(visibility)
	q.inFlight++
	heap.Push(&q.due, m)
	if q.fifo {
		q.review(m.lane)
	} else {
		q.ready.Remove(m.place)
	}
}

// touch has a queue served before the server's lock is given up.
func (s *Server) touch(q *queue) {
	if !q.touched {
		q.touched = true
		s.dirty = append(s.dirty, q)
	}
}

// flush serves the open polls of every queue that was touched.
func (s *Server) flush(now time.Time) {
	for len(s.dirty) > 0 {
		q := s.dirty[len(s.dirty)-1]
		s.dirty = s.dirty[:len(s.dirty)-1]
		q.touched = false
		q.serve(now)
		q.arm(now)
	}
}

// with runs do on a queue, under the lock, with everything due before it done.
func (s *Server) with(url string, do func(q *queue, now time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	q, err := s.find(url)
	if err == nil {
		q.tick(now)
		s.touch(q)
		err = do(q, now)
	}
	s.flush(now)
	return err
}
