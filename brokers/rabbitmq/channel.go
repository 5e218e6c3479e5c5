package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// channel is one of a session, for the consumers of some intakes. Delivery tags
// mean something on their channel only. Queues of retries and of topics share none:
// retries are held until they are due, and a delivery behind a held one cannot be
// acked together with others.
type channel struct {
	session *session
	key     int // among the channels of the session
	ch      *amqp.Channel
	ordered bool // it belongs to one ordered intake

	// mu guards the channel for everything that settles: between the decision
	// which tags to send and the sending nobody else may send any.
	mu      sync.Mutex
	tags    *tags
	intakes []*intake // that have a consumer
	flushed time.Time
	later   *time.Timer // flushes acks that wait
	armed   bool
	ended   atomic.Bool // nothing is settled on the channel any more
}

const (
	// ackPace is how long an ack may wait for others, so that they travel as
	// one, when another has just been sent.
	ackPace = 5 * time.Millisecond

	// tick is how long at least an ack waits for those of earlier deliveries, and
	// twice that at most: mostly longer than the copy of a retry takes.
	tick = 20 * time.Millisecond

	// mostChannels is how many channels the queues of topics have, and those of
	// retries: enough that few queues share one, whose acks would wait for each other.
	mostChannels = 10
)

// channelOf returns the channel of an intake, and opens it if it is not there.
func (n *session) channelOf(in *intake) (*channel, error) {
	if in.channel != nil {
		return in.channel, nil
	}
	key := in.number % (2 * mostChannels) // an even number, as topics have, or an odd one
	if in.ordered {
		key = -1 - in.number
	}
	n.mu.Lock()
	c := n.channels[key]
	n.mu.Unlock()
	if c == nil {
		c = &channel{session: n, key: key, ordered: in.ordered, tags: newTags()}
		err := n.call(func() (err error) {
			c.ch, err = n.conn.Channel()
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("open a channel: %w", explain(err))
		}
		c.later = time.AfterFunc(time.Hour, c.flushLater)
		c.later.Stop()
		closed := c.ch.NotifyClose(make(chan *amqp.Error, 1))
		n.work.Go(func() { c.watch(closed) })
		n.mu.Lock()
		n.channels[key] = c
		n.mu.Unlock()
	}
	in.channel = c
	return c, nil
}

// watch ends the session when the broker closes the channel.
func (c *channel) watch(closed <-chan *amqp.Error) {
	err := <-closed
	if c.ended.Load() { // by shut
		return
	}
	n := c.session
	if err != nil {
		n.end(fmt.Errorf("the broker closed the channel: %w", explain(err)))
	} else {
		n.end(errors.New("the channel is closed"))
	}
	n.source.woken.Wake()
}

// serve gives in a consumer with this prefetch, instead of one that it has.
func (n *session) serve(in *intake, prefetch int) error {
	c, err := n.channelOf(in)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serve(in, prefetch)
}

// serve is [session.serve]; the caller holds the lock. The next consumer goes on with
// what is unacked of the one before if it has its tag, and counts that for its
// prefetch. Where it cannot, its tag is new, and sorts behind the earlier ones:
// RabbitMQ 3.10 requeues the deliveries of a channel in the order of its tags.
func (c *channel) serve(in *intake, prefetch int) error {
	if c.ended.Load() { // by finish
		return nil
	}
	if err := c.cancel(in); err != nil {
		return err
	}
	in.pump.Wait()
	tag := strconv.Itoa(in.number)
	if !in.merges {
		in.consumers++
		tag = fmt.Sprintf("%d.%06d", in.number, in.consumers)
		in.base = in.last.Load()
		in.stale.Store(in.unacked.Load())
	}
	prefetch = min(max(prefetch, 1), mostPrefetch) // 0 would be without end
	n := c.session
	var deliveries <-chan amqp.Delivery
	err := n.call(func() (err error) {
		if err = c.ch.Qos(prefetch, 0, false); err == nil {
			deliveries, err = c.ch.Consume(in.queue, tag, false, false, false, false, n.source.consuming())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("consume from queue %q: %w", in.queue, explain(err))
	}
	in.tag = tag
	in.granted.Store(int64(prefetch))
	in.wanted.Store(0)
	c.intakes = append(c.intakes, in)
	in.pump.Add(1)
	n.work.Go(func() {
		defer in.pump.Done()
		c.pump(in, deliveries)
	})
	return nil
}

// cancel ends the consumer of in, if there is one. What it has delivered is still
// the worker's. The caller holds the lock.
func (c *channel) cancel(in *intake) error {
	tag := in.tag
	if tag == "" {
		return nil
	}
	in.tag = ""
	in.granted.Store(0)
	c.intakes = slices.DeleteFunc(c.intakes, func(other *intake) bool { return other == in })
	if err := c.session.call(func() error { return c.ch.Cancel(tag, false) }); err != nil {
		return fmt.Errorf("cancel the consumer of queue %q: %w", in.queue, explain(err))
	}
	return nil
}

// leave ends the consumer of in, or its channel, with which all that is unacked
// goes back.
func (n *session) leave(in *intake, shut bool) error {
	c := in.channel
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if shut {
		return c.shut(in)
	}
	err := c.cancel(in)
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

// widen gives the first consumer that can have it the prefetch that it wants. The
// caller holds the lock, and steering.
func (c *channel) widen() error {
	for _, in := range c.intakes {
		if !in.widens() || c.session.isGone(in) {
			continue
		}
		return c.serve(in, int(in.wanted.Load()))
	}
	return nil
}

// pump moves what the broker sends into the source's buffer. What it takes
// after the end of the session nobody will ever see. If the broker ends the consumer,
// as it does when a queue is deleted, pump marks the intake.
func (c *channel) pump(in *intake, deliveries <-chan amqp.Delivery) {
	n := c.session
	for d := range deliveries {
		t := &token{delivery: d, channel: c, tag: d.DeliveryTag, intake: in, deadline: time.Now().Add(n.source.caps.Lease)}
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
	if in.granted.Load() > 0 && !c.ch.IsClosed() {
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
func (c *channel) giveBack(t *token, requeue bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() || c.session.ctx.Err() != nil {
		return c.session.over()
	}
	defer c.session.guard()()
	if err := c.ch.Nack(t.tag, false, requeue); err != nil {
		return c.session.broke(err)
	}
	t.intake.returned(t.tag)
	c.tags.gone(t.tag) // not before: an ack of later tags would include it
	return nil
}

// ack acks deliveries: at once if they are urgent, if none was acked just
// now, or if the broker would soon wait for them; and otherwise with those that
// follow closely. What was delivered before waits for nothing: where one message
// kills its worker again and again, the others would be charged for that each time.
func (c *channel) ack(entries []*claimed, urgent bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() || c.session.ctx.Err() != nil {
		return c.session.over()
	}
	now := time.Now()
	again := false
	for _, e := range entries {
		c.tags.ack(e.tag, e.intake, now)
		again = again || e.count > 0
		urgent = urgent || 2*len(c.tags.waiting) >= int(e.intake.granted.Load())
	}
	switch {
	case again:
		return c.flush(now)
	case urgent || now.Sub(c.flushed) >= ackPace:
		return c.flush(time.Time{})
	}
	c.arm()
	return nil
}

// flush sends acks, also those since before old that wait for an earlier delivery;
// the caller holds the lock.
func (c *channel) flush(old time.Time) error {
	// Before the acks nothing is on its way.
	if n := c.session; slices.ContainsFunc(c.intakes, (*intake).widens) && n.steering.TryLock() {
		err := c.widen()
		n.steering.Unlock()
		n.fail(err)
	}
	multiple, singles := c.tags.flush(old)
	c.arm()
	if multiple == 0 && len(singles) == 0 {
		return nil
	}
	n := c.session
	defer n.guard()()
	c.flushed = time.Now()
	n.wire.gather()
	var err error
	if multiple > 0 {
		err = c.ch.Ack(multiple, true)
	}
	for _, tag := range singles {
		if err == nil {
			err = c.ch.Ack(tag, false)
		}
	}
	if err = cmp.Or(err, n.wire.flush()); err != nil {
		return n.broke(err)
	}
	return nil
}

// arm has the acks that wait sent later; the caller holds the lock.
func (c *channel) arm() {
	if len(c.tags.waiting) > 0 && !c.armed {
		c.armed = true
		c.later.Reset(c.session.source.broker.tick)
	}
}

func (c *channel) flushLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	if !c.ended.Load() && c.session.ctx.Err() == nil {
		c.flush(time.Now().Add(-c.session.source.broker.tick))
	}
}

// finish gives back what is unsettled. The consumers end first, or the broker
// would deliver to them again what they give back, only to charge it for the
// loss of the connection. An ordered channel gives nothing back by itself: the end
// of the connection does, as the end of the channel does after shut.
func (c *channel) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended.Load() && c.session.ctx.Err() == nil {
		release := c.session.guard()
		for _, in := range c.intakes {
			in.granted.Store(0)
			if !c.ordered {
				c.ch.Cancel(in.tag, true)
			}
		}
		c.intakes = nil // none is to be widened by flush
		c.flush(time.Now())
		if !c.ordered {
			c.ch.Nack(0, true, true) // everything that is unacked
		}
		release()
	}
	c.retire()
}

// retire ends the acks of the channel and stops its timer. The caller holds the
// lock.
func (c *channel) retire() {
	c.ended.Store(true)
	c.later.Stop()
}
