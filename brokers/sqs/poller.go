package sqs

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// damagedPause is how long a message stays away that did not arrive whole, or
	// that another worker may be able to read.
	damagedPause = 30 * time.Second

	// groupPause is the same for what cannot be read of a FIFO queue, where a
	// group waits for it.
	groupPause = 3 * time.Second

	// mostUnread is how often a message is received in the hope of a worker that
	// can read it. The last time it is a dead letter.
	mostUnread = 3
)

// pauseOf is for how long r is of no use to this worker, and why; 0 if it is.
// Whoever only reads takes it as it is.
func (f *feed) pauseOf(r *record) (time.Duration, error) {
	switch {
	case r.err != nil:
		return damagedPause, r.err
	case r.unreadable == nil || r.receives >= mostUnread || f.source.readOnly:
		return 0, nil
	case f.fifo:
		return groupPause, r.unreadable
	}
	return damagedPause, r.unreadable
}

// poll starts as many polls as there is room for what they may bring, and one
// of each queue in any case, but none of a paused topic. demand is what Receive could take now. It returns
// when a queue that rests may be asked again, zero if none does. mu is held.
func (s *source) poll(demand int, now time.Time) (next time.Time) {
	free := min(s.sub.InFlight-len(s.out), max(demand, s.appetite.recent(now)))
	later := max(0, free-demand) // of these will only be taken later
	flowing, fetched := s.fetched()
	if flowing == 0 || free <= 0 && demand == 0 {
		return next
	}
	share := max(1, free/flowing)
	for i := range s.feeds {
		f := s.feeds[(int(s.turn)+i)%len(s.feeds)]
		if f.paused {
			continue
		}
		if now.Before(f.rest) {
			if next.IsZero() || f.rest.Before(next) {
				next = f.rest
			}
			continue
		}
		if f.gone {
			if f.idle() {
				s.restore()
			}
			continue
		}
		batch := f.batch(now)
		room := free - fetched - f.first
		if f.tight {
			room -= later
		}
		most := f.fits(min(max(1, min(room, share)), batch))
		if f.first == 0 && (len(f.items) == 0 || room >= batch && most > 0) {
			r := f.next(max(1, most), now)
			f.first, r.first = r.most, true
			room -= f.first
			s.start(f, r)
		}
		for ; f.open < f.pace.polls && room >= batch && f.fits(batch) == batch; room -= batch {
			fetched += batch
			f.asked += batch
			s.start(f, newRequest(batch, now))
		}
	}
	return next
}

// fetched is how many topics are not paused, and how much of them is buffered or
// asked for by polls of a queue beyond its first. mu is held.
func (s *source) fetched() (flowing, n int) {
	for _, f := range s.feeds {
		if !f.paused {
			flowing++
			n += len(f.items) + f.asked
		}
	}
	return flowing, n
}

// request is a poll.
type request struct {
	attempt string
	most    int       // messages that it asks for
	begun   time.Time // no message that it brings was handed out before
	first   bool      // of its queue
}

func newRequest(most int, now time.Time) request {
	return request{attempt: crand.Text(), most: most, begun: now}
}

// next is the request of the next poll: one of a FIFO queue whose answer got
// lost, since that may hold back groups, or a new one. mu is held.
func (f *feed) next(most int, now time.Time) request {
	for len(f.unheard) > 0 {
		r := f.unheard[0]
		f.unheard = f.unheard[1:]
		if t := f.source.terms; t.limit(r.begun).Sub(now) > t.reserve() {
			return r
		}
	}
	return newRequest(most, now)
}

// start starts a poll. mu is held.
func (s *source) start(f *feed, r request) {
	f.open++
	s.calls.Go(func() {
		began := time.Now()
		// No context of the worker ends a poll: SQS may have handed messages
		// out by then, which nobody would hear of.
		records, err := s.broker.client.poll(context.Background(), &f.queue, r.attempt, r.most, s.terms.wait, s.terms.hidden())
		s.arrive(f, r, records, err, time.Since(began))
	})
}

// arrive takes in what a poll brought after a time.
func (s *source) arrive(f *feed, r request, records []record, err error, took time.Duration) {
	s.mu.Lock()
	f.open--
	if r.first {
		f.first = 0
	} else {
		f.asked -= r.most
	}
	now := time.Now()
	var damaged, back []*token
	if err != nil {
		s.fail(f, err, now)
		if f.fifo && mayBeDone(err) {
			f.unheard = append(f.unheard, r)
		}
	} else {
		f.failures = 0
		pause := f.pace.note(r.most, len(records), took)
		if len(records) == 0 && took < s.terms.wait/2 { // not for want of messages
			pause = shortestRest
		}
		f.rest = later(f.rest, now.Add(pause))
		damaged, back = s.store(f, records, r.begun, now)
	}
	s.arm()
	s.mu.Unlock()
	s.woken.Wake()
	s.giveBack(back)
	f.postpone(damaged)
}

// store buffers records. It returns those that are damaged, and those that have
// to come after them, or all if the poll took too much of their leases. mu is
// held.
func (s *source) store(f *feed, records []record, begun, now time.Time) (damaged, back []*token) {
	limit := s.terms.limit(begun)
	late := limit.Sub(now) < s.terms.reserve()
	if late && len(records) > 0 {
		s.failure = fmt.Errorf("sqs: receive from %q: the answer to a poll took %v, and too little is left of the lease of %v for what it brought, %d messages: they are given back and come again; a longer Lease leaves more time",
			f.topic, now.Sub(begun).Round(time.Millisecond), s.terms.lease, len(records))
	}
	f.weigh(records)
	for _, came := range records { // each on its own, as it may outlive the others
		s.seq++
		r := &came
		t := &token{feed: f, record: r, seq: s.seq, begun: begun, limit: limit}
		t.meta, t.lost = f.counting.read(s.notes.about(r), r.receives)
		if t.delivery.Unreadable = r.unreadable; r.unreadable != nil {
			t.meta, t.lost = r.meta, 0 // nobody has run it
		}
		pause, err := f.pauseOf(r)
		switch {
		case late || slices.ContainsFunc(damaged, t.follows) || slices.ContainsFunc(back, t.follows):
			back = append(back, t)
		case err != nil:
			damaged = append(damaged, t)
			if f.fifo && r.err != nil { // which may go on: what follows must not come, and be counted, each time
				f.single = now.Add(singly)
			}
			if now.Sub(f.told) < damagedPause {
				break // the caller lets the source rest for each: others must not wait for many
			}
			f.told = now
			s.failure = fmt.Errorf("sqs: receive from %q: message %q cannot be used, it comes again in %v: %w", f.topic, r.id, pause, err)
		case f.isFull(bulk(&r.message)):
			back = append(back, t)
		default:
			f.add(t)
		}
	}
	s.note(back)
	s.note(damaged)
	return damaged, back
}

// postpone gives back messages of which this worker can make nothing, for a while.
func (f *feed) postpone(tokens []*token) {
	if len(tokens) == 0 {
		return
	}
	changes := make([]change, len(tokens))
	for i, t := range tokens {
		pause, _ := f.pauseOf(t.record)
		changes[i] = change{t.record.handle, seconds(pause)}
	}
	f.source.broker.client.hide(context.Background(), f.url, changes)
}

// fail lets a queue rest whose poll failed, and the next Receive tell of it.
// The polls that were open meanwhile failed for the same reason. mu is held.
func (s *source) fail(f *feed, err error, now time.Time) {
	if hasCode(err, "OverLimit") { // about 120,000 messages of the queue are in flight
		f.pressure.full(now)
	}
	rests, gone := now.Before(f.rest), f.gone
	f.gone = gone || isGone(err)
	switch {
	case isOfIdentity(err):
		s.fatal = fmt.Errorf("sqs: receive from %q: %w", f.topic, err)
	case !errors.Is(err, brokers.ErrMisconfigured):
		s.failure = fmt.Errorf("sqs: receive from %q: %w", f.topic, err)
	case f.gone && !gone, !rests:
		s.miss(f, err, now)
		if f.gone && s.mayCreate() {
			f.rest = now
		}
		return
	}
	if rests {
		return
	}
	f.failures++
	f.pace.restart()
	f.rest = now.Add(rest(f.failures, rand.Float64()))
}
