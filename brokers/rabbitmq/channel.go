package rabbitmq

import (
	"cmp"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// ackPace is how long an ack may wait for others, so that they travel as
	// one, when another has just been sent.
	ackPace = 5 * time.Millisecond

	// tick is how long at least an ack waits for those of earlier deliveries, and
	// twice that at most: mostly longer than the copy of a retry takes.
	tick = 20 * time.Millisecond
)

// open opens the channel of in, unless it is open. The caller holds the lock.
func (in *intake) open() error {
	if in.ch != nil {
		return nil
	}
	n := in.session
	err := n.call(func() (err error) {
		in.ch, err = n.conn.Channel()
		return err
	})
	if err != nil {
		return fmt.Errorf("open a channel: %w", explain(err))
	}
	in.tags = newTags(in)
	closed := in.ch.NotifyClose(make(chan *amqp.Error, 1))
	n.work.Go(func() {
		if err := <-closed; err != nil { // nil if shut or the end of the connection closed it
			n.end(fmt.Errorf("the broker closed the channel: %w", explain(err)))
		}
	})
	return nil
}

// isOpen reports whether deliveries can be settled on the channel. The caller holds the
// lock.
func (in *intake) isOpen() bool {
	return in.ch != nil && !in.finished && in.session.ctx.Err() == nil
}

// serve gives in a consumer with this prefetch, instead of one that it has.
func (in *intake) serve(prefetch int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.subscribe(prefetch)
}

// subscribe is serve; the caller holds the lock. The next consumer goes on with
// what is unacked of the one before if it has its tag, and counts that for its
// prefetch. Where it cannot, its tag is new, and sorts behind the earlier ones:
// RabbitMQ 3.10 requeues the deliveries of a channel in the order of its tags.
func (in *intake) subscribe(prefetch int) error {
	if in.finished {
		return nil
	}
	if err := cmp.Or(in.open(), in.cancel()); err != nil {
		return err
	}
	in.pump.Wait()
	if !in.merges {
		in.consumers++
		in.base = in.last.Load()
		in.stale.Store(in.unacked.Load())
	}
	prefetch = min(max(prefetch, 1), mostPrefetch) // 0 would be without end
	n, ch := in.session, in.ch
	var deliveries <-chan amqp.Delivery
	err := n.call(func() (err error) {
		if err = ch.Qos(prefetch, 0, false); err == nil {
			deliveries, err = ch.Consume(in.queue, in.tag(), false, false, false, false, n.source.consuming())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("consume from queue %q: %w", in.queue, explain(err))
	}
	in.granted.Store(int64(prefetch))
	in.wanted.Store(0)
	in.pump.Add(1)
	n.work.Go(func() {
		defer in.pump.Done()
		in.receive(ch, deliveries)
	})
	return nil
}

// tag is that of the present consumer, or of the last.
func (in *intake) tag() string { return fmt.Sprintf("%06d", in.consumers) }

// cancel ends the consumer of in, if there is one. What it has delivered is still
// the worker's. The caller holds the lock.
func (in *intake) cancel() error {
	if in.granted.Swap(0) == 0 {
		return nil
	}
	if err := in.session.call(func() error { return in.ch.Cancel(in.tag(), false) }); err != nil {
		return fmt.Errorf("cancel the consumer of queue %q: %w", in.queue, explain(err))
	}
	return nil
}

// leave ends the consumer of in, or its channel, with which all that is unacked
// goes back.
func (in *intake) leave(shut bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.ch == nil:
		return nil
	case shut:
		return in.shut()
	}
	err := in.cancel()
	in.pump.Wait()
	return err
}

// A larger prefetch takes another consumer instead of the one that there is, and
// only at a moment when nothing is on its way here: that would go back to the queue
// when the consumer ends, be counted, and come again behind others. Several consumers
// of a queue would get its messages in turn, and the order would be lost.

// widens reports whether in is to have a larger prefetch, and can.
func (in *intake) widens() bool {
	return in.wanted.Load() > 0 && in.granted.Load() > 0 && in.quiet()
}

// quiet reports whether all that the broker may send is here.
func (in *intake) quiet() bool { return in.unacked.Load()-in.stale.Load() >= in.granted.Load() }

// widen gives the consumer the prefetch that it wants, if it can have that. The caller
// holds steering.
func (in *intake) widen() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.widenLocked()
}

func (in *intake) widenLocked() error {
	if !in.widens() || in.session.isGone(in) {
		return nil
	}
	return in.subscribe(int(in.wanted.Load()))
}

// receive moves what the broker sends into the source's buffer. What it takes
// after the end of the session nobody will ever see. If the broker ends the consumer,
// as it does when a queue is deleted, receive marks the intake.
func (in *intake) receive(ch *amqp.Channel, deliveries <-chan amqp.Delivery) {
	n := in.session
	for d := range deliveries {
		t := &token{delivery: d, tag: d.DeliveryTag, intake: in, deadline: time.Now().Add(n.source.caps.Lease)}
		if !n.source.readOnly { // what others did with it says nothing about it here
			t.count = count(&d)
		}
		in.last.Store(d.DeliveryTag)
		in.again.Store(d.Redelivered && !t.often())
		in.out.Add(1)
		in.unacked.Add(1)
		largest := in.largest.Load() // one that was large is forgotten by and by
		in.largest.Store(max(int64(len(d.Body)), largest-largest/64))
		n.hold(t)
		n.source.push(t)
	}
	if in.granted.Load() > 0 && !ch.IsClosed() {
		n.cancelled(in)
	}
}

// returned notes that an ack or a release of tag is about to be sent; the caller
// holds the lock of the channel.
func (in *intake) returned(tag uint64) {
	in.unacked.Add(-1)
	if tag <= in.base {
		in.stale.Add(-1)
	}
}

// giveBack returns a message to its queue, or has that dead-letter it.
func (t *token) giveBack(requeue bool) error {
	in := t.intake
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.isOpen() {
		return in.session.over()
	}
	defer in.session.guard()()
	if err := in.ch.Nack(t.tag, false, requeue); err != nil {
		return in.session.broke(err)
	}
	in.returned(t.tag)
	in.tags.gone(t.tag) // not before: an ack of later tags would include it
	return nil
}

// ack acks deliveries: at once if they are urgent, if none was acked just
// now, or if the broker would soon wait for them; and otherwise with those that
// follow closely. What was delivered before waits for nothing: where one message
// kills its worker again and again, the others would be charged for that each time.
func (in *intake) ack(entries []*claimed, urgent bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.isOpen() {
		return in.session.over()
	}
	now := time.Now()
	again := false
	for _, e := range entries {
		in.tags.ack(e.tag, now)
		again = again || e.count > 0
	}
	switch {
	case again:
		return in.flush(now)
	case urgent || 2*len(in.tags.waiting) >= int(in.granted.Load()) || now.Sub(in.flushed) >= ackPace:
		return in.flush(time.Time{})
	}
	in.arm()
	return nil
}

// flush sends acks, also those since before old that wait for an earlier delivery;
// the caller holds the lock.
func (in *intake) flush(old time.Time) error {
	n := in.session
	if in.widens() && n.steering.TryLock() { // before the acks nothing is on its way
		err := in.widenLocked()
		n.steering.Unlock()
		n.fail(err)
	}
	multiple, singles := in.tags.flush(old)
	in.arm()
	if multiple == 0 && len(singles) == 0 {
		return nil
	}
	defer n.guard()()
	in.flushed = time.Now()
	n.wire.gather()
	var err error
	if multiple > 0 {
		err = in.ch.Ack(multiple, true)
	}
	for _, tag := range singles {
		if err == nil {
			err = in.ch.Ack(tag, false)
		}
	}
	if err = cmp.Or(err, n.wire.flush()); err != nil {
		return n.broke(err)
	}
	return nil
}

// arm has the acks that wait sent later; the caller holds the lock.
func (in *intake) arm() {
	if len(in.tags.waiting) > 0 && !in.armed {
		in.armed = true
		time.AfterFunc(in.session.source.broker.tick, in.flushLater)
	}
}

func (in *intake) flushLater() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.armed = false
	if in.isOpen() {
		in.flush(time.Now().Add(-in.session.source.broker.tick))
	}
}

// finish gives back what is unsettled. The consumer ends first, or the broker
// would deliver to it again what it gives back, only to charge it for the
// loss of the connection. An ordered intake gives nothing back by itself: the end
// of the connection does, as the end of the channel does after shut.
func (in *intake) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.isOpen() {
		defer in.session.guard()()
		in.granted.Store(0) // no flush is to widen it
		if !in.ordered {
			in.ch.Cancel(in.tag(), true)
		}
		in.flush(time.Now())
		if !in.ordered {
			in.ch.Nack(0, true, true) // everything that is unacked
		}
	}
	in.finished = true
}
