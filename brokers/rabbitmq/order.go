package rabbitmq

import (
	"context"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The messages of an ordered queue go back in one step, by the end of their channel.
// The broker then requeues all unacked deliveries in their order, those on their way
// included. A quorum queue delivers requeued messages in the order of their return.
// If the consumer were cancelled first, the broker would requeue the deliveries on
// their way at once, and deliver them before the earlier messages of the buffer.
//
// So the queue has a channel of its own. Before it ends, the worker must have settled
// all messages that it has begun with, or they would run twice.

// ends reports whether in spills and its consumers may end. The consumers of an
// ordered intake may end when the worker has no unsettled message of it.
func (in *intake) ends() bool {
	return in.spills.Load() && (!in.ordered || in.out.Load() == 0)
}

// turnBack empties the buffers of ordered intakes. Their channels end when the worker
// has settled its other messages. A message that was given back often is replaced by
// a copy, as in handBack, and loses its place.
func (s *source) turnBack(n *session, ins []*intake) {
	feeds := s.restart(ins)
	if s.broker.publisher.blocked() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, s.broker.options.ConfirmTimeout)
		s.renew(ctx, feeds, func(t *token) bool { return t.count >= bystanders })
		cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != n {
		return
	}
	for _, in := range ins {
		in.spills.Store(true)
		for _, i := range in.items {
			i.token.lose()
		}
		in.items = nil
	}
}

// shut closes the channel of an ordered intake, after the worker has settled
// all messages that it has begun with. Acks that the broker has not applied by
// then are lost, as with a connection.
func (l *lane) shut(in *intake) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.session
	if err := l.flush(len(l.tags.waiting)); err != nil {
		return err
	}
	l.retire()
	if err := n.call(l.ch.Close); err != nil {
		return err
	}
	in.pumps.Wait()
	in.granted.Store(0)
	in.last.Store(0) // the tags of the next channel begin anew
	delete(in.unacked, l)
	l.group.lanes = nil
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lanes = slices.DeleteFunc(n.lanes, func(other *lane) bool { return other == l })
	return nil
}

// vacancy is how long vacate waits at most. A broker notices the end of a
// channel sooner.
const vacancy = time.Second

// vacate waits until the broker has noticed that the channels of ordered
// intakes have ended. Until then, the broker would send a new consumer later
// messages before the messages of the old channel. If other workers consume
// from the queue there is no order to keep, and vacate waits until vacancy is
// over.
func (n *session) vacate(ins []*intake) {
	end := time.Now().Add(vacancy)
	for _, in := range ins {
		for in.ordered && !in.single && n.consumersOf(in.queue) > 0 && time.Now().Before(end) {
			select {
			case <-time.After(vacancy / 20):
			case <-n.ctx.Done():
			}
		}
	}
}

// consumersOf returns the number of consumers of a queue, or 0 if it is not
// known.
func (n *session) consumersOf(queue string) (consumers int) {
	_ = n.request(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		consumers = q.Consumers
		return err
	})
	return consumers
}
