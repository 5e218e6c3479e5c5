package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

type source struct {
	broker       *Broker
	capabilities brokers.Capabilities
	session      context.Context
	cancel       context.CancelCauseFunc
	woken        chan struct{}

	// The broker's lock guards the rest.
	subs      []*subscription
	active    []*subscription
	turn      int // the one of active to serve next
	receiving bool
	waiting   bool
	closed    bool
	deleted   []string // topics whose deletion Receive has not reported yet
}

var _ brokers.Source = (*source)(nil)

func (s *source) Capabilities() brokers.Capabilities { return s.capabilities }

func (s *source) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("memory: receive at most %d messages: the least is 1", max)
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.finish()
	faults, err := s.broker.faults(ctx, 1, func(int) Op { return Op{Operation: Receive} })
	if err != nil {
		return nil, err
	}
	if f := faultAt(faults, 0); f.Err != nil {
		return nil, fmt.Errorf("memory: receive: %w", f.Err)
	}
	for {
		ds, err := s.wait(ctx, max)
		if err != nil {
			return nil, err
		}
		if ds, err = s.deliver(ctx, ds); len(ds) > 0 || err != nil {
			return ds, err
		}
	}
}

// begin refuses what the contract excludes, since it would go wrong now and
// then with other brokers.
func (s *source) begin() error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if s.closed {
		return brokers.ErrClosed
	}
	if s.receiving {
		return errors.New("memory: Receive is called from two goroutines at once")
	}
	s.receiving = true
	return nil
}

func (s *source) finish() {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.receiving = false
}

// wait takes up to max deliveries as soon as there is one.
func (s *source) wait(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	for {
		ds, err := s.poll(max)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		select {
		case <-s.woken:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			s.giveUp()
			return nil, context.Cause(ctx)
		}
	}
}

// poll takes up to max deliveries, or registers the source to be woken.
func (s *source) poll(max int) ([]*brokers.Delivery, error) {
	b := s.broker
	now := b.lock()
	defer b.unlock(now)
	if s.closed {
		return nil, brokers.ErrClosed
	}
	if len(s.deleted) > 0 {
		topic := s.deleted[0]
		s.deleted = s.deleted[1:]
		return nil, &brokers.TopicError{Topic: topic, Err: fmt.Errorf("memory: the topic %q was deleted with all its messages: publish to it, or open it, to create it again", topic)}
	}
	if ds := s.take(now, max); len(ds) > 0 {
		s.passOn()
		return ds, nil
	}
	s.waiting = true
	b.waiting++
	return nil, nil
}

// take removes up to max available messages from the active topics, in turn
// and in equal shares.
func (s *source) take(now time.Duration, max int) []*brokers.Delivery {
	n := 0
	for i := 0; i < len(s.active) && n < max; i++ {
		n += s.active[i].topic.ready.len()
	}
	ds := make([]*brokers.Delivery, 0, min(n, max))
	hand := func(e *entry) { ds = append(ds, s.broker.hand(e, s, now)) }
	share := 1 + (max-1)/cmp.Or(len(s.active), 1)
	for len(ds) < max && len(s.active) > 0 {
		s.turn %= len(s.active)
		sub := s.active[s.turn]
		sub.topic.take(min(share, max-len(ds)), hand)
		if sub.topic.available() {
			s.turn++
			continue
		}
		sub.active = false
		last := len(s.active) - 1
		s.active[s.turn] = s.active[last]
		s.active[last] = nil
		s.active = s.active[:last]
	}
	return ds
}

// wake ends the wait of a source that waits, and reports whether it did.
func (s *source) wake() bool {
	if !s.waiting {
		return false
	}
	s.waiting = false
	s.broker.waiting--
	s.woken <- struct{}{}
	return true
}

// passOn lets others have what this source left behind.
func (s *source) passOn() {
	for _, sub := range s.active {
		if s.broker.waiting == 0 {
			return
		}
		if sub.topic.available() {
			sub.topic.wake()
		}
	}
}

// giveUp ends the wait of Receive. If the source was woken by then, somebody
// else has to look instead.
func (s *source) giveUp() {
	now := s.broker.lock()
	defer s.broker.unlock(now)
	if s.waiting {
		s.waiting = false
		s.broker.waiting--
		return
	}
	select {
	case <-s.woken:
	default:
	}
	s.passOn()
}

// deliver applies the faults to what was taken. It may leave nothing.
func (s *source) deliver(ctx context.Context, ds []*brokers.Delivery) ([]*brokers.Delivery, error) {
	b := s.broker
	if b.options.Fault == nil {
		return ds, nil
	}
	faults, ended := b.faults(ctx, len(ds), func(i int) Op {
		return Op{Operation: Deliver, Topic: ds[i].Message.Topic, ID: ds[i].Message.ID}
	})
	now := b.lock()
	defer b.unlock(now)
	if s.closed {
		return nil, brokers.ErrClosed
	}
	kept := make([]*brokers.Delivery, 0, len(ds))
	missing := make(map[*lane]bool) // a message of these is not returned
	err := ended
	for i, d := range ds {
		h, fault := d.Token.(*hold), faultAt(faults, i)
		if ended != nil {
			fault.Err, fault.Done = ended, false
		}
		if s.disturb(now, h, fault, missing[h.entry.lane]) && fault.Err == nil {
			d.Unreadable = fault.Unreadable
			kept = append(kept, d)
			continue
		}
		missing[h.entry.lane] = h.entry.lane != nil
		if err == nil && fault.Err != nil {
			err = fmt.Errorf("memory: receive from %q: %w", d.Message.Topic, fault.Err)
		}
	}
	if len(kept) > 0 {
		err = nil
	}
	return kept, err
}

// disturb applies fault to h and reports whether it can be returned still: no
// earlier message of its key is missing, and half of its lease is left.
func (s *source) disturb(now time.Duration, h *hold, fault Fault, missing bool) bool {
	if h.end != held {
		return false
	}
	if missing || fault.skip() || h.until-now < s.capabilities.Lease/2 {
		s.broker.drop(h, settled)
		return false
	}
	if fault.Duplicate {
		h.entry.topic.repeat(h.entry)
	}
	if fault.Lost {
		s.broker.drop(h, lost)
	}
	return true
}

func (s *source) Pause(topics ...string) {
	now := s.broker.lock()
	defer s.broker.unlock(now)
	if s.closed {
		return
	}
	for _, sub := range s.subs {
		switch paused := slices.Contains(topics, sub.topic.name); {
		case paused && !sub.paused:
			sub.pause()
		case !paused && sub.paused:
			sub.paused = false
			sub.activate()
		}
	}
}

func (s *source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	b := s.broker
	faults, err := b.faults(ctx, len(batch), func(i int) Op {
		op := opOn(Settle, batch[i].Delivery)
		op.Action = batch[i].Action
		return op
	})
	errs := adapter.Failures{Broker: "memory", Entries: len(batch)}
	now := b.lock()
	defer b.unlock(now)
	for i, st := range batch {
		fault := faultAt(faults, i)
		if err != nil {
			fault = Fault{Err: err}
		}
		errs.Add(i, st.Action.String(), st.Delivery, s.settle(now, st, fault))
	}
	return errs.List
}

func (s *source) settle(now time.Duration, st brokers.Settlement, fault Fault) error {
	b := s.broker
	h, err := s.held(st.Delivery, fault)
	if err != nil {
		return err
	}
	e := h.entry
	if fault.Duplicate && st.Action == brokers.Retry {
		b.retryCopy(e, now, st)
	}
	if fault.skip() {
		return fault.Err
	}
	switch st.Action {
	case brokers.Ack:
		b.win(h)
		e.topic.remove(e)
	case brokers.Retry:
		b.win(h)
		e.storeMeta(st.Meta)
		e.abandoned = 0
		b.postpone(e, now, st.Delay)
	case brokers.Release:
		b.drop(h, settled)
	case brokers.Reject:
		dead := s.deadLetterOf(e.topic)
		if dead == nil {
			return fmt.Errorf("its subscription names no dead-letter topic: %w", brokers.ErrRefused)
		}
		b.win(h)
		e.topic.remove(e)
		b.bury(e, dead)
	default:
		return fmt.Errorf("action %d is none, the delivery is still held", st.Action)
	}
	return fault.Err
}

// deadLetterOf returns where this source leaves what it rejects of t, nil if
// nowhere.
func (s *source) deadLetterOf(t *topic) *topic {
	for _, sub := range s.subs {
		if sub.topic == t {
			return sub.deadLetter
		}
	}
	return nil
}

func (s *source) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	b := s.broker
	faults, err := b.faults(ctx, len(ds), func(i int) Op { return opOn(Extend, ds[i]) })
	errs := adapter.Failures{Broker: "memory", Entries: len(ds)}
	now := b.lock()
	defer b.unlock(now)
	for i, d := range ds {
		fault := faultAt(faults, i)
		if err != nil {
			fault = Fault{Err: err}
		}
		errs.Add(i, "extend", d, s.extend(now, lease, d, fault))
	}
	return errs.List
}

func (s *source) extend(now, lease time.Duration, d *brokers.Delivery, fault Fault) error {
	h, err := s.held(d, fault)
	if err != nil {
		return err
	}
	if fault.skip() {
		return fault.Err
	}
	b, until := s.broker, later(now, lease)
	if limit := s.capabilities.MaxLease; limit > 0 {
		until = min(until, later(h.since, limit))
	}
	if until <= h.until {
		return fault.Err
	}
	h.until = until
	b.leases.remove(&h.pos)
	b.leases.push(timed{at: until, seq: h.entry.seq, entry: h.entry, hold: h})
	d.LeaseUntil = b.start.Add(until)
	return fault.Err
}

// held returns the hold that d stands for if it is still this source's.
func (s *source) held(d *brokers.Delivery, fault Fault) (*hold, error) {
	if d == nil {
		return nil, adapter.ErrNotHeld
	}
	h, ok := d.Token.(*hold)
	switch {
	case !ok || h.source != s:
		return nil, adapter.ErrNotHeld
	case h.end == settled:
		return nil, brokers.ErrSettled
	case s.closed:
		return nil, errEnded
	case h.end == held && fault.Lost:
		s.broker.drop(h, lost)
	}
	return h, h.end.err()
}

func (s *source) Close(context.Context) error {
	now := s.broker.lock()
	defer s.broker.unlock(now)
	s.close(false)
	return nil
}

// close ends the session. A source that crashes keeps its leases.
func (s *source) close(crash bool) {
	if s.closed {
		return
	}
	s.closed = true
	s.cancel(brokers.ErrClosed)
	s.wake()
	s.passOn()
	s.active = nil
	b := s.broker
	delete(b.sources, s)
	for _, t := range b.topics {
		t.subs = slices.DeleteFunc(t.subs, func(sub *subscription) bool { return sub.source == s })
	}
	if crash {
		return
	}
	var mine []*hold
	for _, t := range b.leases {
		if t.hold.source == s {
			mine = append(mine, t.hold)
		}
	}
	for _, h := range mine {
		b.drop(h, released)
	}
}

func opOn(o Operation, d *brokers.Delivery) Op {
	if d == nil {
		return Op{Operation: o}
	}
	return Op{Operation: o, Topic: d.Message.Topic, ID: d.Message.ID}
}
