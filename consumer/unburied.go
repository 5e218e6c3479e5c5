package consumer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/brokers"
)

// maxStuck bounds the messages of a topic that are held because the broker does
// not even take them back for later.
const maxStuck = 64

var errLeftToItsLease = errors.New("the broker refuses its dead letter, to reject it, and to take it back for later: it is left until its lease ends")

// unburied deals with a dead message that the broker takes neither as a dead
// letter, be it a stub, nor rejected, or that must not be discarded: it goes back to its queue for minutes,
// without a place in the process, and then dies again. It reports whether to try
// the same again instead.
func (p *pipeline) unburied(d *delivery, cause error) (again bool) {
	p.observe(d, Event{Kind: EventDeadLetterRefused, DeadLetter: d.published(),
		Err: fmt.Errorf("%w; the message is kept, and comes back in minutes", cause)})
	if d.stuck {
		return true
	}
	p.pauseDead(d, forMending)
	p.sendBack(d)
	return false
}

// stay holds a dead message that the broker does not even take back for later, if
// there are not too many of these yet, or nothing else would bring it back. It
// reports false if it has to be left to its lease. mu is held.
func (p *pipeline) stay(d *delivery) bool {
	switch {
	case p.draining.Load():
		d.action = brokers.Release
		p.settler.add(d)
		return true
	case !d.stuck && d.sub.stuck >= maxStuck && p.caps.Lease > 0:
		return false
	case !d.stuck:
		d.own().stuck = true
		d.sub.stuck++
	}
	if d.stub == (stubKey{}) { // which is refused, too
		p.lettersTo(d.sub.deadLetter).add(d)
		return true
	}
	d.action = brokers.Reject
	p.rejecter.add(d)
	return true
}

// stubs remembers of which messages a stub is in the dead-letter topic while the
// original comes back, so that it gets no other. It forgets the oldest of too
// many, and all at the end of the process.
type stubs struct {
	mu    sync.Mutex
	known map[stubKey]bool
	order []stubKey // may hold forgotten ones
}

const maxStubs = 10_000

// stubKey stands for a message.
type stubKey [sha256.Size]byte

func stubKeyOf(m *brokers.Message) stubKey {
	body := sha256.Sum256(m.Body)
	return sha256.Sum256(fmt.Appendf(body[:], "%q %q", m.Topic, m.ID))
}

// has reports whether a stub of d is out, and notes that on d.
func (s *stubs) has(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) == 0 {
		return false
	}
	key := stubKeyOf(&d.Message)
	if !s.known[key] {
		return false
	}
	d.own().stub = key
	return true
}

// add notes that a stub of d is out.
func (s *stubs) add(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) >= maxStubs {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
	if s.known == nil {
		s.known = map[stubKey]bool{}
	}
	d.own().stub = stubKeyOf(&d.Message)
	s.known[d.stub] = true
	s.order = append(s.order, d.stub)
}

// forget forgets a stub whose original is gone.
func (s *stubs) forget(key stubKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}
