package sqs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/health"
)

// source receives from the queues of a subscription.
//
// It has no goroutine of its own. Receive starts polls, which are never
// cancelled; what they bring is buffered until a Receive takes it, and given back
// by sweep when too little is left of its lease. Whatever is under way is
// counted in calls, for which Close waits. All state is guarded by mu, also that
// of feeds and tokens; no call to SQS is made while it is held.
type source struct {
	broker *Broker
	sub    brokers.Subscription
	terms  terms
	caps   brokers.Capabilities

	readOnly bool // nothing is sent

	woken adapter.Waker
	calls sync.WaitGroup // not begun after closed is set
	ended chan struct{}  // closed when everything is given back
	link  adapter.Link   // changed under mu

	mu       sync.Mutex
	feeds    []*feed
	turn     adapter.Turn // of the feeds
	seq      uint64
	out      map[*token]struct{} // handed out, and neither settled nor lost
	appetite appetite
	notes    notes
	sweeper  *time.Timer // nil while nothing is held
	failure  error       // of a poll, not yet reported
	losses   []error     // of single topics, not yet reported
	fatal    error       // of all topics, until an operator cures it
	answered bool        // a poll was
	failing  time.Time   // since when polls have failed and none was answered; zero if the last one was

	restoring bool
	closed    bool
}

var (
	_ brokers.Source   = (*source)(nil)
	_ health.Connected = (*source)(nil)
)

func newSource(b *Broker, sub brokers.Subscription, t terms, queues []queue) *source {
	s := &source{
		broker:   b,
		sub:      sub,
		terms:    t,
		readOnly: sub.ReadOnly(),
		caps:     brokers.Capabilities{Lease: t.lease, MaxLease: maxTotal, Granularity: time.Second},
		woken:    adapter.NewWaker(),
		ended:    make(chan struct{}),
		out:      make(map[*token]struct{}),
		appetite: appetite{within: t.lease / 4},
		notes:    newNotes(mostNotes),
	}
	for _, q := range queues {
		s.feeds = append(s.feeds, s.newFeed(q))
		limit := q.messageLimit()
		s.caps.MessageLimit = min(cmp.Or(s.caps.MessageLimit, limit), limit)
		s.caps.Retention = min(cmp.Or(s.caps.Retention, q.retention), q.retention)
		s.caps.Ordered = q.fifo
	}
	s.link.Up() // Open was answered
	return s
}

func (s *source) newFeed(q queue) *feed {
	o := s.broker.options
	return &feed{
		queue: q, source: s, groups: make(map[string]int), pace: pace{polls: 1, most: o.Polls}, keep: leastKept,
		counting: counting{copies: (o.Copies || q.tight) && !q.fifo, fifo: q.fifo, maxAttempts: cmp.Or(s.sub.Attempts[q.topic], s.sub.MaxAttempts)},
	}
}

// Capabilities are those of the queues, which are all standard or all FIFO.
func (s *source) Capabilities() brokers.Capabilities { return s.caps }

// Connection implements health.Connected. The outcomes of polls say whether the service
// can be reached: no call is made for it.
func (s *source) Connection() health.Connection { return s.link.Connection() }

// hear takes in how a poll of any queue has ended. mu is held.
func (s *source) hear(err error, now time.Time) {
	if err == nil {
		if !s.failing.IsZero() {
			s.link.Up()
		}
		s.answered, s.failing = true, time.Time{}
		return
	}
	if s.failing.IsZero() {
		s.failing = now
	}
	if !s.answered || now.Sub(s.failing) >= awayAfter {
		s.link.Down(err)
	}
}

func (s *source) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("sqs: receive at most %d messages: the least is 1", max)
	}
	for {
		ds, next, err := s.step(ctx, max)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		s.woken.Wait(ctx, next)
	}
}

// step takes what is buffered and starts polls. With nothing to return, it says
// when to look again at the latest.
func (s *source) step(ctx context.Context, max int) (ds []*brokers.Delivery, next time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, next, brokers.ErrClosed
	case ctx.Err() != nil:
		return nil, next, context.Cause(ctx)
	case s.fatal != nil:
		return nil, next, s.fatal
	case len(s.losses) > 0:
		err, s.losses = s.losses[0], s.losses[1:]
		return nil, next, err
	}
	now := time.Now()
	ds = s.take(max, now)
	next = s.poll(max-len(ds), now)
	if len(ds) == 0 && s.failure != nil {
		err, s.failure = s.failure, nil
	}
	return ds, next, err
}

// take hands out what is buffered, from the queues in turn. mu is held.
func (s *source) take(most int, now time.Time) []*brokers.Delivery {
	var ds []*brokers.Delivery
	var taken []*token
	ready := func(i int) int { return len(s.feeds[i].items) }
	s.turn.Take(most, len(s.feeds), ready, func(i, most int) int {
		tokens := s.feeds[i].take(most, now)
		for _, t := range tokens {
			ds = append(ds, t.hand(now, s.terms.lease))
			s.out[t] = struct{}{}
		}
		taken = append(taken, tokens...)
		return len(tokens)
	})
	for _, t := range taken { // from now on their groups are held back
		if group := t.group(); group != "" {
			t.feed.groups[group]++
		}
	}
	s.appetite.take(len(taken), now)
	return ds
}

// forget takes a token off the books: it is settled or lost. mu is held.
func (s *source) forget(t *token, end state) {
	t.state = end
	if _, known := s.out[t]; !known {
		return
	}
	delete(s.out, t)
	groups, group := t.feed.groups, t.group()
	if groups[group]--; groups[group] <= 0 {
		delete(groups, group)
	}
	if t.feed.fifo && len(t.feed.items) > 0 {
		s.woken.Wake()
	}
}

// lose forgets a token that another worker may have by now, and gives back what
// would have been delivered after it. mu is held.
func (s *source) lose(t *token) {
	s.forget(t, lost)
	s.goGiveBack(t.feed, t.feed.followers(t))
}

// sweep gives back what has waited for too long or is of a paused topic, and
// forgets what has expired.
func (s *source) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := time.Now()
	for _, f := range s.feeds {
		unwanted := f.unwanted(now)
		s.goGiveBack(f, f.remove(func(t *token) bool { return unwanted || t.limit.Sub(now) < s.terms.reserve() }))
	}
	for t := range s.out {
		if t.state == held && t.extension == nil && !now.Before(t.until) {
			s.lose(t)
		}
	}
	s.sweeper = nil
	s.arm()
}

// arm sees to it that there is a sweep while anything is handed out or buffered. mu is
// held.
func (s *source) arm() {
	holds := len(s.out) > 0 || slices.ContainsFunc(s.feeds, func(f *feed) bool { return len(f.items) > 0 })
	if holds && s.sweeper == nil && !s.closed {
		s.sweeper = time.AfterFunc(min(s.terms.lease/8, sweepPace), s.sweep)
	}
}

// goGiveBack gives messages back without waiting for it. mu is held, and the
// source is not closed.
func (s *source) goGiveBack(f *feed, tokens []*token) {
	if len(tokens) > 0 {
		s.note(tokens)
		s.calls.Go(func() { f.release(tokens) })
	}
}

// note remembers messages that are given back as they came. mu is held.
func (s *source) note(tokens []*token) {
	now := time.Now()
	for _, t := range tokens {
		t.state = lost
		if t.record.err == nil && t.record.unreadable == nil { // else its Meta is not known
			s.notes.put(t.record.id, t.history(), now, 0)
		}
	}
}

// Close starts no more polls, waits for the open ones, up to Options.PollWait,
// and gives back what is held: sooner it would come to the polls of this
// source. When ctx ends before that, its cause is returned, and the rest goes on
// in the background.
func (s *source) Close(ctx context.Context) error {
	s.mu.Lock()
	begin := !s.closed
	s.closed = true
	s.mu.Unlock()
	if begin {
		s.woken.Wake()
		go s.end()
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sqs: close the source of %q: calls are still open; what is held is given back in the background: %w", s.sub.Topics, context.Cause(ctx))
	}
}

// end gives everything back.
func (s *source) end() {
	defer close(s.ended)
	defer s.broker.sources.Remove(s)
	s.calls.Wait()
	s.mu.Lock()
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	held := make([][]*token, len(s.feeds))
	for i, f := range s.feeds {
		held[i] = f.remove(func(*token) bool { return true })
		for t := range s.out {
			if t.feed == f && !t.copied {
				held[i] = append(held[i], t)
			}
		}
		s.note(held[i])
	}
	clear(s.out)
	s.mu.Unlock()
	each(len(held), callsAtOnce, func(i int) { s.feeds[i].release(held[i]) })
}
