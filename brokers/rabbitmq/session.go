package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// session is one connection of a source, with one channel for all of its
// queues. Delivery tags mean something on their channel only, so each delivery
// knows its session, and what belongs to an older one is never sent.
type session struct {
	*link
	source  *source
	ch      *amqp.Channel
	intakes []*intake
	growing atomic.Bool

	// ack guards the channel for everything that settles: between the decision
	// which tags to send and the sending nobody else may send any.
	ack       sync.Mutex
	tags      *tags
	consumers []string
	straggler *time.Timer // flushes acks that wait for an earlier tag
	armed     bool
	ended     bool // nothing is settled on the channel any more

	leases  sync.Mutex
	held    []*token // in the order of their deadlines, with settled ones in between
	compact int      // length at which to drop those
}

// intake is what a session has of a feed: its consumers, and how many
// deliveries of them are unsettled.
type intake struct {
	*feed
	number  int
	granted atomic.Int64 // the prefetch of the consumers together
	out     atomic.Int64
	full    atomic.Bool // nearly all that is granted was out at once
}

// firstPrefetch is where prefetching begins. More than a worker uses would
// keep messages from other workers, and be charged to the messages if this one
// dies.
const firstPrefetch = 200

// state is how far the settlement of a delivery is.
type state = int32

const (
	held state = iota
	settling
	settled
	lost
)

// token is what a delivery carries for its source.
type token struct {
	state    atomic.Int32
	session  *session
	tag      uint64
	intake   *intake
	count    int       // deliveries of this copy that the broker has counted
	deadline time.Time // after which it is the broker's again
	copied   bool      // the copy of a retry is confirmed; belongs to whoever is settling
}

// lose takes the delivery from whoever holds it, unless it is being settled.
func (t *token) lose() bool {
	if !t.state.CompareAndSwap(held, lost) {
		return false
	}
	t.intake.out.Add(-1)
	return true
}

// stragglers is how long an ack may wait for those of earlier deliveries, so
// that they travel as one.
const stragglers = 10 * time.Millisecond

// begin connects, declares t unless it is nil, and consumes.
func (s *source) begin(ctx context.Context, t *topology) (*session, error) {
	l, err := s.broker.dial(ctx, "consumer")
	if err != nil {
		return nil, err
	}
	n := &session{link: l, source: s, tags: newTags(), compact: 256}
	n.straggler = time.AfterFunc(time.Hour, n.flushStragglers)
	n.straggler.Stop()
	stop := context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	defer stop()
	if t != nil {
		err = l.establish(*t, s.broker.options.Verify)
	}
	if err == nil {
		err = n.consume()
	}
	if err != nil {
		n.finish(context.WithoutCancel(ctx), err)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	n.sweep()
	return n, nil
}

// consume opens the channel and starts a consumer for every queue.
func (n *session) consume() error {
	err := n.call(func() (err error) {
		n.ch, err = n.conn.Channel()
		return err
	})
	if err != nil {
		return fmt.Errorf("open a channel: %w", explain(err))
	}
	closed := n.ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := n.ch.NotifyCancel(make(chan string, 1))
	n.work.Go(func() { n.watchChannel(closed, cancelled) })
	prefetch := min(firstPrefetch, n.source.prefetch)
	err = n.call(func() error { return n.ch.Qos(prefetch, 0, false) })
	for number, f := range n.source.feeds {
		if err != nil {
			return err
		}
		in := &intake{feed: f, number: number}
		in.granted.Store(int64(prefetch))
		n.intakes = append(n.intakes, in)
		err = n.consumer(in, prefetch)
	}
	return err
}

// consumer starts one more consumer, with the prefetch that is in force.
func (n *session) consumer(in *intake, granted int) error {
	var deliveries <-chan amqp.Delivery
	tag := fmt.Sprintf("%d.%d", in.number, granted)
	err := n.call(func() (err error) {
		deliveries, err = n.ch.Consume(in.queue, tag, false, false, false, false, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("consume from queue %q: %w", in.queue, explain(err))
	}
	n.work.Go(func() { n.pump(in, deliveries) })
	n.ack.Lock()
	defer n.ack.Unlock()
	n.consumers = append(n.consumers, tag)
	return nil
}

// grow doubles the prefetch of a queue when the broker has sent all that it
// may and the worker has taken all of that: then the worker waits for the
// network. A worker that leaves something in its buffer has enough. An
// existing consumer keeps the prefetch that it began with, so another one
// takes the rest. The caller holds the lock of the source.
func (n *session) grow() {
	if n.growing.Load() {
		return
	}
	for _, in := range n.intakes {
		granted := int(in.granted.Load())
		more := min(granted, n.source.prefetch-granted)
		if more <= 0 || len(in.items) > 0 || !in.full.Swap(false) {
			continue
		}
		n.growing.Store(true)
		n.work.Go(func() {
			defer n.growing.Store(false)
			err := n.call(func() error { return n.ch.Qos(more, 0, false) })
			if err == nil {
				err = n.consumer(in, int(in.granted.Add(int64(more))))
			}
			if err != nil && n.ctx.Err() == nil {
				n.end(err)
			}
		})
		return
	}
}

// watchChannel ends the session when the broker closes the channel or cancels
// a consumer, which it does when a queue is deleted.
func (n *session) watchChannel(closed <-chan *amqp.Error, cancelled <-chan string) {
	select {
	case err := <-closed:
		if err != nil {
			n.end(fmt.Errorf("the broker closed the channel: %w", explain(err)))
		} else {
			n.end(errors.New("the channel is closed"))
		}
	case tag, ok := <-cancelled:
		number, _, _ := strings.Cut(tag, ".")
		if i, err := strconv.Atoi(number); ok && err == nil && i < len(n.source.feeds) {
			n.end(fmt.Errorf("the broker cancelled the consumer of queue %q: the queue was deleted or moved, or a message was held for too long",
				n.source.feeds[i].queue))
		} else {
			n.end(errors.New("the channel is closed"))
		}
	case <-n.ctx.Done():
	}
	n.source.wake()
}

// pump moves what the broker sends into the source's buffer. What it takes
// after the end of the session nobody will ever see.
func (n *session) pump(in *intake, deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		t := &token{
			session:  n,
			tag:      d.DeliveryTag,
			intake:   in,
			count:    count(&d),
			deadline: time.Now().Add(n.source.caps.Lease),
		}
		if out, granted := in.out.Add(1), in.granted.Load(); out >= granted-granted/4 {
			in.full.Store(true)
		}
		n.hold(t)
		n.source.push(n, in.feed, item{delivery: d, token: t})
	}
}

// hold notes a token for the sweep.
func (n *session) hold(t *token) {
	n.leases.Lock()
	defer n.leases.Unlock()
	if len(n.held) >= n.compact {
		n.held = unsettled(n.held)
		n.compact = 2*len(n.held) + 256
	}
	n.held = append(n.held, t)
}

func unsettled(ts []*token) []*token {
	kept := make([]*token, 0, len(ts)/2+1)
	for _, t := range ts {
		if state := t.state.Load(); state == held || state == settling {
			kept = append(kept, t)
		}
	}
	return kept
}

// sweep gives back what was held until the end of its lease, before the broker
// takes it back together with everything else of the channel.
func (n *session) sweep() {
	interval := min(max(n.source.caps.Lease/64, 50*time.Millisecond), 10*time.Second)
	n.work.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				n.source.refresh(n)
				n.expire(time.Now())
			case <-n.ctx.Done():
				return
			}
		}
	})
}

func (n *session) expire(now time.Time) {
	n.leases.Lock()
	ts := unsettled(n.held)
	n.held = ts
	n.leases.Unlock()
	for _, t := range ts {
		if t.deadline.Before(now) && t.lose() {
			n.giveBack(t)
		}
	}
}

// giveBack returns a message to its queue.
func (n *session) giveBack(t *token) error {
	n.ack.Lock()
	defer n.ack.Unlock()
	if n.ended || n.ctx.Err() != nil {
		return n.over()
	}
	defer n.guard()()
	if err := n.ch.Nack(t.tag, false, true); err != nil {
		return n.broke(err)
	}
	n.tags.gone(t.tag) // not before: an ack of later tags would include it
	return nil
}

// ackAll acks the deliveries of ts. Those behind an earlier delivery that is
// still held may wait a moment.
func (n *session) ackAll(ts []*token) error {
	n.ack.Lock()
	defer n.ack.Unlock()
	if n.ended || n.ctx.Err() != nil {
		return n.over()
	}
	for _, t := range ts {
		n.tags.ack(t.tag)
	}
	return n.flush(len(n.tags.waiting) > n.source.prefetch/4)
}

// flush sends acks; the caller holds the lock.
func (n *session) flush(all bool) error {
	multiple, singles := n.tags.flush(all)
	if multiple > 0 || len(singles) > 0 {
		defer n.guard()()
	}
	if multiple > 0 {
		if err := n.ch.Ack(multiple, true); err != nil {
			return n.broke(err)
		}
	}
	for _, tag := range singles {
		if err := n.ch.Ack(tag, false); err != nil {
			return n.broke(err)
		}
	}
	if len(n.tags.waiting) > 0 && !n.armed {
		n.armed = true
		n.straggler.Reset(stragglers)
	}
	return nil
}

func (n *session) flushStragglers() {
	n.ack.Lock()
	defer n.ack.Unlock()
	n.armed = false
	if !n.ended && n.ctx.Err() == nil {
		n.flush(true)
	}
}

// over is the error of a settlement in a session that has ended. The end of the
// publisher's connection is none of these: a delivery outlives it.
func (n *session) over() error {
	if cause := context.Cause(n.ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, brokers.ErrLeaseLost)
	}
	return brokers.ErrLeaseLost
}

// broke ends the session after a failed write: what the broker has of it is
// unknown, and it will deliver again what it does not have.
func (n *session) broke(err error) error {
	n.end(fmt.Errorf("settle: %w", err))
	return n.over()
}

// finish gives back what is unsettled and ends the session. The consumers end
// first, or the broker would deliver to them again what they give back, only to
// charge it for the loss of the connection. When ctx ends, the broker learns no
// more than that the connection is gone.
func (n *session) finish(ctx context.Context, cause error) {
	stop := context.AfterFunc(ctx, func() { n.end(cause) })
	defer stop()
	n.ack.Lock()
	if n.ch != nil && !n.ended && n.ctx.Err() == nil {
		release := n.guard()
		for _, tag := range n.consumers {
			n.ch.Cancel(tag, true)
		}
		n.flush(true)
		n.ch.Nack(0, true, true) // everything that is unacked
		release()
	}
	n.ended = true
	n.straggler.Stop()
	n.ack.Unlock()
	n.close(ctx, cause)
}
