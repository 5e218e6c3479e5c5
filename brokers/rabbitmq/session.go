package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// session is one connection of a source. Each delivery knows its session, and
// what belongs to an older one is never sent.
type session struct {
	*link
	source   *source
	intakes  []*intake
	steering sync.Mutex    // held while consumers start, change or end
	kick     adapter.Waker // makes steer look at the intakes
	swept    time.Time     // when steer last looked for leases that end

	// Guarded by the lock of the source.
	suspects []*token
	trials   []*token  // of suspects that were handed out lately
	tried    time.Time // when trials began

	leases  sync.Mutex
	held    []*token // in the order of their deadlines, with settled ones in between
	compact int      // length at which to drop those
}

// intake is what a session has of a feed: a channel, one consumer at a time, and how
// many deliveries of it are unsettled. Only steer starts, changes and ends consumers,
// except that an intake gives its consumer a larger prefetch before it sends acks.
//
// Delivery tags mean something on their channel only. If queues shared one, the acks of
// one would wait for the unsettled deliveries of another.
type intake struct {
	*feed
	session *session

	// mu guards the channel for everything that settles: between the decision
	// which tags to send and the sending nobody else may send any.
	mu        sync.Mutex
	ch        *amqp.Channel // nil until the first consumer, and after shut
	finished  bool          // nothing is settled on the channel any more
	tags      *tags
	flushed   time.Time
	armed     bool // flushLater is about to run
	consumers int  // so many there were, where each needs another tag
	pump      sync.WaitGroup
	back      int       // messages that went back when the last channel ended
	shutAt    time.Time // when that was

	granted atomic.Int64  // the prefetch of the consumer; 0 if there is none
	wanted  atomic.Int64  // the prefetch that it should have; 0 if that one will do
	unacked atomic.Int64  // deliveries of all its consumers that are unsettled on the wire
	out     atomic.Int64  // of these, the ones that Settle has not settled
	settled atomic.Int64  // deliveries so far
	largest atomic.Int64  // of the messages lately, in bytes
	last    atomic.Uint64 // the newest tag
	again   atomic.Bool   // the newest delivery is a redelivery that may go back once more

	// Of the consumers before, where deliveries do not pass to the next one.
	base  uint64       // their newest tag; guarded by the lock of the channel
	stale atomic.Int64 // their deliveries that are unacked

	// Guarded by the lock of the source.
	items   []*token    // what waits to be handed out, without suspects unless it is ordered
	taken   int         // messages handed out since the consumer started anew
	trial   *token      // of an ordered one: the suspect that was handed out last
	tried   time.Time   // when that was
	mark    int64       // settled at the last look of limit
	marked  time.Time   // when that was
	careful time.Time   // until when the prefetch does not grow
	spilled []*token    // deliveries that found no room
	parked  bool        // there is no consumer, or one for the messages that the worker still handles
	ended   bool        // the broker has ended the consumer
	dying   time.Time   // until when the queue may be in deletion after that; written before ended
	spills  atomic.Bool // deliveries find no room, until the next consumer starts
}

const (
	// scout is the prefetch with which a consumer begins. The broker charges the end
	// of a session to all that was prefetched, also to what nobody has taken yet: if
	// the first message of a queue is the one that kills its workers, it alone is
	// charged. More than a worker uses would keep messages from other workers, too.
	scout = 1

	// ahead is how much work a prefetch should be: as long as an ack may wait, so
	// that the broker need not.
	ahead = 2 * tick

	// fastPrefetch is up to where that makes it grow, and mostPrefetch the largest
	// one that the protocol can say.
	fastPrefetch = 4000
	mostPrefetch = 65535
)

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
	delivery amqp.Delivery // until it is handed out
	tag      uint64
	intake   *intake
	count    int         // deliveries of this copy that the broker has counted
	deadline time.Time   // after which it is the broker's again
	begun    atomic.Bool // it has been handed out
	renews   bool        // a release is done by a copy; likewise
}

// pending reports whether the delivery is neither settled nor lost.
func (t *token) pending() bool {
	state := t.state.Load()
	return state == held || state == settling
}

// lose takes the delivery from whoever holds it, unless it is being settled.
func (t *token) lose() bool {
	if !t.state.CompareAndSwap(held, lost) {
		return false
	}
	t.intake.out.Add(-1)
	return true
}

// begin connects, declares t unless it is nil, and consumes.
func (s *source) begin(ctx context.Context, t *topology) (*session, error) {
	l, err := s.broker.dial(ctx, "consumer")
	if err != nil {
		return nil, err
	}
	n := &session{link: l, source: s, kick: adapter.NewWaker(), compact: 256}
	context.AfterFunc(l.ctx, s.woken.Wake)
	s.mu.Lock()
	var careful time.Time
	if s.brief > 0 {
		d := trialPace << min(s.brief, 5)
		careful = time.Now().Add(d)
		time.AfterFunc(d, s.woken.Wake)
	}
	for _, f := range s.feeds {
		n.intakes = append(n.intakes, &intake{feed: f, session: n, careful: careful, parked: !f.paused.IsZero()})
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	defer stop()
	if t != nil {
		var found survey
		found, err = l.establish(ctx, *t, s.broker)
		s.caps.Findings = found.findings
		for _, f := range s.feeds {
			s.learn(f, l, found)
		}
	}
	for _, in := range n.intakes {
		if err == nil && !in.parked {
			err = in.start()
		}
	}
	if err != nil {
		n.finish(context.WithoutCancel(ctx), err)
		s.note(0)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	n.work.Go(n.steer)
	return n, nil
}

// learn notes the arguments of the queue of f that matter to its consumers.
func (s *source) learn(f *feed, l *link, found survey) {
	is, exists := found.of(f.queue)
	f.single = is.args[argSingle] == true
	f.merges = l.merges && !f.single && (!exists || is.kind == typeQuorum)
	f.kept.Store(s.sub.DeadLetters[f.topic] != "" && (!exists || is.keeps()))
	f.deleted.Store(false)
}

// next returns what is to be done about the consumer of in, or when to look
// again. The lock of the source is held.
func (in *intake) next(now time.Time) (change func(*intake) error, again time.Time) {
	n, f, s := in.session, in.feed, in.session.source
	consumes, stale := in.granted.Load() > 0, n.isStale(in, now)
	if in.ordered && stale {
		in.spills.Store(true)
	}
	switch {
	case in.ended:
		change, again = (*intake).start, f.again
	case consumes && in.spills.Load():
		if in.ordered && n.isBusy(in) { // its channel ends when the worker has settled all but the buffer
			return nil, again
		}
		change = (*intake).park
	case in.parked && f.paused.IsZero() && !s.isIdle(now):
		change, again = (*intake).start, f.again
	case in.parked:
		if !consumes {
			return nil, again
		}
		if change = (*intake).park; n.isBusy(in) {
			again = now.Add(s.broker.grace)
		}
	case in.ordered:
		// It keeps its consumer until its buffer is stale: the buffer goes back as a
		// whole, and the broker counts a delivery for each message.
	case !f.paused.IsZero():
		change, again = (*intake).park, f.paused.Add(s.broker.grace)
	case stale:
		change = (*intake).park
	}
	if change == nil && in.widens() {
		change = (*intake).widen
	}
	if now.Before(again) {
		change = nil
	}
	return change, again
}

// isBusy reports whether the worker has taken messages of in that are not settled.
func (n *session) isBusy(in *intake) bool {
	queued, _ := n.buffered(in)
	return int(in.out.Load()) > queued
}

// steer starts, changes and ends the consumers of the session, and gives back
// what was held until the end of its lease, before the broker takes it back
// together with everything else of the channel.
func (n *session) steer() {
	every := min(max(n.source.caps.Lease/64, 50*time.Millisecond), 10*time.Second)
	for wait := every; ; {
		n.kick.Wait(n.ctx, time.Now().Add(wait))
		if n.ctx.Err() != nil {
			return
		}
		var err error
		n.steering.Lock()
		wait, err = n.adjust(time.Now(), every)
		n.steering.Unlock()
		n.fail(err)
	}
}

// fail ends the session if consumers could not be changed.
func (n *session) fail(err error) {
	if errors.Is(err, amqp.ErrClosed) {
		<-n.ctx.Done() // who closed the channel says why
	}
	if err != nil {
		n.end(err)
	}
}

// adjust does what is to be done now, and returns how long steer may wait for more.
func (n *session) adjust(now time.Time, every time.Duration) (wait time.Duration, err error) {
	var back []*token
	if now.Sub(n.swept) >= every {
		n.swept = now
		back = n.expire(now)
	}
	wait = every
	for _, in := range n.intakes {
		n.source.mu.Lock()
		change, again := in.next(now)
		n.source.mu.Unlock()
		switch {
		case change != nil:
			if err := change(in); err != nil {
				return every, err
			}
			n.source.woken.Wake()
		case !again.IsZero():
			wait = min(wait, max(time.Until(again), 0))
		}
	}
	n.giveBack(back) // after consumers ended, or the broker might deliver it here again
	return wait, nil
}

// isCalm reports whether nothing is to be done about consumers. The lock of the
// source is held.
func (n *session) isCalm(now time.Time) bool {
	return !slices.ContainsFunc(n.intakes, func(in *intake) bool {
		change, _ := in.next(now)
		return change != nil
	})
}

// park ends the consumer, and the buffer goes back: all unsettled messages of an
// ordered intake with its channel. If the consumer went on, the broker
// would send messages that go back unused, and count each of them.
//
// If the worker still handles messages, the consumer goes on with a prefetch for these
// alone. Quorum queues give back what a consumer has when its node is lost, but not
// what one has that has ended: that would stay unacked, and be nobody's, until the
// leader of the queue changes.
func (in *intake) park() error {
	n, s := in.session, in.session.source
	s.mu.Lock()
	in.parked = true
	s.mu.Unlock()
	if in.ordered {
		n.takeBack(in)
	}
	if err := in.leave(in.ordered); err != nil {
		return err
	}
	if !in.ordered {
		n.takeBack(in)
	}
	s.mu.Lock()
	back, ended := in.spilled, in.ended || in.spills.Load()
	in.spilled = nil
	s.mu.Unlock()
	n.giveBack(back)
	if out := int(in.out.Load()); out > 0 && in.merges && !in.ordered && !ended {
		return in.serve(out)
	}
	return nil
}

// retries is how many deliveries of retries are unsettled.
func (n *session) retries() (out int) {
	for _, in := range n.intakes {
		if in.retried {
			out += int(in.out.Load())
		}
	}
	return out
}

// grow asks for a larger prefetch of a queue that has too little for the worker, up
// to twice of what it has. The caller holds the lock of the source.
func (n *session) grow(now time.Time) {
	for _, in := range n.intakes {
		granted := int(in.granted.Load())
		if granted == 0 || in.single || n.source.readOnly || in.parked || in.ended || in.spills.Load() || !in.feed.paused.IsZero() || now.Before(in.careful) {
			continue
		}
		limit, unacked := min(in.limit(now, granted, n.source.prefetch), n.fitting(in), mostPrefetch), granted+int(in.stale.Load())
		if wanted := min(2*granted, limit); limit > unacked {
			if !in.merges { // these stay with the consumers before
				wanted = min(wanted, limit-unacked)
			}
			in.wanted.Store(int64(wanted))
		}
	}
}

// limit is up to where the prefetch may grow, or 0 if what is granted is enough. It is
// not enough for a fast worker, which has settled so many within the time that an ack
// may wait. Nor is it for a worker that has taken nearly all that the broker may send,
// and can hold most.
func (in *intake) limit(now time.Time, granted, most int) int {
	fast := false
	if settled := in.settled.Load(); settled-in.mark >= int64(granted) {
		fast = now.Sub(in.marked) < ahead
		in.mark, in.marked = settled, now
	}
	switch {
	case fast:
		return fastPrefetch
	case len(in.items) == 0 && int(in.out.Load()) >= granted-granted/4:
		return most
	}
	return 0
}

// fitting is how many messages as large as those of late may be buffered.
func (n *session) fitting(in *intake) int {
	return max(1, n.source.share()/int(max(in.largest.Load(), 1)))
}

// hold notes a token for steer.
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
		if t.pending() {
			kept = append(kept, t)
		}
	}
	return kept
}

// expire takes from whoever has it what was held until the end of its lease. What
// waits in a buffer goes back with that.
func (n *session) expire(now time.Time) (back []*token) {
	n.leases.Lock()
	defer n.leases.Unlock()
	n.held = unsettled(n.held)
	for _, t := range n.held {
		if t.deadline.Before(now) && t.begun.Load() && t.lose() {
			back = append(back, t)
		}
	}
	return back
}

// giveBack returns messages to their queues, in this order.
func (n *session) giveBack(ts []*token) {
	if len(ts) == 0 {
		return
	}
	n.wire.gather()
	for _, t := range ts {
		t.giveBack(true)
	}
	if err := n.wire.flush(); err != nil {
		n.broke(err)
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

// finish gives back what is unsettled and ends the session. When ctx ends, the
// broker learns no more than that the connection is gone.
func (n *session) finish(ctx context.Context, cause error) {
	stop := context.AfterFunc(ctx, func() { n.end(cause) })
	defer stop()
	for _, in := range n.intakes {
		in.finish()
	}
	n.close(ctx, cause)
}
