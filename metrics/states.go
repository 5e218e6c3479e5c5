package metrics

import (
	"sync"

	"github.com/redrive-go/redrive/brokers"
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
	state   state
}

func (s *states) part(m *brokers.Message) *part {
	if m.ID == "" {
		return &s[0]
	}
	return &s[m.ID[len(m.ID)-1]%byte(len(s))]
}

// set changes the state of m.
func (s *states) set(m *brokers.Message, to state) {
	p := s.part(m)
	p.mu.Lock()
	if i := p.index(m); i >= 0 {
		p.members[i].state = to
	} else {
		p.members = append(p.members, member{m, to})
	}
	p.mu.Unlock()
}

// forget returns the state that m was in.
func (s *states) forget(m *brokers.Message) state {
	p := s.part(m)
	p.mu.Lock()
	i := p.index(m)
	if i < 0 {
		p.mu.Unlock()
		return elsewhere
	}
	was, last := p.members[i].state, len(p.members)-1
	p.members[i], p.members[last] = p.members[last], member{}
	p.members = p.members[:last]
	p.mu.Unlock()
	return was
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

// count returns how many messages are in each state.
func (s *states) count() (n [numStates]int) {
	for i := range s {
		s[i].mu.Lock()
		for _, m := range s[i].members {
			n[m.state]++
		}
		s[i].mu.Unlock()
	}
	return n
}
