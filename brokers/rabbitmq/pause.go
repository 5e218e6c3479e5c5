package rabbitmq

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// grace is for how long the consumer of a paused topic stays: a topic that has no
// room for a moment costs no requests.
const grace = 1500 * time.Millisecond

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
	for _, f := range s.feeds {
		switch paused := slices.Contains(topics, f.topic); {
		case !paused:
			f.paused = time.Time{}
		case f.paused.IsZero():
			f.paused = now
			s.steer()
		}
	}
}

// ready is how many items may be handed out. Suspects of an ordered intake come in
// its order, one at a time: as nothing after the one that kills has been handed
// out, it is the first of the next session.
func (in *intake) ready(now time.Time) int {
	switch {
	case !in.paused.IsZero():
		return 0
	case !in.ordered:
		return len(in.items)
	case in.spills.Load():
		return 0 // the buffer is about to go back
	case in.trial != nil && in.trial.pending() && now.Sub(in.tried) < seclusion(in.trial.count):
		return 0
	}
	n := slices.IndexFunc(in.items, func(t *token) bool { return t.count >= suspicious })
	switch n {
	case -1:
		return len(in.items)
	case 0:
		return 1
	}
	return n
}

// buffered is how many messages of in wait to be handed out, and the bytes of their
// bodies. The lock of the source is held.
func (n *session) buffered(in *intake) (queued, size int) {
	for _, ts := range [][]*token{in.items, n.suspects} {
		for _, t := range ts {
			if t.intake == in {
				queued++
				size += len(t.delivery.Body)
			}
		}
	}
	return queued, size
}

// removeBuffered takes what it is told to out of the buffer of in. The lock of the
// source is held.
func (n *session) removeBuffered(in *intake, remove func(*token) bool) {
	in.items = slices.DeleteFunc(in.items, remove)
	n.suspects = slices.DeleteFunc(n.suspects, func(t *token) bool { return t.intake == in && remove(t) })
}

// isStale reports whether too little of its lease is left for a message that waits
// in the buffer of in. The lock of the source is held.
func (n *session) isStale(in *intake, now time.Time) bool {
	old := func(t *token) bool { return t.intake == in && !t.deadline.After(now.Add(n.source.caps.Lease*5/8)) }
	return len(in.items) > 0 && old(in.items[0]) || slices.ContainsFunc(n.suspects, old)
}

// isIdle reports whether nobody has called Receive for long. mu is held.
func (s *source) isIdle(now time.Time) bool { return now.Sub(s.taken) > s.caps.Lease/4 }

// takeBack empties the buffer of in, for its messages to go back. The broker counts
// that, before 4.3. So what would look suspicious the next time, or as if it had
// killed its workers, is given back by a copy, whose count begins at zero.
func (n *session) takeBack(in *intake) {
	s := n.source
	if s.broker.publisher.blocked() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, s.broker.options.ConfirmTimeout)
		n.renew(ctx, in)
		cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.removeBuffered(in, func(t *token) bool {
		if t.lose() {
			in.spilled = append(in.spilled, t)
		}
		return true
	})
}

// renewable reports whether a message of a buffer that goes back is given back by a
// copy.
func (t *token) renewable() bool {
	return t.often() || t.intake.deleted.Load() || !t.intake.ordered && t.count == suspicious-1
}

// renew gives back by a copy the messages in the buffer of in for which being given
// back as the others would count. What cannot be copied goes back into the buffer.
func (n *session) renew(ctx context.Context, in *intake) {
	var releases []brokers.Settlement
	var taken []*token
	s, now := n.source, time.Now()
	s.mu.Lock()
	n.removeBuffered(in, func(t *token) bool {
		if !t.renewable() {
			return false
		}
		t.renews = true
		releases = append(releases, brokers.Settlement{Action: brokers.Release, Delivery: s.delivery(t, now)})
		taken = append(taken, t)
		return true
	})
	s.mu.Unlock()
	s.Settle(ctx, releases)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range slices.Backward(taken) {
		if t.state.Load() == held {
			t.renews = false
			in.items = slices.Insert(in.items, 0, t)
		}
	}
}
