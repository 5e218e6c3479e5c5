package rabbitmq

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// The messages of an ordered queue go back in one step, by the end of their channel.
// The broker then requeues all unacked deliveries in their order, those on their way
// included. A quorum queue delivers requeued messages in the order of their return.
// If the consumer were cancelled first, the broker would requeue the deliveries on
// their way at once, and deliver them before the earlier messages of the buffer.
//
// Before the channel ends, the worker must have settled
// all messages that it has begun with, or they would run twice. It must also have
// received all messages that went back earlier: see drain.

// shut closes the channel of an ordered intake, after the worker has settled
// all messages that it has begun with. Acks that the broker has not applied by
// then are lost, as with a connection. The caller holds the lock.
func (in *intake) shut() error {
	if err := in.flush(time.Now()); err != nil {
		return err
	}
	if err := in.drain(); err != nil {
		return err
	}
	if err := in.session.call(in.ch.Close); err != nil {
		return err
	}
	in.pump.Wait()
	in.back = int(in.unacked.Swap(0))
	in.ch, in.base, in.shutAt = nil, 0, time.Now()
	in.granted.Store(0)
	in.stale.Store(0)
	in.last.Store(0) // the tags of the next channel begin anew
	return nil
}

// drainTime is how long drain waits at most.
const drainTime = 5 * time.Second

// drain has the broker send all messages that went back earlier. A message left in
// the queue would come before the messages that go back now, even if it is a later
// one. The broker sends redeliveries first, so nothing is left if the newest
// delivery is not a redelivery. Otherwise drain replaces the consumer by one with a
// larger prefetch, again and again, until the broker sends a first delivery or has
// no more messages. The intake spills meanwhile, so no message takes memory. The
// caller holds the lock.
//
// drain gives up the order in three cases. After drainTime, the rest stays in the
// queue. So do messages that went back often: the broker could dead-letter them
// after another redelivery. A queue with a single active consumer is not drained:
// its next consumer would be that of another worker.
func (in *intake) drain() error {
	n, guess := in.session, 0
	for end := time.Now().Add(drainTime); in.again.Load() && !in.single && in.granted.Load() > 0 && time.Now().Before(end); {
		if in.quiet() {
			more := in.back - int(in.last.Load())
			if more < 1 { // what is left went back from another worker or session
				guess = max(1, 2*guess)
				more = guess
			}
			if n.isGone(in) || guess > 0 && n.source.readOnly { // a reader takes no more messages than it gave back
				return nil
			}
			if in.merges {
				more += int(in.unacked.Load())
			}
			if err := in.subscribe(more); err != nil {
				return err
			}
		}
		if q, err := n.lookAt(in.queue); err != nil || q.Messages == 0 && q.Consumers > 0 {
			return nil // an error of the connection ends the session by itself
		}
		if !adapter.Rest(n.ctx, drainTime/500) {
			return n.over()
		}
	}
	return nil
}

// vacancy is how long a broker may take to notice the end of a channel: mostly less.
const vacancy = time.Second

// vacate waits until the broker has noticed that the last channel of an ordered
// intake has ended. Until then, the broker would send a new consumer later
// messages before the messages of the old channel. It waits for all of vacancy if
// other workers consume from the queue, where there is no order to keep, and if
// they have taken all messages that went back.
func (in *intake) vacate() {
	n := in.session
	for end := in.shutAt.Add(vacancy); in.ordered && !in.single && time.Now().Before(end); {
		q, err := n.lookAt(in.queue)
		if err != nil || q.Consumers == 0 && (q.Messages > 0 || in.back == 0) || !adapter.Rest(n.ctx, vacancy/20) {
			return
		}
	}
}

// lookAt returns the numbers of ready messages and of consumers of a queue. The
// broker answers 0 and 0 if its quorum queue does not answer within 250 ms.
func (n *session) lookAt(queue string) (q amqp.Queue, err error) {
	err = n.request(passively(queue, &q))
	return q, err
}
