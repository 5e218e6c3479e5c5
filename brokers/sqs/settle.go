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

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Settle settles the deliveries of all queues at the same time, and of each
// first those that need no copy; then it sends the copies of the other retries
// and removes the originals of those that SQS has confirmed. It repeats
// nothing that failed.
func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	b := settlement{source: s, batch: batch, errs: make([]error, len(batch)), jobs: make(map[*feed]*job)}
	if b.claim() {
		defer s.calls.Done()
		b.plan(ctx)
		jobs := slices.Collect(maps.Values(b.jobs))
		each(len(jobs), len(jobs), func(i int) { jobs[i].run(ctx) })
	}
	failures := adapter.Failures{Broker: "sqs", Entries: len(batch)}
	for i, err := range b.errs {
		failures.Add(i, batch[i].Action.String(), batch[i].Delivery, err)
	}
	return failures.List
}

// settlement is one call of Settle.
type settlement struct {
	source  *source
	batch   []brokers.Settlement
	errs    []error
	claimed []int // entries that this call may settle
	jobs    map[*feed]*job
}

// job is what a settlement does on one queue. Its lists hold indexes of the
// batch.
type job struct {
	*settlement
	feed     *feed
	deadline time.Time // of the first lease to end
	acks     []int
	moves    []move
	copies   []int
}

// move is a new visibility timeout.
type move struct {
	token   *token
	seconds int32
	entry   int // of the batch; -1 for what is given back with another one

	last bool // there is no other way, as by a copy
}

func (b *settlement) token(i int) *token { return b.batch[i].Delivery.Token.(*token) }

func (b *settlement) tokens() []*token {
	tokens := make([]*token, len(b.claimed))
	for at, i := range b.claimed {
		tokens[at] = b.token(i)
	}
	return tokens
}

// claim takes deliveries for this call, so that no other one settles or extends
// them. It reports whether there are any.
func (b *settlement) claim() bool {
	s, now := b.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range b.batch {
		t, err := s.check(st.Delivery, now)
		if err == nil {
			err = checkAction(st.Action)
		}
		if err != nil {
			b.errs[i] = err
			continue
		}
		t.state = settling
		b.claimed = append(b.claimed, i)
	}
	if len(b.claimed) > 0 {
		s.calls.Add(1)
	}
	return len(b.claimed) > 0
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
func (b *settlement) plan(ctx context.Context) {
	s := b.source
	err := s.await(ctx, b.tokens())
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range b.claimed {
		t := b.token(i)
		switch {
		case !now.Before(t.until):
			b.end(i, brokers.ErrLeaseLost)
			continue
		case err != nil:
			b.end(i, err)
			continue
		}
		j := b.jobs[t.feed]
		if j == nil {
			j = &job{settlement: b, feed: t.feed, deadline: t.limit}
			b.jobs[t.feed] = j
		}
		j.deadline = earlier(j.deadline, t.limit)
		j.add(i, t, now)
	}
}

// add plans one entry. mu is held.
func (j *job) add(i int, t *token, now time.Time) {
	s, st := j.source, j.batch[i]
	switch {
	case st.Action == brokers.Ack || t.copied:
		j.acks = append(j.acks, i)
		return
	case st.Action == brokers.Release && t.renews():
		j.copies = append(j.copies, i)
		return
	case st.Action == brokers.Release:
		s.notes.put(t.record.id, t.history(), now, 0)
		j.moves = append(j.moves, move{token: t, entry: i})
	case st.Action == brokers.Retry:
		delay, inPlace, err := s.inPlace(t, st, now)
		switch {
		case err != nil:
			j.end(i, err)
			return
		case !inPlace && s.readOnly:
			j.end(i, adapter.ErrReadOnly)
			return
		case !inPlace:
			j.copies = append(j.copies, i)
			return
		}
		if !sameMeta(st.Meta, t.record.meta) {
			s.notes.put(t.record.id, history{meta: st.Meta, receives: t.record.receives, lost: t.lost}, now, st.Delay)
		}
		j.moves = append(j.moves, move{token: t, seconds: delay, entry: i, last: t.feed.fifo || s.readOnly})
	}
	for _, follower := range t.feed.block(t, now) {
		s.note([]*token{follower})
		j.moves = append(j.moves, move{token: follower, entry: -1})
	}
}

// inPlace says for how many seconds the message of a retry can be hidden
// instead of being copied. SQS stores nothing then but a receive that it
// counts: that must tell other workers what they need to know. mu is held.
func (s *source) inPlace(t *token, st brokers.Settlement, now time.Time) (delay int32, ok bool, err error) {
	delay = seconds(st.Delay)
	left := t.begun.Add(maxTotal).Sub(now)
	fits := st.Delay <= left-time.Second
	if t.feed.fifo {
		if !fits {
			return 0, false, errTooLong(st.Delay, left)
		}
		return delay, true, nil
	}
	if s.readOnly { // no receive is an attempt
		return delay, fits && sameMeta(st.Meta, t.record.meta), nil
	}
	if t.renews() {
		return 0, false, nil
	}
	stored := t.record.history()
	next, lost := t.feed.counting.read(stored, t.record.receives+1)
	if _, before := t.feed.counting.read(stored, t.record.receives); next.Attempt != st.Meta.Attempt || lost != before {
		return 0, false, nil
	}
	if sameMeta(st.Meta, t.record.meta) { // a hop
		if !fits {
			delay = seconds(left.Truncate(time.Second))
			fits = left > longestDelay
		}
	} else {
		fits = fits && !t.feed.counting.copies && s.notes.room(t.record.id, now) &&
			!st.Meta.DueAt.After(now.Add(time.Duration(delay)*time.Second))
	}
	if !fits {
		return 0, false, nil
	}
	return delay, !t.feed.isHeavy(now), nil
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
				f.heavy = attrs.inFlight >= mostParked
			}
		})
	}
	return f.heavy
}

func errTooLong(delay, left time.Duration) error {
	return fmt.Errorf("%w: a retry on a FIFO queue blocks its group in place, and of the 12 h for which SQS lets a message be held only %v are left for a delay of %v",
		brokers.ErrRefused, left.Round(time.Second), delay)
}

// sameMeta reports whether a is b, so that nothing has to be stored.
func sameMeta(a, b brokers.Meta) bool {
	return a.Attempt == b.Attempt && a.DueAt.Equal(b.DueAt) && reflect.DeepEqual(a, b)
}

// end ends the claim on entry i with the outcome err. mu is held.
func (b *settlement) end(i int, err error) {
	s, t := b.source, b.token(i)
	switch {
	case t.copied && (err == nil || errors.Is(err, brokers.ErrLeaseLost)):
		s.forget(t, settled) // the retry is durable; the original may be a duplicate
		err = nil
	case err == nil:
		s.forget(t, settled)
	case errors.Is(err, brokers.ErrLeaseLost):
		s.lose(t)
	default:
		t.state = held
	}
	b.errs[i] = err
}

// run carries out the plan.
func (j *job) run(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, j.deadline)
	defer cancel()
	j.remove(ctx, j.acks)
	j.move(ctx, j.moves)
	confirmed, unfit := j.copy(ctx)
	j.remove(ctx, confirmed)
	j.move(ctx, j.stay(unfit))
}

// current returns those of entries whose leases have not ended, and ends the
// others.
func (j *job) current(entries []int) []int {
	s, now := j.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(entries, func(i int) bool {
		stale := !now.Before(j.token(i).until)
		if stale {
			j.end(i, brokers.ErrLeaseLost)
		}
		return stale
	})
}

// remove deletes messages.
func (j *job) remove(ctx context.Context, entries []int) {
	if entries = j.current(entries); len(entries) == 0 {
		return
	}
	handles := make([]string, len(entries))
	for at, i := range entries {
		handles[at] = j.token(i).record.handle
	}
	errs := j.source.broker.client.remove(ctx, j.feed.url, handles)
	s := j.source
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, i := range entries {
		err := errorAt(errs, at)
		if err == nil {
			s.notes.drop(j.token(i).record.id)
		}
		j.end(i, err)
	}
}

// move changes visibility timeouts: it gives back and retries in place, on
// FIFO queues from the last message to the first, so that none is visible
// before those that it follows. What can no longer be held for so long is left
// to be copied.
func (j *job) move(ctx context.Context, moves []move) {
	if len(moves) == 0 {
		return
	}
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(b.token.seq, a.token.seq) })
	start := time.Now()
	deadline := j.deadline
	changes := make([]change, len(moves))
	for at, m := range moves {
		changes[at] = change{m.token.record.handle, m.seconds}
		if m.seconds > 0 { // the SDK must not repeat it when the message is back
			deadline = earlier(deadline, start.Add(time.Duration(m.seconds)*time.Second))
		}
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	errs := j.feed.hide(ctx, changes)
	s := j.source
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, m := range moves {
		if m.entry >= 0 {
			j.moved(m, errorAt(errs, at), start)
		}
	}
}

// moved takes in the outcome of a move. mu is held.
func (j *job) moved(m move, err error, start time.Time) {
	switch {
	case errors.Is(err, errPastTotal) && !m.last:
		j.copies = append(j.copies, m.entry)
		return
	case errors.Is(err, errPastTotal):
		err = fmt.Errorf("%w: %w", brokers.ErrRefused, err)
	case mayBeDone(err):
		err = fmt.Errorf("%w: %w", brokers.ErrUnknownOutcome, err)
		m.token.shorten(start.Add(time.Duration(m.seconds) * time.Second))
	}
	j.end(m.entry, err)
}

// stay plans to retry in place what has no room to be copied, for as long as SQS
// lets it be held. What its receive will not tell other workers, this one alone
// knows, and sees to it that it is not early.
func (j *job) stay(entries []int) (moves []move) {
	entries = j.current(entries)
	s, now := j.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range entries {
		t, st := j.token(i), j.batch[i]
		known := t.history()
		if st.Action == brokers.Retry {
			known = history{meta: st.Meta, receives: t.record.receives, lost: t.lost}
		}
		s.notes.put(t.record.id, known, now, st.Delay)
		left := t.begun.Add(maxTotal).Sub(now).Truncate(time.Second)
		moves = append(moves, move{token: t, seconds: seconds(min(st.Delay, left)), entry: i, last: true})
	}
	return moves
}

// copy sends the copies of retries. It returns the entries of those that are
// confirmed, and of those whose message SQS does not take as a copy.
func (j *job) copy(ctx context.Context) (confirmed, unfit []int) {
	var out []outgoing
	var entries []int
	for _, i := range j.current(j.copies) {
		o, err := j.copyOf(i)
		if err != nil {
			unfit = append(unfit, i)
			continue
		}
		out, entries = append(out, o), append(entries, i)
	}
	if len(out) == 0 {
		return nil, unfit
	}
	errs := j.source.broker.client.send(ctx, j.feed.url, out)
	var failed []int
	var faults []error
	s := j.source
	s.mu.Lock()
	for at, i := range entries {
		err := errorAt(errs, at)
		if errors.Is(err, brokers.ErrRefused) {
			unfit = append(unfit, i)
			continue
		}
		if isGone(err) { // with the original
			err = errGone
		} else if err != nil {
			err = fmt.Errorf("the original stays: %w", err)
		}
		if err != nil {
			failed, faults = append(failed, i), append(faults, err)
			continue
		}
		j.token(i).copied = true
		confirmed = append(confirmed, i)
	}
	s.mu.Unlock()
	j.endAll(failed, faults)
	return confirmed, unfit
}

func (j *job) endAll(entries []int, errs []error) {
	j.source.mu.Lock()
	defer j.source.mu.Unlock()
	for at, i := range entries {
		j.end(i, errs[at])
	}
}

// copyOf is the message that replaces the delivery of a retry. Its error is that
// there is no room for it.
func (j *job) copyOf(i int) (outgoing, error) {
	st := j.batch[i]
	meta := st.Meta
	if st.Action == brokers.Release {
		meta = j.token(i).meta
	}
	if meta.DueAt.IsZero() && st.Delay > 0 {
		meta.DueAt = time.Now().Add(st.Delay)
	}
	return j.feed.compose(j.token(i).record.message, &meta, min(max(0, st.Delay), longestDelay))
}
