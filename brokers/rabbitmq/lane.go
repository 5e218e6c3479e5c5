package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lane is one channel of a session. Delivery tags mean something on their
// channel only. A session has several, because the broker looks for the tag of
// an ack from the oldest unacked delivery on: behind a thousand that are held,
// every ack would cost it a thousand steps.
type lane struct {
	session *session
	group   *group
	ch      *amqp.Channel

	// mu guards the channel for everything that settles: between the decision
	// which tags to send and the sending nobody else may send any.
	mu        sync.Mutex
	tags      *tags
	consumers map[*intake]granted
	batch     int // acks that do not wait for more
	flushed   time.Time
	later     *time.Timer // flushes acks that wait
	armed     bool
	starved   *time.Timer // flushes acks that the broker waits for
	starving  bool
	ended     bool // nothing is settled on the channel any more
}

const (
	// ackPace is how long an ack may wait for others, so that they travel as
	// one, when another has just been sent.
	ackPace = 5 * time.Millisecond

	// stragglerPace is how long at least an ack waits for those of earlier
	// deliveries, and twice that at most: longer than the copy of a retry takes on
	// a busy broker. Retries wait for less, since what is held until it is due
	// takes longer anyway.
	stragglerPace      = 100 * time.Millisecond
	retryStragglerPace = 20 * time.Millisecond

	// starvedPace is for how long acks wait for those of earlier deliveries when
	// so many do that little is left of all that is granted for a queue. That the
	// broker waits meanwhile costs it less than an ack for each of them, if the
	// copy that they wait for is confirmed by then.
	starvedPace = 50 * time.Millisecond

	// ackShare is the share of a prefetch whose acks do not wait for more, or
	// the broker would wait for them.
	ackShare = 2
)

// paces are for how long acks wait for those of earlier deliveries.
type paces struct{ stragglers, retryStragglers, starved time.Duration }

// group has the lanes for the queues of one kind, or for one ordered queue.
type group struct {
	lanes   []*lane
	pace    time.Duration // how long acks wait for stragglers
	ordered bool          // the lanes belong to one ordered intake
}

// open opens a channel.
func (n *session) open(g *group) (*lane, error) {
	l := &lane{session: n, group: g, tags: newTags(), consumers: make(map[*intake]granted), batch: mostPrefetch}
	err := n.call(func() (err error) {
		l.ch, err = n.conn.Channel()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", explain(err))
	}
	l.later = time.AfterFunc(time.Hour, l.flushLater)
	l.later.Stop()
	l.starved = time.AfterFunc(time.Hour, l.flushStarved)
	l.starved.Stop()
	closed := l.ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := l.ch.NotifyCancel(make(chan string, 1))
	n.work.Go(func() { l.watch(closed, cancelled) })
	return l, nil
}

// watch ends the session when the broker closes the channel. If the broker ends
// a consumer, as it does when a queue is deleted, watch marks its intake.
func (l *lane) watch(closed <-chan *amqp.Error, cancelled <-chan string) {
	n := l.session
	for open := true; open; { // the library blocks until the end of a consumer is read
		select {
		case err := <-closed:
			open = false
			switch {
			case l.isEnded(): // by shut
				return
			case err != nil:
				n.end(fmt.Errorf("the broker closed the channel: %w", explain(err)))
			default:
				n.end(errors.New("the channel is closed"))
			}
		case tag, ok := <-cancelled:
			number, _, _ := strings.Cut(tag, ".")
			if i, err := strconv.Atoi(number); ok && err == nil && i < len(n.intakes) {
				n.cancelled(n.intakes[i])
			} else {
				cancelled = nil
			}
		}
	}
	n.source.woken.Wake()
}

// granted is a consumer and its prefetch.
type granted struct {
	tag      string
	prefetch int
}

// consume starts a consumer with a prefetch of its own, in place of one that lingers.
func (l *lane) consume(in *intake, prefetch int) error {
	if err := l.cancel(in); err != nil {
		return err
	}
	l.mu.Lock()
	in.window.begin()
	l.mu.Unlock()
	g, err := l.start(in, prefetch)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.consumers[in] = g
	l.rebatch()
	return nil
}

// start asks the broker for a consumer. No lock need be held: acks need not wait
// for that. It goes on with what is unacked of an earlier one, which has its tag
// then, and counts for it; or else its tag is new, and sorts behind the earlier ones:
// RabbitMQ 3.10 requeues the deliveries of a channel in the order of its tags.
func (l *lane) start(in *intake, prefetch int) (granted, error) {
	n := l.session
	in.consumers++
	g := granted{fmt.Sprintf("%d.%06d", in.number, in.consumers), prefetch}
	unacked := in.unackedOn(l)
	if in.merges {
		g.tag = strconv.Itoa(in.number)
		g.prefetch = room(prefetch, int(unacked.Load()))
	}
	var deliveries <-chan amqp.Delivery
	err := n.call(func() (err error) {
		if err = l.ch.Qos(g.prefetch, 0, false); err == nil {
			deliveries, err = l.ch.Consume(in.queue, g.tag, false, false, false, false, n.source.consuming())
		}
		return err
	})
	if err != nil {
		return g, fmt.Errorf("consume from queue %q: %w", in.queue, explain(err))
	}
	in.granted.Add(int64(g.prefetch))
	in.pumps.Add(1)
	n.work.Go(func() {
		defer in.pumps.Done()
		l.pump(in, deliveries, unacked)
	})
	return g, nil
}

// room is the prefetch of a consumer that goes on with unacked deliveries and may
// have so many more. The broker takes none for no end, and refuses what is above the
// most.
func room(more, unacked int) int { return min(max(1, more+unacked), mostPrefetch) }

// rebatch makes acks wait for no more than the least prefetch allows; the caller
// holds the lock.
func (l *lane) rebatch() {
	l.batch = mostPrefetch
	for _, g := range l.consumers {
		l.batch = min(l.batch, max(1, g.prefetch/ackShare))
	}
}

// pump moves what the broker sends into the source's buffer. What it takes
// after the end of the session nobody will ever see.
func (l *lane) pump(in *intake, deliveries <-chan amqp.Delivery, unacked *atomic.Int64) {
	n := l.session
	for d := range deliveries {
		unacked.Add(1)
		t := &token{
			lane:     l,
			tag:      d.DeliveryTag,
			intake:   in,
			unacked:  unacked,
			deadline: time.Now().Add(n.source.caps.Lease),
		}
		if !n.source.readOnly { // what others did with it says nothing about it here
			t.count = count(&d)
		}
		if out, granted := in.out.Add(1), in.granted.Load(); out >= granted-granted/4 {
			in.full.Store(true)
		}
		in.window.arrived(d.DeliveryTag, d.Redelivered && !t.often())
		in.note(len(d.Body))
		n.hold(t)
		n.source.push(n, in.feed, item{delivery: d, token: t})
	}
}

// cancel ends a consumer, if there is one. What it has delivered is still the
// worker's.
func (l *lane) cancel(in *intake) error {
	l.mu.Lock()
	g, found := l.consumers[in]
	delete(l.consumers, in)
	l.rebatch()
	l.mu.Unlock()
	if !found {
		return nil
	}
	in.granted.Add(-int64(g.prefetch))
	return l.end(in, g.tag)
}

// end has the broker end a consumer.
func (l *lane) end(in *intake, tag string) error {
	if err := l.session.call(func() error { return l.ch.Cancel(tag, false) }); err != nil {
		return fmt.Errorf("cancel the consumer of queue %q: %w", in.queue, explain(err))
	}
	return nil
}

// giveBack returns a message to its queue, or has that dead-letter it.
func (l *lane) giveBack(t *token, requeue bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.session.ctx.Err() != nil {
		return l.session.over()
	}
	defer l.session.guard()()
	if err := l.ch.Nack(t.tag, false, requeue); err != nil {
		return l.session.broke(err)
	}
	t.unacked.Add(-1)
	t.intake.returned(t.tag)
	l.tags.gone(t.tag) // not before: an ack of later tags would include it
	return nil
}

// ack acks the deliveries of ts: at once if they are urgent or none was acked
// just now, and otherwise with those that follow closely. What was delivered
// before waits for nothing: where one message kills its worker again and again,
// the others would be charged for that each time.
func (l *lane) ack(ts []*token, urgent bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.session.ctx.Err() != nil {
		return l.session.over()
	}
	for _, t := range ts {
		l.tags.ack(t.tag, t.intake, t.unacked)
	}
	again := slices.ContainsFunc(ts, func(t *token) bool { return t.count > 0 })
	if again || urgent || len(l.tags.waiting) >= l.batch || time.Since(l.flushed) >= ackPace {
		stragglers := 0
		if again {
			stragglers = len(l.tags.waiting)
		}
		if err := l.flush(stragglers); err != nil {
			return err
		}
	}
	if !l.armed && l.tags.age() {
		l.armed = true
		l.later.Reset(l.group.pace)
	}
	if !l.starving && slices.ContainsFunc(ts, func(t *token) bool { return t.intake.starves() }) {
		l.starving = true
		l.starved.Reset(l.session.source.broker.paces.starved)
	}
	return nil
}

// flush sends acks, also those of so many stragglers that wait for an earlier
// delivery; the caller holds the lock.
func (l *lane) flush(stragglers int) error {
	l.widen()
	multiple, singles := l.tags.flush(stragglers)
	if multiple == 0 && len(singles) == 0 {
		return nil
	}
	n := l.session
	defer n.guard()()
	l.flushed = time.Now()
	n.wire.gather()
	var err error
	if multiple > 0 {
		err = l.ch.Ack(multiple, true)
	}
	for _, tag := range singles {
		if err == nil {
			err = l.ch.Ack(tag, false)
		}
	}
	if err = cmp.Or(err, n.wire.flush()); err != nil {
		return n.broke(err)
	}
	return nil
}

func (l *lane) flushLater() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.ended || l.session.ctx.Err() != nil || l.flush(l.tags.old) != nil {
		return
	}
	if l.tags.age() {
		l.armed = true
		l.later.Reset(l.group.pace)
	}
}

func (l *lane) flushStarved() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starving = false
	if !l.ended && l.session.ctx.Err() == nil && slices.ContainsFunc(l.tags.waiting, func(w waiting) bool { return w.intake.starves() }) {
		l.flush(len(l.tags.waiting))
	}
}

// finish gives back what is unsettled. The consumers end first, or the broker
// would deliver to them again what they give back, only to charge it for the
// loss of the connection. An ordered lane gives nothing back by itself: the end
// of the connection does, as the end of the channel does after shut.
func (l *lane) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.session.ctx.Err() == nil {
		release := l.session.guard()
		if !l.group.ordered {
			for _, g := range l.consumers {
				l.ch.Cancel(g.tag, true)
			}
			clear(l.consumers)
		}
		l.flush(len(l.tags.waiting))
		if !l.group.ordered {
			l.ch.Nack(0, true, true) // everything that is unacked
		}
		release()
	}
	l.retire()
}

// retire ends the acks of the lane and stops its timers. The caller holds the
// lock.
func (l *lane) retire() {
	l.ended = true
	l.later.Stop()
	l.starved.Stop()
}

func (l *lane) isEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}
