package sqs

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const (
	defaultLease = 30 * time.Second

	// longestBuffered is how long a message may wait in the source after its
	// poll could have ended.
	longestBuffered = 30 * time.Second

	// longestLease leaves room for a poll before it.
	longestLease = maxTotal - time.Minute

	sweepPace = time.Second // or an eighth of the lease
)

// terms are the times of the leases of a source.
type terms struct {
	lease  time.Duration
	wait   time.Duration // of a poll
	margin time.Duration // for the network
}

func termsOf(sub brokers.Subscription, o Options) terms {
	lease := sub.Lease
	if lease <= 0 {
		lease = defaultLease
	}
	return terms{lease: lease, wait: o.PollWait, margin: min(2*time.Second, lease/5)}
}

// hidden is the visibility timeout to ask for when a poll begins. It counts
// from when the poll ends, which the worker cannot know: the whole lease is
// left in any case.
func (t terms) hidden() time.Duration {
	return time.Duration(seconds(t.lease+t.wait+t.margin)) * time.Second
}

// limit is until when SQS holds what a poll brings that began then, for certain.
func (t terms) limit(begun time.Time) time.Time { return begun.Add(t.hidden() - t.margin) }

// reserve is what must be left of the time for which a message is held when it
// is handed out.
func (t terms) reserve() time.Duration { return max(t.lease/2, t.lease-longestBuffered) }

// seconds rounds up, to what SQS takes.
func seconds(d time.Duration) int32 { return int32(wholeSeconds(min(d, 12*time.Hour))) }

// wholeSeconds rounds up. Less than nothing is nothing.
func wholeSeconds(d time.Duration) int64 {
	d = max(d, 0)
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

type state uint8

const (
	held     state = iota // or buffered
	settling              // by a call of Settle
	settled
	lost
)

// token is a message that was received and is not settled. The lock of its
// source guards it.
type token struct {
	feed   *feed
	record *record
	seq    uint64        // order of receipt
	lost   int           // receives that nobody accounts for
	away   time.Duration // when it is given back

	begun time.Time // the poll that brought it
	limit time.Time // SQS holds it until then, and for the margin
	until time.Time // LeaseUntil; nothing is sent afterwards
	end   time.Time // until is never later

	state     state
	copied    bool          // its retry is durable: remove the original
	extension chan struct{} // closed when the extension under way has ended

	delivery brokers.Delivery // handed out, or to be
	meta     brokers.Meta     // that it carries; there from the start
}

// history is what is known of a message that is given back as it came.
func (t *token) history() history {
	h := history{meta: t.meta, receives: t.record.receives, lost: t.lost}
	h.hops = max(0, t.record.history().hops-(t.record.receives-1))
	return h
}

// retried is what this worker knows of a message that it retries in place.
func (t *token) retried(st *brokers.Settlement) history {
	return history{meta: st.Meta, receives: t.record.receives, lost: t.lost}
}

// renews reports whether t goes back as a copy, for which no receives count yet: one
// more would have SQS itself dead-letter it, or look to others as if it had killed a
// worker.
func (t *token) renews() bool {
	f := t.feed
	if f.fifo || f.source.readOnly {
		return false
	}
	_, lost := f.counting.read(t.record.history(), t.record.receives+1)
	return lost > bystanders || f.receives > 0 && t.record.receives >= f.receives
}

// hand makes a delivery of t.
func (t *token) hand(now time.Time, lease time.Duration) *brokers.Delivery {
	t.until = earlier(now.Add(lease), t.limit)
	t.end = now.Add(maxTotal)
	d := &t.delivery
	d.Carried = &t.meta
	d.Message = t.record.message
	if !t.feed.source.readOnly { // what others did with it says nothing about it here
		d.Abandoned = t.feed.counting.abandoned(t.lost)
	}
	d.ReceivedAt, d.LeaseUntil, d.Token = now, t.until, t
	return d
}

// shorten takes in that a change of visibility may have taken effect.
func (t *token) shorten(until time.Time) {
	t.limit = earlier(t.limit, until)
	t.until = earlier(t.until, until)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

var errExtending = errors.New("another call of Extend is under way")

// check says whether d is held and can be settled. mu is held.
func (s *source) check(d *brokers.Delivery, now time.Time) (*token, error) {
	if d == nil {
		return nil, adapter.ErrNotHeld
	}
	t, ok := d.Token.(*token)
	switch {
	case !ok || t.feed.source != s:
		return nil, adapter.ErrNotHeld
	case t.state == settling || t.state == settled:
		return nil, brokers.ErrSettled
	case s.closed:
		return nil, brokers.ErrClosed
	case t.state == lost && !t.copied:
		return nil, brokers.ErrLeaseLost
	case !now.Before(t.until) && !t.copied:
		s.lose(t)
		return nil, brokers.ErrLeaseLost
	}
	return t, nil
}

// await waits until nothing extends the leases of entries any more.
func (s *source) await(ctx context.Context, entries []*entry) error {
	for _, e := range entries {
		s.mu.Lock()
		extension := e.extension
		s.mu.Unlock()
		if extension == nil {
			continue
		}
		select {
		case <-extension:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return context.Cause(ctx)
}

// Extend asks SQS for more time where the present visibility timeout is too
// short for it.
func (s *source) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	entries := make([]entry, len(ds))
	var mine []*entry
	for i, d := range ds {
		entries[i].err = adapter.ErrNotHeld
		if d == nil {
			continue
		}
		if t, ok := d.Token.(*token); ok && t.feed.source == s {
			entries[i].token, entries[i].delivery = t, d
			mine = append(mine, &entries[i])
		}
	}
	err := s.await(ctx, mine)
	ended := make(chan struct{})
	defer close(ended)
	now := time.Now()
	s.extendable(lease, mine, err, now, ended).each(func(j *job) { j.extend(ctx, lease, now) })
	failures := adapter.Failures{Broker: "sqs", Entries: len(ds)}
	for i, e := range entries {
		failures.Add(i, "extend", ds[i], e.err)
	}
	return failures.List
}

// extendable extends what can be without a call, unless err says that the call is
// over. It returns the moves of those that need one, which end an extension.
func (s *source) extendable(lease time.Duration, entries []*entry, err error, now time.Time, ended chan struct{}) jobs {
	all := make(jobs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		if e.err = err; err == nil {
			_, e.err = s.check(e.delivery, now)
		}
		until := earlier(now.Add(lease), e.end)
		switch {
		case e.err != nil:
		case !now.Before(e.until): // its copy is durable
			e.err = brokers.ErrLeaseLost
		case e.extension != nil:
			e.err = errExtending
		case until.After(e.limit):
			e.extension = ended
			e.seconds = seconds(until.Sub(now) + s.terms.margin)
			j := all.of(e)
			j.moves = append(j.moves, e)
			s.calls.Add(1)
		default:
			e.promise(now.Add(lease))
		}
	}
	return all
}

// promise has the lease end at a time, but no sooner than it was to. mu is held.
func (e *entry) promise(until time.Time) {
	if until = earlier(until, e.end); until.After(e.until) {
		e.until, e.delivery.LeaseUntil = until, until
	}
}

// extend asks for more time, which counts from start at the latest.
func (j *job) extend(ctx context.Context, lease time.Duration, start time.Time) {
	ctx, cancel := context.WithDeadline(ctx, j.deadline)
	defer cancel()
	s := j.source
	s.outcomes(j.moves, s.broker.client.hide(ctx, j.url, j.moves, callsAtOnce), func(e *entry, err error) {
		defer s.calls.Done()
		e.extension, e.err = nil, err
		switch {
		case err == nil:
			e.limit = start.Add(time.Duration(e.seconds)*time.Second - s.terms.margin)
			e.promise(start.Add(lease))
		case errors.Is(err, brokers.ErrLeaseLost):
			s.lose(e.token)
		}
	})
}
