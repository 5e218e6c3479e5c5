package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// session is one connection of a source. Each delivery knows its session, and
// what belongs to an older one is never sent.
type session struct {
	*link
	source  *source
	intakes []*intake
	busy    atomic.Bool // consumers are being started or cancelled

	mu    sync.Mutex
	lanes []*lane

	leases  sync.Mutex
	held    []*token // in the order of their deadlines, with settled ones in between
	compact int      // length at which to drop those
}

// intake is what a session has of a feed: its consumers, one for each of the
// first lanes of its group, and how many deliveries of them are unsettled.
type intake struct {
	*feed
	number  int
	group   *group
	lanes   int          // belongs to whoever grows it
	granted atomic.Int64 // the prefetch of the consumers together
	out     atomic.Int64
	full    atomic.Bool  // nearly all that is granted was out at once
	waiting atomic.Int64 // acks that are not on the wire
	starved atomic.Bool  // these were more than wait for others to travel with
	settled atomic.Int64 // deliveries so far

	// When so many were settled. Belongs to grow.
	mark   int64
	marked time.Time

	largest atomic.Int64 // of the messages lately, in bytes

	// Guarded by the lock of the source.
	careful time.Time   // until when it does not grow
	spills  atomic.Bool // deliveries find no room, until its consumers have ended
	spilled []*token    // deliveries that came meanwhile

	// These belong to whoever changes consumers.
	start     int                     // where prefetching begins
	consumers int                     // so many there were
	unacked   map[*lane]*atomic.Int64 // deliveries that are, on the wire
	pumps     sync.WaitGroup          // of those that there are
	back      int                     // messages that went back when the last channel ended
	parked    bool                    // there are none, but for those that linger; guarded by the lock of the source
	ended     bool                    // the broker has ended one; guarded by the lock of the source
	lingers   bool                    // some do; likewise
	looked    time.Time               // when that was last so; likewise

	window // of an ordered one
}

// unackedOn counts what is unacked on a lane.
func (in *intake) unackedOn(l *lane) *atomic.Int64 {
	if in.unacked[l] == nil {
		in.unacked[l] = new(atomic.Int64)
	}
	return in.unacked[l]
}

const (
	// scout is the prefetch with which a session begins. The broker charges its
	// end to all that was prefetched, also to what nobody has taken yet: if the
	// first message of a queue is the one that kills its workers, it alone is
	// charged. What has been lost several times comes one at a time.
	scout = 1

	// firstPrefetch follows it. More than a worker uses would keep messages from
	// other workers, and be charged to the messages if this one dies.
	firstPrefetch = 32

	// ahead is how much work a prefetch should be: enough that neither side
	// waits for the other in between.
	ahead = 40 * time.Millisecond

	// fastPrefetch is up to where that makes it grow, and starvedPrefetch where
	// acks do that wait for the copies of retries.
	fastPrefetch    = 2000
	starvedPrefetch = 4000
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
	lane     *lane
	tag      uint64
	intake   *intake
	unacked  *atomic.Int64 // deliveries of its intake on its lane
	count    int           // deliveries of this copy that the broker has counted
	deadline time.Time     // after which it is the broker's again
	begun    atomic.Bool   // it has been handed out
	copied   bool          // the copy of a retry is confirmed; belongs to whoever is settling
	renews   bool          // a release is done by a copy; likewise
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

// yield adds a delivery that is to be given back to ts, unless it is being settled.
func (t *token) yield(ts *[]*token) bool {
	if !t.lose() {
		return false
	}
	*ts = append(*ts, t)
	return true
}

// begin connects, declares t unless it is nil, and consumes.
func (s *source) begin(ctx context.Context, t *topology) (*session, error) {
	l, err := s.broker.dial(ctx, "consumer")
	if err != nil {
		return nil, err
	}
	n := &session{link: l, source: s, compact: 256}
	// Retries have lanes of their own: they are held until they are due, and a
	// delivery behind a held one cannot be acked together with others.
	topics, retries := &group{pace: s.broker.paces.stragglers}, &group{pace: s.broker.paces.retryStragglers}
	s.mu.Lock()
	var careful time.Time
	if s.brief > 0 {
		d := trialPace << min(s.brief, 5)
		careful = time.Now().Add(d)
		time.AfterFunc(d, s.woken.Wake)
	}
	for number, f := range s.feeds {
		in := &intake{feed: f, number: number, group: topics, start: scout, unacked: make(map[*lane]*atomic.Int64), careful: careful, parked: !f.paused.IsZero()}
		switch {
		case f.retried:
			in.group = retries
		case f.ordered:
			in.group = &group{pace: topics.pace, ordered: true}
		}
		n.intakes = append(n.intakes, in)
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
	if err == nil {
		flowing := slices.DeleteFunc(slices.Clone(n.intakes), func(in *intake) bool { return in.parked })
		if t != nil { // establish has just found or declared all queues
			err = n.consume(flowing)
		} else {
			err = n.reconsume(flowing)
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
	n.sweep()
	return n, nil
}

// learn notes the arguments of the queue of f that matter to its consumers.
func (s *source) learn(f *feed, l *link, found survey) {
	is, exists := found.of(f.queue)
	f.single = is.args[argSingle] == true
	f.merges = l.merges && !f.single && !f.ordered && (!exists || is.kind == typeQuorum)
	f.kept.Store(s.sub.DeadLetters[f.topic] != "" && (!exists || is.keeps()))
	f.deleted.Store(false)
}

// consume starts a consumer for the queue of each intake.
func (n *session) consume(ins []*intake) error {
	for _, in := range ins {
		prefetch := min(in.start, firstPrefetch)
		if in.single { // nobody else would get them, and no other consumer of this source
			prefetch = mostPrefetch
		}
		if err := n.extend(in, min(prefetch, n.source.prefetch, n.fitting(in))); err != nil {
			return err
		}
	}
	return nil
}

// change runs f, which starts or ends consumers, unless that is being done
// already. Its error ends the session.
func (n *session) change(f func() error) bool {
	if !n.busy.CompareAndSwap(false, true) {
		return false
	}
	n.work.Go(func() {
		defer n.changed()
		if err := f(); err != nil && n.ctx.Err() == nil {
			n.end(err)
		}
	})
	return true
}

// changed lets others change consumers, who came meanwhile and could not.
func (n *session) changed() {
	n.busy.Store(false)
	n.source.woken.Wake()
	n.source.mu.Lock()
	defer n.source.mu.Unlock()
	n.source.arm()
}

// resume consumes again from queues that are parked and no longer paused, and from
// queues whose consumers the broker has ended. The caller holds the lock of the source.
func (n *session) resume(now time.Time) {
	n.endSpills()
	var ins []*intake
	for _, in := range n.intakes {
		full := in.spills.Load() && n.source.buffered(in.feed) > n.source.share()/2
		if in.ended || in.parked && in.feed.paused.IsZero() && !full && !now.Before(in.feed.next) {
			ins = append(ins, in)
		}
	}
	if len(ins) == 0 || !n.change(func() error { return n.reconsume(slices.Clone(ins)) }) {
		return
	}
	for _, in := range ins {
		in.parked, in.lingers, in.feed.taken = false, false, 0
		in.spills.Store(false)
	}
}

// stop ends the consumers of ins. Otherwise the broker would send deliveries that go
// back unused, and count each of them. Deliveries in the buffers stay there. Those of
// an ordered intake go back, with all others that are unacked.
func (n *session) stop(ins []*intake) error {
	for _, in := range ins {
		end := (*lane).cancel
		if in.ordered {
			end = (*lane).shut
		}
		if err := in.leave(end); err != nil {
			return err
		}
	}
	n.vacate(ins)
	return nil
}

// leave ends the consumers of in on each lane.
func (in *intake) leave(end func(*lane, *intake) error) error {
	for _, l := range in.group.lanes {
		if err := end(l, in); err != nil {
			return err
		}
	}
	in.pumps.Wait()
	in.lanes = 0
	in.wanted.Store(0)
	return nil
}

// extend lets the broker send more messages of a queue, on the next lane.
func (n *session) extend(in *intake, prefetch int) error {
	g := in.group
	if in.lanes == len(g.lanes) {
		l, err := n.open(g)
		if err != nil {
			return err
		}
		n.mu.Lock()
		n.lanes = append(n.lanes, l)
		n.mu.Unlock()
		g.lanes = append(g.lanes, l)
	}
	in.lanes++
	return g.lanes[in.lanes-1].consume(in, prefetch)
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

// grow extends a queue that has too little for the worker, up to twice of what
// it has. The caller holds the lock of the source.
func (n *session) grow(now time.Time) {
	if n.busy.Load() {
		return
	}
	for _, in := range n.intakes {
		if in.parked || in.ended || in.spills.Load() || !in.feed.paused.IsZero() || now.Before(in.careful) {
			continue
		}
		granted := int(in.granted.Load())
		limit := in.limit(now, granted, n.source.prefetch)
		if n.source.readOnly { // some other limit of the queue may end what is lost often
			limit = min(limit, n.source.prefetch)
		}
		more := min(max(granted, firstPrefetch-granted), limit-granted, n.fitting(in)-granted, mostPrefetch)
		if in.feed.ordered {
			if n.widen(in, granted, more) {
				return
			}
		} else if more > 0 {
			n.change(func() error {
				if n.isGone(in) {
					return nil
				}
				return n.extend(in, more)
			})
			return
		}
	}
}

// starves reports whether so many acks wait that the broker may soon have to. It
// notes before that when more wait than those that wait for others to travel with.
func (in *intake) starves() bool {
	granted, waiting := in.granted.Load(), in.waiting.Load()
	if waiting > granted*5/8 { // ackShare explains half of them
		in.starved.Store(true)
	}
	return waiting >= granted-granted/4
}

// fitting is how many messages as large as those of late may be buffered.
func (n *session) fitting(in *intake) int {
	return max(1, n.source.share()/int(max(in.largest.Load(), 1)))
}

// note notes the size of a message. One that was large is forgotten by and by.
func (in *intake) note(size int) {
	before := in.largest.Load()
	in.largest.Store(max(int64(size), before-before/64))
}

// limit is up to where the prefetch may grow that is granted: to no more than
// that unless it is too little for the worker. It is if the worker is fast and
// went through so many at a stretch; or if much of it was acks that wait for the
// copy of a retry; or if the broker has sent all that it may and the
// worker has taken all of that, of which it can hold most.
func (in *intake) limit(now time.Time, granted, most int) int {
	fast, starved := false, in.starved.Swap(false)
	if settled := in.settled.Load(); settled-in.mark >= int64(granted) {
		fast = now.Sub(in.marked) < ahead
		in.mark, in.marked = settled, now
	}
	switch {
	case starved:
		return starvedPrefetch
	case fast:
		return fastPrefetch
	case len(in.items) == 0 && in.full.Swap(false):
		return most
	}
	return 0
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
		if t.pending() {
			kept = append(kept, t)
		}
	}
	return kept
}

// sweep gives back what was held until the end of its lease, before the broker
// takes it back together with everything else of the channel, and what nobody
// took for long.
func (n *session) sweep() {
	interval := min(max(n.source.caps.Lease/64, 50*time.Millisecond), 10*time.Second)
	n.work.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				n.giveUp(time.Now())
			case <-n.ctx.Done():
				return
			}
		}
	})
}

// giveUp gives back what is due for it. If nobody receives, all is parked first, or
// the broker might deliver it here again.
func (n *session) giveUp(now time.Time) {
	expired := n.expired(now)
	stale, parks, turned := n.source.refresh(n, now, len(expired) > 0)
	back := append(stale, slices.DeleteFunc(expired, func(t *token) bool {
		return t.intake.ordered && t.intake.ends() // the end of the channel gives it back
	})...)
	n.source.mu.Lock()
	parked := len(parks) > 0 && n.park(parks, func() {
		n.giveBack(back)
		n.source.handBack(n, parks)
	})
	n.endSpills()
	n.source.mu.Unlock()
	if !parked {
		n.giveBack(back)
	}
	if len(turned) > 0 {
		n.change(func() error {
			n.source.turnBack(n, turned)
			return nil
		})
	}
}

// giveBack returns messages to their queues, in this order.
func (n *session) giveBack(ts []*token) {
	if len(ts) == 0 {
		return
	}
	n.wire.gather()
	for _, t := range ts {
		t.lane.giveBack(t, true)
	}
	if err := n.wire.flush(); err != nil {
		n.broke(err)
	}
}

// expired takes what was held until the end of its lease from whoever holds it. The
// messages in an ordered buffer stay there: turnBack gives them back in order.
func (n *session) expired(now time.Time) (ts []*token) {
	n.leases.Lock()
	defer n.leases.Unlock()
	n.held = unsettled(n.held)
	for _, t := range n.held {
		if t.deadline.Before(now) && (t.begun.Load() || !t.intake.ordered) && t.lose() {
			ts = append(ts, t)
		}
	}
	return ts
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
	n.mu.Lock()
	lanes := n.lanes
	n.mu.Unlock()
	for _, l := range lanes {
		l.finish()
	}
	n.close(ctx, cause)
}
