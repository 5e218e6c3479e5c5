package metrics

import (
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// state is what a message does in the worker, as far as that is looked at.
type state uint8

const (
	elsewhere state = iota
	held
	running
	stuck // and running
	numStates
)

// states knows what messages do. It knows a message by its address alone,
// between two events of the pipeline, which owns it meanwhile: an ID may be
// there twice. The parts have a lock each, so that workers rarely meet.
type states [16]part

type part struct {
	mu      sync.Mutex
	members []member
	_       [32]byte // a cache line each
}

type member struct {
	message *brokers.Message
	since   int64 // when the message was first seen, in nanoseconds since 1970
	state   state
}

func (s *states) part(m *brokers.Message) *part {
	if m.ID == "" {
		return &s[0]
	}
	return &s[m.ID[len(m.ID)-1]%byte(len(s))]
}

// set changes the state of e's message.
func (s *states) set(e *consumer.Event, to state) {
	p := s.part(e.Message)
	p.mu.Lock()
	if i := p.index(e.Message); i >= 0 {
		p.members[i].state = to
	} else {
		p.members = append(p.members, member{e.Message, firstSeen(e), to})
	}
	p.mu.Unlock()
}

// forget returns the state that e's message was in, and when it was first seen.
func (s *states) forget(e *consumer.Event) (was state, since int64) {
	p := s.part(e.Message)
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.index(e.Message)
	if i < 0 {
		return elsewhere, firstSeen(e)
	}
	m, last := p.members[i], len(p.members)-1
	p.members[i], p.members[last] = p.members[last], member{}
	p.members = p.members[:last]
	return m.state, m.since
}

// oldestAge is the longest age that counts. A producer may write any time.
const oldestAge = 30 * 24 * time.Hour

// firstSeen returns when e's message was published. If that is unknown, or if the
// message has been a dead letter since, it returns when it first failed. Before
// that, it returns the time of e.
func firstSeen(e *consumer.Event) int64 {
	at := e.Message.PublishedAt
	if at.IsZero() || e.Meta.RedriveCount > 0 {
		if at = e.Meta.FirstFailedAt; at.IsZero() {
			at = e.Time
		}
	}
	age := min(max(e.Time.Sub(at), 0), oldestAge)
	return e.Time.UnixNano() - int64(age)
}

// index returns the place of m, -1 if it is not here. mu is held.
func (p *part) index(m *brokers.Message) int {
	for i := range p.members {
		if p.members[i].message == m {
			return i
		}
	}
	return -1
}

// count returns how many messages are in each state, and the age of the oldest, 0
// if there is none.
func (s *states) count(now time.Time) (n [numStates]int, age time.Duration) {
	oldest := now.UnixNano()
	for i := range s {
		s[i].mu.Lock()
		for _, m := range s[i].members {
			n[m.state]++
			oldest = min(oldest, m.since)
		}
		s[i].mu.Unlock()
	}
	return n, time.Duration(now.UnixNano() - oldest)
}
