package memory

import (
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

type state uint8

const (
	ready state = iota // ready includes waiting behind others of its key
	delayed
	inFlight
	states
)

// entry is one stored message. Its topic links all of them in the order of
// their publication.
type entry struct {
	message    brokers.Message
	meta       *brokers.Meta // nil until the first Retry
	topic      *topic
	lane       *lane // of its key; nil if it has no order
	holds      *hold // newest first; more than one only by a fault
	prev, next *entry
	seq        uint64 // its place among those that are ready
	abandoned  int32
	pos        int32 // in the delays, see timed
	state      state
}

// hold is one delivery and its lease.
type hold struct {
	brokers.Delivery
	entry  *entry
	source *source
	next   *hold
	until  time.Duration
	since  time.Duration
	pos    int32 // in the leases, see timed
	end    end
}

// end is how a hold ended.
type end uint8

const (
	held end = iota // not yet
	settled
	released // by the close of its source
	lost     // its lease
)

func (e end) err() error {
	switch e {
	case settled:
		return brokers.ErrSettled
	case released:
		return errEnded
	case lost:
		return brokers.ErrLeaseLost
	}
	return nil
}

// errEnded is both, since the deliveries of a closed source are released.
var errEnded = fmt.Errorf("%w, and %w", brokers.ErrClosed, brokers.ErrLeaseLost)

// lane is the order of one key: its entries that are not in flight, and how
// many are. Only the first of a lane is ever in topic.ready.
type lane struct {
	key     string
	queue   queue
	held    int // in flight
	offered bool
}

type topic struct {
	name        string
	carried     brokers.Meta // of first deliveries; never changed
	ready       queue
	again       []*entry // to be handed out a second time, by a fault
	lanes       map[string]*lane
	first, last *entry
	count       [states]int
	subs        []*subscription
	turn        int             // the sub to wake next
	deleted     bool            // and not created again since
	blocked     []chan struct{} // publishers that wait for room
}

// subscription is one source's view of one topic. It is active while the
// source has yet to find the topic empty.
type subscription struct {
	source     *source
	topic      *topic
	deadLetter *topic // nil if there is none
	active     bool
	paused     bool
}

func (t *topic) len() int {
	return t.count[ready] + t.count[delayed] + t.count[inFlight]
}

func (t *topic) available() bool { return t.ready.len() > 0 || len(t.again) > 0 }

// add links e into the topic, in the state that it has.
func (t *topic) add(e *entry, ordered bool) {
	t.deleted = false
	e.topic, e.prev = t, t.last
	if t.last != nil {
		t.last.next = e
	} else {
		t.first = e
	}
	t.last = e
	t.count[e.state]++
	if !ordered || e.message.Key == "" {
		return
	}
	e.lane = t.lanes[e.message.Key]
	if e.lane == nil {
		e.lane = &lane{key: e.message.Key}
		t.lanes[e.lane.key] = e.lane
	}
}

// remove unlinks e, which is in flight, and lets a publisher in.
func (t *topic) remove(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		t.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		t.last = e.prev
	}
	e.prev, e.next = nil, nil
	t.count[e.state]--
	if e.lane != nil {
		e.lane.held--
		t.offer(e.lane)
	}
	t.admit()
}

// empty forgets all entries. The caller has removed their alarms.
func (t *topic) empty() {
	t.ready, t.again, t.lanes = queue{}, nil, make(map[string]*lane)
	t.first, t.last, t.count = nil, nil, [states]int{}
	t.deleted = true
	for len(t.blocked) > 0 {
		t.admit()
	}
}

// admit wakes the publisher that has waited longest.
func (t *topic) admit() {
	if len(t.blocked) > 0 {
		close(t.blocked[0])
		t.blocked = slices.Delete(t.blocked, 0, 1)
	}
}

func (t *topic) set(e *entry, s state) {
	t.count[e.state]--
	t.count[s]++
	if e.lane != nil && e.state == inFlight {
		e.lane.held--
	}
	e.state = s
	if e.lane != nil && e.state == inFlight {
		e.lane.held++
	}
}

// place puts e, which is not in flight, where the next Receive that may have
// it finds it.
func (t *topic) place(e *entry) {
	switch {
	case e.lane != nil:
		e.lane.queue.push(e)
		t.offer(e.lane)
	case e.state == ready:
		t.push(e)
	}
}

// push makes e available to the next Receive.
func (t *topic) push(e *entry) {
	had := t.available()
	t.ready.push(e)
	if !had {
		t.announce()
	}
}

// repeat hands out e, which is in flight, once more.
func (t *topic) repeat(e *entry) {
	had := t.available()
	t.again = append(t.again, e)
	if !had {
		t.announce()
	}
}

// offer makes the first entry of a key available unless an earlier one is in
// flight or waits for its retry.
func (t *topic) offer(l *lane) {
	if l.held > 0 || l.offered {
		return
	}
	if l.queue.len() == 0 {
		delete(t.lanes, l.key)
		return
	}
	if e := l.queue.front(); e.state == ready {
		l.offered = true
		t.push(e)
	}
}

// take removes up to limit available entries and gives them to hand, in order.
func (t *topic) take(limit int, hand func(*entry)) {
	n := 0
	for ; n < limit && len(t.again) > 0; n++ {
		e := t.again[0]
		t.again = slices.Delete(t.again, 0, 1)
		if e.holds != nil {
			hand(e)
		}
	}
	for n < limit && t.ready.len() > 0 {
		e := t.ready.pop()
		t.set(e, inFlight)
		hand(e)
		n++
		if e.lane == nil {
			continue
		}
		e.lane.offered = false
		e.lane.queue.pop()
		for n < limit && e.lane.queue.len() > 0 && e.lane.queue.front().state == ready {
			e := e.lane.queue.pop()
			t.set(e, inFlight)
			hand(e)
			n++
		}
	}
}

// wake lets one of the sources that wait for this topic look again.
func (t *topic) wake() {
	for range t.subs {
		t.turn = (t.turn + 1) % len(t.subs)
		if sub := t.subs[t.turn]; !sub.paused && sub.source.wake() {
			return
		}
	}
}

// announce tells the sources of a topic that was empty that it is not.
func (t *topic) announce() {
	for _, sub := range t.subs {
		sub.activate()
	}
	t.wake()
}

func (s *subscription) activate() {
	if !s.active && !s.paused && s.topic.available() {
		s.active = true
		s.source.active = append(s.source.active, s)
	}
}

// pause takes the topic from its source, and lets others have what is there.
func (s *subscription) pause() {
	s.paused = true
	if !s.active {
		return
	}
	s.active = false
	all := s.source.active
	s.source.active = slices.Delete(all, slices.Index(all, s), slices.Index(all, s)+1)
	s.topic.wake()
}
