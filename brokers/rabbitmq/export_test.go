package rabbitmq

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// SetGrace sets for how long the consumers of a paused topic stay. Call it before
// Open.
func (b *Broker) SetGrace(d time.Duration) { b.grace = d }

// SetLook sets the longest wait between two looks of a source for a queue that
// is gone. Call it before Open.
func (b *Broker) SetLook(d time.Duration) { b.look = d }

// SetDeletion sets for how long a queue may be in deletion. Call it before Open.
func (b *Broker) SetDeletion(d time.Duration) { b.deletion = d }

// IsCalm reports whether a source starts and ends no consumers at the moment.
func IsCalm(s brokers.Source) bool {
	release, calm := HoldChanges(s)
	if calm {
		release()
	}
	return calm
}

// HoldChanges keeps a calm source from starting and ending consumers until release
// is called.
func HoldChanges(s brokers.Source) (release func(), ok bool) {
	b := s.(*source)
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.session
	if n == nil || !n.steering.TryLock() {
		return nil, false
	}
	if !n.isCalm(time.Now()) {
		n.steering.Unlock()
		return nil, false
	}
	return n.steering.Unlock, true
}

// HoldAcks makes acks wait for those of earlier deliveries for d, so that no
// machine is too slow for them to travel together. Call it before Open.
func (b *Broker) HoldAcks(d time.Duration) { b.tick = d }

// Buffered is how many bytes of bodies wait in a source to be handed out.
func Buffered(s brokers.Source) int {
	b := s.(*source)
	b.mu.Lock()
	defer b.mu.Unlock()
	all := 0
	for _, in := range b.session.intakes {
		_, size := b.session.buffered(in)
		all += size
	}
	return all
}

// SizeOfHeaders is what headers are taken to need on the wire.
func SizeOfHeaders(h brokers.Headers) int { return tableSize(toTable(h)) }

// TableInFrame is how large the table of headers in a frame is, if it has one.
func TableInFrame(frame []byte) (size int, ok bool) {
	if frame[0] != frameHeaders {
		return 0, false
	}
	_, table, _, ok := cutTable(frame[7 : len(frame)-1])
	return len(table), ok
}

// DeliveryCount is how often the broker has counted the delivery of this copy.
func DeliveryCount(d *brokers.Delivery) int { return d.Token.(*token).count }

// Seclusion is for how long a message that has been lost so often is charged alone.
func Seclusion(count int) time.Duration { return seclusion(count) }

// TurnsBack reports whether an ordered source is about to give the buffer of a topic
// back.
func TurnsBack(s brokers.Source, topic string) bool {
	b := s.(*source)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session != nil && slices.ContainsFunc(b.session.intakes, func(in *intake) bool { return in.queue == topic && in.spills.Load() })
}
