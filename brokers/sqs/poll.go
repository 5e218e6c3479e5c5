package sqs

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// quickly is how soon an answer comes from a queue that had it ready.
	quickly = time.Second

	// gather is how long a queue is left alone after a poll that came back at
	// once and not half full: what arrives meanwhile shares a call.
	gather = 20 * time.Millisecond

	// shortestRest is how soon a queue whose poll failed is asked again. The longest
	// rest is that of the longest poll.
	shortestRest = time.Second

	// awayAfter is for how long polls fail before the service counts as away: two that
	// wait in vain. Until the first answer, one failure is enough.
	awayAfter = 30 * time.Second

	// damagedPause is how long a message stays away that did not arrive whole, or
	// that another worker may be able to read.
	damagedPause = defaultLease

	// groupPause is the same for what cannot be read of a FIFO queue, where a
	// group waits for it.
	groupPause = 3 * time.Second

	// mostUnread is how often a message is received in the hope of a worker that
	// can read it. The last time it is a dead letter.
	mostUnread = 3

	// leastKept is how long a pause leaves the buffer as it is: longer than a
	// topic is without room for moments. After longer pauses it is up to
	// longestKept, which is short beside the lease.
	leastKept   = time.Second
	longestKept = 10 * time.Second
)

// poll begins polls while Receive waits: one of each queue of which nothing is
// there, and more, up to its pace, while all that is fetched will be taken within a
// quarter of a lease, going by what was taken of late. None begins of a queue that
// is paused, rests, or is gone. demand is what Receive could take now. It returns
// when a queue that rests may be asked again, zero if none does. mu is held.
func (s *source) poll(demand int, now time.Time) (next time.Time) {
	room := s.sub.InFlight - len(s.out)
	free := min(room, max(demand, s.appetite.take(0, now)))
	flowing, fetched := s.fetched(now)
	if flowing == 0 || free <= 0 && demand == 0 {
		return next
	}
	for i := range s.feeds {
		f := s.feeds[(int(s.turn)+i)%len(s.feeds)]
		switch {
		case f.paused:
		case now.Before(f.rest):
			if next.IsZero() || f.rest.Before(next) {
				next = f.rest
			}
		case f.gone:
			if f.idle() {
				s.restore()
			}
		default:
			mine, batch := free, f.batch(now)
			if f.tight { // nothing that would only be taken later
				mine = min(room, demand)
			}
			for n := f.want(mine-fetched, free/flowing, batch); n > 0; n = f.want(mine-fetched, 0, batch) {
				if f.open > 0 {
					fetched += n
				}
				s.start(f, f.next(n, now))
			}
		}
	}
	return next
}

// fetched is how many topics are not paused, and how much of them is buffered or
// asked for by polls beyond one of each, which may wait in vain. mu is held.
func (s *source) fetched(now time.Time) (flowing, n int) {
	for _, f := range s.feeds {
		if !f.paused {
			flowing++
			n += len(f.items) + max(0, f.asked-f.batch(now))
		}
	}
	return flowing, n
}

// batch is how many messages a poll asks for at most: one while retries hold up
// others of their group, and always on a FIFO queue where SQS counts few receives.
func (f *feed) batch(now time.Time) int {
	if now.Before(f.single) || f.fifo && f.tight {
		return 1
	}
	return batchSize
}

// want is for how many messages the next poll of f asks, 0 if none begins now. mu is
// held.
func (f *feed) want(room, share, batch int) int {
	switch {
	case f.idle():
		return max(1, f.fits(min(room, share, batch)))
	case f.open < f.pace.polls && room-min(f.asked, batch) >= batch && f.fits(batch) == batch:
		return batch
	}
	return 0
}

// request is a poll.
type request struct {
	attempt string
	most    int       // messages that it asks for
	begun   time.Time // no message that it brings was handed out before
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
	return request{attempt: crand.Text(), most: most, begun: now}
}

// start starts a poll. mu is held.
func (s *source) start(f *feed, r request) {
	f.open++
	f.asked += r.most
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
	f.asked -= r.most
	now := time.Now()
	var back []*token
	s.hear(err, now)
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
		if until := now.Add(pause); until.After(f.rest) {
			f.rest = until
		}
		back = s.store(f, records, r.begun, now)
	}
	s.arm()
	s.mu.Unlock()
	s.woken.Wake()
	f.release(back)
}

// store buffers records. It returns those that have to go back: what is of no use to
// this worker, or has no room, what has to come after these, and all if the poll took
// too much of their leases. mu is held.
func (s *source) store(f *feed, records []record, begun, now time.Time) (back []*token) {
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
		t := &token{feed: f, record: r, seq: s.seq, begun: begun, limit: limit, until: limit}
		t.meta, t.lost = f.counting.read(s.notes.about(r), r.receives)
		if t.delivery.Unreadable = r.unreadable; r.unreadable != nil {
			t.meta, t.lost = r.meta, 0 // nobody has run it
		}
		switch pause, err := f.pauseOf(r); {
		case late || slices.ContainsFunc(back, t.follows):
			back = append(back, t)
		case err != nil:
			t.away = pause
			back = append(back, t)
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
	return back
}

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

// fail lets a queue rest whose poll failed, and the next Receive tell of it.
// The polls that were open meanwhile failed for the same reason. mu is held.
func (s *source) fail(f *feed, err error, now time.Time) {
	if hasCode(err, "OverLimit") { // about 120,000 messages of the queue are in flight
		f.heavy, f.weighed = true, now
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
	if !rests {
		f.failures++
		f.pace.polls = 1
		f.rest = now.Add(rest(f.failures, rand.Float64()))
	}
}

// rest is how long a queue is left alone after so many failures in a row: full
// jitter above a second. random is in [0, 1).
func rest(failures int, random float64) time.Duration {
	longest := min(shortestRest<<min(failures, 8), longestPollWait)
	return shortestRest + time.Duration(random*float64(longest-shortestRest))
}

// pace says how many polls of a queue may be open: twice as many after each
// round of full answers, one less after each that came at once and sparse, half
// after one that waited in vain, and one after a failure or a long pause.
type pace struct {
	polls, most int
}

// note takes in that a poll for asked messages got some after a time, and
// returns how long to wait with the next one.
func (p *pace) note(asked, got int, took time.Duration) time.Duration {
	switch quick, half := took < quickly, 2*got >= asked; {
	case quick && half:
		p.polls = min(p.polls+1, p.most)
	case quick:
		p.polls = max(p.polls-1, 1)
		return gather
	case got < asked:
		p.polls = max(p.polls/2, 1)
	}
	return 0
}

// appetite is what a worker takes within a time, as an exponentially weighted moving
// average: as much may be fetched in advance and will be taken in time.
type appetite struct {
	within time.Duration
	taken  float64
	at     time.Time
}

// take adds n messages that are taken, and returns the average.
func (a *appetite) take(n int, now time.Time) int {
	a.taken *= math.Exp(-float64(now.Sub(a.at)) / float64(a.within))
	a.taken += float64(n)
	a.at = now
	return int(a.taken)
}

// Pause stops polls of topics, and what they have in the buffer from being
// handed out. Polls that are open go on.
func (s *source) Pause(topics ...string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.feeds {
		switch paused := slices.Contains(topics, f.topic); {
		case paused && !f.paused:
			f.paused, f.since = true, now
		case !paused && f.paused:
			f.resume(now)
			s.woken.Wake()
		}
	}
}

// resume ends a pause. The next one leaves the buffer as it is for twice as
// long: a topic that has no room for seconds, again and again, would otherwise
// fetch the same messages each time, only to give them back, and SQS counts
// that. After a pause that was too long for the buffer, one poll at a time finds
// out how much can be handed out. mu is held.
func (f *feed) resume(now time.Time) {
	past := now.Sub(f.since)
	f.paused = false
	if past >= f.keep {
		f.pace.polls = 1
	}
	f.keep = min(max(2*past, leastKept), longestKept)
}

// unwanted reports whether what is buffered has to go back as the topic is
// paused. While polls of it are open, they would receive it once more. mu is held.
func (f *feed) unwanted(now time.Time) bool {
	return f.paused && f.open == 0 && now.Sub(f.since) >= f.keep
}
