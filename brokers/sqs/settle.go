package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Settle ends the deliveries of all queues at the same time. Of one queue in this order:
//
//  1. Each is claimed, so that it is settled once. One that is settled, lost or closed
//     has a final error, and nothing is done with it.
//  2. Acks delete messages.
//  3. Releases, and retries in place, change visibility timeouts.
//  4. Copies of the other retries are sent. When SQS has confirmed one, its original
//     is deleted.
//
// It repeats nothing that failed. After ErrLeaseLost the message comes again. After any
// other error that is not final the delivery is still held; if its copy is confirmed,
// only its original is left to be deleted. Where the lease ends before that, the retry
// has no error, and the original comes as a duplicate.
func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	entries := make([]entry, len(batch))
	if claimed := s.claim(batch, entries); len(claimed) > 0 {
		defer s.calls.Done()
		s.plan(ctx, claimed).each(func(j *job) { j.run(ctx) })
	}
	failures := adapter.Failures{Broker: "sqs", Entries: len(batch)}
	for i, e := range entries {
		failures.Add(i, batch[i].Action.String(), batch[i].Delivery, e.err)
	}
	return failures.List
}

// entry is a delivery in a call of Settle or Extend.
type entry struct {
	*token
	delivery   *brokers.Delivery   // of Extend
	settlement *brokers.Settlement // nil for what is given back without one
	seconds    int32               // of the visibility timeout to ask for
	last       bool                // if that cannot be, there is no other way, as by a copy
	err        error
}

func (e *entry) retries() bool { return e.settlement != nil && e.settlement.Action == brokers.Retry }

// outcomes calls f with each entry of a call and its error. f is called with mu held.
func (s *source) outcomes(entries []*entry, errs []error, f func(e *entry, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range entries {
		f(e, errs[i])
	}
}

// job is what a call of Settle or Extend does on one queue.
type job struct {
	*feed
	deadline            time.Time // of the first lease to end
	acks, moves, copies []*entry
}

// jobs are those of a call.
type jobs map[*feed]*job

// of is the one that e belongs to.
func (all jobs) of(e *entry) *job {
	j := all[e.feed]
	if j == nil {
		j = &job{feed: e.feed, deadline: e.limit}
		all[e.feed] = j
	}
	j.deadline = earlier(j.deadline, e.limit)
	return j
}

// each calls f with every job, all at once.
func (all jobs) each(f func(*job)) {
	list := slices.Collect(maps.Values(all))
	each(len(list), len(list), func(i int) { f(list[i]) })
}

// claim takes deliveries for this call, so that no other one settles or extends
// them.
func (s *source) claim(batch []brokers.Settlement, entries []entry) (claimed []*entry) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		e := &entries[i]
		if e.token, e.err = s.check(batch[i].Delivery, now); e.err == nil {
			e.err = checkAction(batch[i].Action)
		}
		if e.err == nil {
			e.settlement, e.state = &batch[i], settling
			claimed = append(claimed, e)
		}
	}
	if len(claimed) > 0 {
		s.calls.Add(1)
	}
	return claimed
}

// checkAction says what is wrong with an action.
func checkAction(a brokers.Action) error {
	switch a {
	case brokers.Ack, brokers.Retry, brokers.Release:
		return nil
	case brokers.Reject:
		return fmt.Errorf("%w: SQS moves a message to a dead-letter queue when it has been received too often, and not on demand; the delivery is still held", brokers.ErrRefused)
	}
	return fmt.Errorf("action %d is none, the delivery is still held", a)
}

// plan decides what to do with each entry, once nobody extends it any more.
func (s *source) plan(ctx context.Context, claimed []*entry) jobs {
	err := s.await(ctx, claimed)
	now := time.Now()
	all := make(jobs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range claimed {
		switch {
		case !now.Before(e.until):
			s.conclude(e, brokers.ErrLeaseLost)
			continue
		case err != nil:
			s.conclude(e, err)
			continue
		}
		all.of(e).assign(e, now)
	}
	return all
}

// assign plans one entry. mu is held.
func (j *job) assign(e *entry, now time.Time) {
	s, t, st := j.source, e.token, e.settlement
	switch {
	case st.Action == brokers.Ack || t.copied:
		j.acks = append(j.acks, e)
		return
	case st.Action == brokers.Release && t.renews():
		j.copies = append(j.copies, e)
		return
	case st.Action == brokers.Release:
		s.notes.put(t.record.id, t.history(), now, 0)
	case st.Action == brokers.Retry:
		inPlace, err := s.inPlace(e, now)
		switch {
		case err != nil:
			s.conclude(e, err)
			return
		case !inPlace && s.readOnly:
			s.conclude(e, adapter.ErrReadOnly)
			return
		case !inPlace:
			j.copies = append(j.copies, e)
			return
		}
		if !sameMeta(st.Meta, t.record.meta) {
			s.notes.put(t.record.id, t.retried(st), now, st.Delay)
		}
		e.last = j.fifo || s.readOnly
	}
	j.moves = append(j.moves, e)
	for _, follower := range j.block(t, now) {
		s.note([]*token{follower})
		j.moves = append(j.moves, &entry{token: follower})
	}
}

// inPlace says whether the message of a retry can be hidden instead of being copied,
// and for how many seconds. SQS stores nothing then but a receive that it counts:
// that must tell other workers what they need to know. mu is held.
func (s *source) inPlace(e *entry, now time.Time) (ok bool, err error) {
	t, st := e.token, e.settlement
	e.seconds = seconds(st.Delay)
	left := t.begun.Add(maxTotal).Sub(now)
	fits := st.Delay <= left-time.Second
	switch {
	case t.feed.fifo && !fits:
		return false, fmt.Errorf("%w: a retry on a FIFO queue blocks its group in place, and of the 12 h for which SQS lets a message be held only %v are left for a delay of %v",
			brokers.ErrRefused, left.Round(time.Second), st.Delay)
	case t.feed.fifo:
		return true, nil
	case s.readOnly: // no receive is an attempt
		return fits && sameMeta(st.Meta, t.record.meta), nil
	case t.renews():
		return false, nil
	}
	stored := t.record.history()
	next, lost := t.feed.counting.read(stored, t.record.receives+1)
	if _, before := t.feed.counting.read(stored, t.record.receives); next.Attempt != st.Meta.Attempt || lost != before {
		return false, nil
	}
	if sameMeta(st.Meta, t.record.meta) { // a hop
		if !fits {
			e.seconds = seconds(left.Truncate(time.Second))
			fits = left > longestDelay
		}
	} else {
		fits = fits && !t.feed.counting.copies && s.notes.room(t.record.id, now) &&
			!st.Meta.DueAt.After(now.Add(time.Duration(e.seconds)*time.Second))
	}
	return fits && !t.feed.isHeavy(now), nil
}

const (
	// mostParked is how many messages of a queue may be in flight, of the
	// 120,000 or so that SQS allows, before retries stop to be among them.
	mostParked = 100_000

	// weighPace is how often a worker asks for that: often enough beside the
	// minutes in which workers park 20,000 messages, and seldom beside its polls.
	weighPace = 15 * time.Second
)

// isHeavy reports whether so much of the queue is in flight that retries must not
// wait there. It asks the queue in the background, from time to time. mu is held, and
// a call is under way.
func (f *feed) isHeavy(now time.Time) bool {
	s := f.source
	if now.Sub(f.weighed) >= weighPace {
		f.weighed = now
		s.calls.Go(func() {
			attrs, err := s.broker.client.inspect(context.Background(), f.url)
			s.mu.Lock()
			defer s.mu.Unlock()
			if err == nil {
				f.heavy = aws.ToInt64(attrs.backlog.Taken) >= mostParked
			}
		})
	}
	return f.heavy
}

// sameMeta reports whether a is b, so that nothing has to be stored.
func sameMeta(a, b brokers.Meta) bool {
	return a.Attempt == b.Attempt && a.DueAt.Equal(b.DueAt) && reflect.DeepEqual(a, b)
}

// conclude ends the claim on an entry with the outcome err. mu is held.
func (s *source) conclude(e *entry, err error) {
	switch {
	case e.settlement == nil: // it comes when its timeout is over
	case e.copied && (err == nil || errors.Is(err, brokers.ErrLeaseLost)):
		s.forget(e.token, settled) // the retry is durable; the original may be a duplicate
		err = nil
	case err == nil:
		s.forget(e.token, settled)
	case errors.Is(err, brokers.ErrLeaseLost):
		s.lose(e.token)
	default:
		e.state = held
	}
	e.err = err
}

// run carries out the plan.
func (j *job) run(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, j.deadline)
	defer cancel()
	j.delete(ctx, j.acks)
	j.move(ctx, j.moves)
	confirmed, unfit := j.copy(ctx)
	j.delete(ctx, confirmed)
	j.move(ctx, j.stay(unfit))
}

// current returns those of entries whose leases have not ended, and ends the
// others.
func (j *job) current(entries []*entry) []*entry {
	s, now := j.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(entries, func(e *entry) bool {
		stale := !now.Before(e.until)
		if stale {
			s.conclude(e, brokers.ErrLeaseLost)
		}
		return stale
	})
}

// delete deletes messages.
func (j *job) delete(ctx context.Context, entries []*entry) {
	entries = j.current(entries)
	s := j.source
	s.outcomes(entries, s.broker.client.remove(ctx, j.url, entries), func(e *entry, err error) {
		if err == nil {
			delete(s.notes.entries, e.record.id)
		}
		s.conclude(e, err)
	})
}

// move changes visibility timeouts: it gives back and retries in place, on
// FIFO queues from the last message to the first, so that none is visible
// before those that it follows. What can no longer be held for so long is left
// to be copied.
func (j *job) move(ctx context.Context, moves []*entry) {
	if len(moves) == 0 {
		return
	}
	slices.SortFunc(moves, func(a, b *entry) int { return cmp.Compare(b.seq, a.seq) })
	start := time.Now()
	deadline := j.deadline
	for _, m := range moves {
		if m.seconds > 0 { // the SDK must not repeat it when the message is back
			deadline = earlier(deadline, start.Add(time.Duration(m.seconds)*time.Second))
		}
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	j.source.outcomes(moves, j.source.broker.client.hide(ctx, j.url, moves, j.atOnce()), func(m *entry, err error) {
		switch {
		case m.settlement != nil && !m.last && errors.Is(err, errPastTotal):
			j.copies = append(j.copies, m)
			return
		case errors.Is(err, errPastTotal):
			err = fmt.Errorf("%w: %w", brokers.ErrRefused, err)
		case mayBeDone(err):
			err = fmt.Errorf("%w: %w", brokers.ErrUnknownOutcome, err)
			m.shorten(start.Add(time.Duration(m.seconds) * time.Second))
		}
		j.source.conclude(m, err)
	})
}

// stay plans to retry in place what has no room to be copied, for as long as SQS
// lets it be held. What its receive will not tell other workers, this one alone
// knows, and sees to it that it is not early.
func (j *job) stay(entries []*entry) []*entry {
	entries = j.current(entries)
	s, now := j.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		known, delay := e.history(), time.Duration(0)
		if e.retries() {
			known, delay = e.retried(e.settlement), e.settlement.Delay
		}
		s.notes.put(e.record.id, known, now, delay)
		left := e.begun.Add(maxTotal).Sub(now).Truncate(time.Second)
		e.seconds, e.last = seconds(min(delay, left)), true
	}
	return entries
}

// copy sends the copies of retries. It returns the entries of those that are
// confirmed, and of those whose message SQS does not take as a copy.
func (j *job) copy(ctx context.Context) (confirmed, unfit []*entry) {
	var out []outgoing
	var sent []*entry
	for _, e := range j.current(j.copies) {
		o, err := j.copyOf(e)
		if err != nil {
			unfit = append(unfit, e)
			continue
		}
		out, sent = append(out, o), append(sent, e)
	}
	s := j.source
	s.outcomes(sent, s.broker.client.send(ctx, &j.queue, out), func(e *entry, err error) {
		switch {
		case errors.Is(err, brokers.ErrRefused):
			unfit = append(unfit, e)
		case isGone(err): // with the original
			s.conclude(e, errGone)
		case err != nil:
			s.conclude(e, fmt.Errorf("the original stays: %w", err))
		default:
			e.copied = true
			confirmed = append(confirmed, e)
		}
	})
	return confirmed, unfit
}

// copyOf is the message that replaces the delivery of a retry. Its error is that
// there is no room for it.
func (j *job) copyOf(e *entry) (outgoing, error) {
	meta, delay := e.meta, time.Duration(0)
	if e.retries() {
		meta, delay = e.settlement.Meta, e.settlement.Delay
	}
	if meta.DueAt.IsZero() && delay > 0 {
		meta.DueAt = time.Now().Add(delay)
	}
	return j.compose(e.record.message, &meta, min(max(0, delay), longestDelay))
}
