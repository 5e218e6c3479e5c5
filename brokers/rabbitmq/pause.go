package rabbitmq

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// grace is for how long the consumers of a paused topic stay: a topic that has no
// room for a moment costs no requests.
const grace = 1500 * time.Millisecond

// leastPrefetch is where prefetching begins after a pause from which messages
// had to be given back. Whoever probes a topic takes one.
const leastPrefetch = 2

// Pause keeps what is buffered, for now. A topic that stays paused is parked after
// its grace.
func (s *source) Pause(topics ...string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(topics, s.paused) {
		return
	}
	s.paused = slices.Clone(topics)
	more := false
	for _, f := range s.feeds {
		switch paused := slices.Contains(topics, f.topic); {
		case !paused:
			f.paused = time.Time{}
		case f.paused.IsZero():
			f.paused, more = now, true
		}
	}
	if more && !s.closed {
		s.arm()
	}
}

// ready is how many items may be handed out. Suspects of an ordered feed come in
// its order, one at a time: as nothing after the one that kills has been handed
// out, it is the first of the next session.
func (f *feed) ready(now time.Time) int {
	switch {
	case !f.paused.IsZero(), len(f.items) == 0:
		return 0
	case !f.ordered:
		return len(f.items)
	case now.After(f.items[0].token.deadline):
		return 0 // the buffer is about to go back
	case f.trial != nil && f.trial.pending() && now.Sub(f.tried) < seclusion(f.trial.count):
		return 0
	}
	n := slices.IndexFunc(f.items, func(i item) bool { return i.token.count >= suspicious })
	switch n {
	case -1:
		return len(f.items)
	case 0:
		return 1
	}
	return n
}

// parks reports since when in is to be parked after its grace, or looked at
// again if consumers linger. An ordered intake keeps its consumers until its
// buffer is old: the buffer goes back as a whole, and the broker counts a
// delivery for each message. The prefetch before the first return bounds that cost.
func (in *intake) parks() (since time.Time, ok bool) {
	f := in.feed
	if in.parked {
		return in.looked, in.lingers && !f.paused.IsZero()
	}
	return f.paused, !f.paused.IsZero() && !f.ordered
}

// isParked reports whether in has no consumers at all.
func (in *intake) isParked() bool { return in.parked && !in.lingers }

// arm sets the timer for the next intake to park. The lock is held. A session
// whose consumers are being changed arms it afterwards.
func (s *source) arm() {
	if s.session == nil || s.session.busy.Load() {
		return
	}
	var first time.Time
	for _, in := range s.session.intakes {
		if since, ok := in.parks(); ok && (first.IsZero() || since.Before(first)) {
			first = since
		}
	}
	if !first.IsZero() {
		s.grace.Reset(max(0, s.broker.grace-time.Since(first)))
	}
}

// parkPaused parks what has been paused for its grace.
func (s *source) parkPaused() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.session
	if s.closed || n == nil || n.ctx.Err() != nil {
		return
	}
	var due []*intake
	for _, in := range n.intakes {
		switch since, ok := in.parks(); {
		case !ok || now.Sub(since) < s.broker.grace:
		case in.parked && int(in.out.Load()) > s.queued(in.feed):
			in.looked = now // some are still being worked on
		default:
			due = append(due, in)
		}
	}
	if len(due) == 0 {
		s.arm()
		return
	}
	n.park(due, func() { s.handBack(n, due) })
}

// spill drops what has arrived and finds no room, and ends the consumers of in:
// messages have become too large for what it was granted. What is on its way is
// dropped, too, be there room, or it would overtake that, and all of it is given
// back together. When half of its share of the buffer is free, prefetching begins
// anew, with what there is room for. The lock of the source is held.
func (n *session) spill(in *intake, t *token) {
	t.yield(&in.spilled)
	in.spills.Store(true)
	n.endSpills()
}

// endSpills ends the consumers of intakes that spill. The lock of the source is held.
func (n *session) endSpills() {
	var ins []*intake
	for _, in := range n.intakes {
		if in.ends() && !in.isParked() {
			ins = append(ins, in)
		}
	}
	if len(ins) > 0 {
		n.park(ins, func() {}) // or a later call, if consumers are being changed already
	}
}

// pour gives back what ins have spilled. Their consumers have ended.
func (n *session) pour(ins []*intake) {
	var ts []*token
	n.source.mu.Lock()
	for _, in := range ins {
		ts = append(ts, in.spilled...)
		in.spilled = nil
	}
	n.source.mu.Unlock()
	n.giveBack(ts)
}

// park ends the consumers of ins and then calls f, unless consumers are being
// changed already. The lock of the source is held.
func (n *session) park(ins []*intake, f func()) bool {
	started := n.change(func() error {
		err := n.stop(ins)
		if err == nil {
			f()
			n.pour(ins)
			err = n.linger(ins)
		}
		return err
	})
	if started {
		for _, in := range ins {
			in.parked = true
		}
	}
	return started
}

// linger has consumers of parked intakes go on, with no more room than what is still
// being worked on takes, until that is settled. Quorum queues give back what a
// consumer has when its node is lost, but not what one has that has ended: that would
// stay unacked, and be nobody's, until the leader of the queue changes.
func (n *session) linger(ins []*intake) error {
	for _, in := range ins {
		n.source.mu.Lock()
		lingers := in.merges && !in.spills.Load() && !in.ended
		n.source.mu.Unlock()
		found := false
		for _, l := range in.group.lanes {
			if !lingers || in.unackedOn(l).Load() == 0 {
				continue
			}
			found = true
			if err := l.consume(in, 0); err != nil {
				return err
			}
		}
		n.source.mu.Lock()
		in.lingers, in.looked = found && in.parked, time.Now()
		n.source.mu.Unlock()
	}
	return nil
}

// queued is how many messages of a feed wait to be handed out. mu is held.
func (s *source) queued(f *feed) int {
	n := len(f.items)
	for _, u := range s.suspects {
		if u.feed == f {
			n++
		}
	}
	return n
}

// handBack returns what is buffered of parked intakes to its queue. The broker
// counts that, before 4.3. So what would look suspicious the next time, or as if
// it had killed its workers, is given back by a copy, whose count begins at zero;
// where that fails it stays in the buffer, until its lease demands otherwise.
func (s *source) handBack(n *session, ins []*intake) {
	feeds := s.restart(ins)
	often := func(t *token) bool {
		return t.often() || t.count == suspicious-1
	}
	limit := time.Now().Add(s.caps.Lease * 5 / 8)
	var ts []*token
	back := func(i item) bool {
		return (!often(i.token) || !i.token.deadline.After(limit)) && i.token.yield(&ts)
	}
	if s.broker.publisher.blocked() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, s.broker.options.ConfirmTimeout)
		s.renew(ctx, feeds, often)
		cancel()
	}
	s.mu.Lock()
	for _, f := range feeds {
		f.items = slices.DeleteFunc(f.items, back)
	}
	s.suspects = slices.DeleteFunc(s.suspects, func(u suspect) bool {
		return slices.Contains(feeds, u.feed) && back(u.item)
	})
	s.mu.Unlock()
	n.giveBack(ts)
}

// restart decides where the prefetch of parked intakes begins when they go on. It
// returns their feeds.
func (s *source) restart(ins []*intake) (feeds []*feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range ins {
		in.start = firstPrefetch
		if len(in.items) > 0 {
			in.start = max(leastPrefetch, 2*in.taken)
		}
		feeds = append(feeds, in.feed)
	}
	return feeds
}

// renew gives back by a copy what waits in the buffers of feeds and has been given
// back often: giving it back as the others would be counted against it. What
// cannot be copied goes back into its buffer.
func (s *source) renew(ctx context.Context, feeds []*feed, often func(*token) bool) {
	var releases []brokers.Settlement
	var taken []suspect
	now := time.Now()
	take := func(f *feed, i item) bool {
		if !often(i.token) || !slices.Contains(feeds, f) {
			return false
		}
		i.token.renews = true
		releases = append(releases, brokers.Settlement{Action: brokers.Release, Delivery: s.delivery(f, i, now)})
		taken = append(taken, suspect{f, i})
		return true
	}
	s.mu.Lock()
	for _, f := range feeds {
		f.items = slices.DeleteFunc(f.items, func(i item) bool { return take(f, i) })
	}
	s.suspects = slices.DeleteFunc(s.suspects, func(u suspect) bool { return take(u.feed, u.item) })
	s.mu.Unlock()
	s.Settle(ctx, releases)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range slices.Backward(taken) {
		if t := u.item.token; t.state.Load() == held && t.lane.session == s.session && s.session.ctx.Err() == nil {
			t.renews = false
			u.feed.items = slices.Insert(u.feed.items, 0, u.item)
		}
	}
}
