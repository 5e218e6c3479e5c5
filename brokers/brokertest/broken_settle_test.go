package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var brokenSettling = []broken{
	{name: "ack does nothing", fails: "ack-removes",
		hooks: onSettle(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			if st.Action == brokers.Ack {
				return errNone
			}
			return nil
		})},
	{name: "ack releases", fails: "ack-removes",
		hooks: changed(brokers.Ack, func(st *brokers.Settlement) { st.Action = brokers.Release })},
	{name: "release acks", fails: "release-returns",
		hooks: changed(brokers.Release, func(st *brokers.Settlement) { st.Action = brokers.Ack })},
	{name: "release leaves it to the lease", fails: "release-returns",
		hooks: onSettle(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
			if st.Action == brokers.Release && s.holds(st.Delivery) {
				return errNone
			}
			return nil
		})},
	{name: "release waits for the delay", fails: "release-returns",
		hooks: onSettle(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			if st.Action == brokers.Release && st.Delay > 0 {
				st.Action, st.Meta = brokers.Retry, st.Delivery.Meta()
			}
			return nil
		})},
	{name: "release counts an attempt", fails: "abandoned-counted release-keeps-meta", // a Retry begins the count anew,
		hooks: changed(brokers.Release, func(st *brokers.Settlement) {
			st.Action, st.Delay, st.Meta = brokers.Retry, 0, st.Delivery.Meta()
			st.Meta.Attempt++
		})},
	{name: "reject acks", fails: "reject-kept",
		hooks: changed(brokers.Reject, func(st *brokers.Settlement) { st.Action = brokers.Ack })},
	{name: "reject releases", fails: "reject-kept",
		hooks: changed(brokers.Reject, func(st *brokers.Settlement) { st.Action = brokers.Release })},
	{name: "reject drops the headers", fails: "reject-kept",
		hooks: onReject(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if dead := s.sub.DeadLetters[st.Delivery.Message.Topic]; dead != "" && s.holds(st.Delivery) {
				m := st.Delivery.Message
				m.Headers = nil
				s.b.inner.Publish(ctx, dead, m)
				st.Action = brokers.Ack
			}
			return nil
		})},
	{name: "a refused reject gives the delivery up", fails: "reject-kept",
		hooks: onReject(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if s.sub.DeadLetters != nil && s.holds(st.Delivery) {
				s.settle(ctx, brokers.Settlement{Delivery: st.Delivery, Action: brokers.Ack})
				return brokers.ErrRefused
			}
			return nil
		})},
	{name: "reject without a dead-letter topic drops the message", fails: "reject-discarded",
		hooks: onReject(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
			if s.sub.DeadLetters == nil {
				st.Action = brokers.Ack
			}
			return nil
		})},
	{name: "settle answers with the errors only", fails: "settle-answers",
		hooks: settling(func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			return slices.DeleteFunc(s.settle(ctx, batch...), func(err error) bool { return err == nil })
		})},
	{name: "a second settlement is reported as done", fails: "settle-once",
		hooks: onAnswer(func(_ context.Context, _ *faultySource, _ brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrSettled) {
				return nil
			}
			return err
		})},
	{name: "a second settlement revives the message", fails: "settle-once",
		hooks: onAnswer(func(ctx context.Context, s *faultySource, st brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrSettled) && st.Action == brokers.Retry {
				return s.b.inner.Publish(ctx, st.Delivery.Message.Topic, st.Delivery.Message)
			}
			return err
		})},
	{name: "one bad entry fails the whole batch", fails: "settle-partial",
		hooks: settling(func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			if len(batch) > 1 && slices.ContainsFunc(batch, func(st brokers.Settlement) bool { return !s.holds(st.Delivery) }) {
				return slices.Repeat([]error{brokers.ErrSettled}, len(batch))
			}
			return s.settle(ctx, batch...)
		})},
	{name: "settle acts on its batch later", fails: "settle-forgets-batch",
		hooks: settlesLater,
		adjust: func(h *Harness) {
			h.LoseRequests, h.LoseConfirms, h.Crash = nil, nil, nil
		}},
	{name: "settle gives a delivery up when its context ends", fails: "settle-interrupted",
		hooks: func() hooks {
			var mu sync.Mutex
			gone := make(map[*brokers.Delivery]bool)
			return onSettle(func(ctx context.Context, _ *faultySource, st *brokers.Settlement) error {
				mu.Lock()
				defer mu.Unlock()
				if gone[st.Delivery] {
					return brokers.ErrSettled
				}
				gone[st.Delivery] = ctx.Err() != nil
				return ctx.Err()
			})()
		}},
	{name: "a late settlement is reported as done", fails: "settle-expired settle-stale",
		hooks: onAnswer(func(_ context.Context, _ *faultySource, _ brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrLeaseLost) && !errors.Is(err, brokers.ErrClosed) {
				return nil
			}
			return err
		})},
	{name: "a late settlement ends the delivery of the present holder", fails: "settle-stale",
		hooks: onAnswer(func(ctx context.Context, s *faultySource, st brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrLeaseLost) && !errors.Is(err, brokers.ErrClosed) {
				s.b.instead(ctx, st)
			}
			return err
		})},
	{name: "a late settlement removes what nobody holds", fails: "settle-expired",
		hooks: onAnswer(func(ctx context.Context, s *faultySource, st brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrLeaseLost) && !errors.Is(err, brokers.ErrClosed) && len(s.b.sources()) == 1 {
				s.b.remove(ctx, s.sub, st.Delivery.Message.ID)
			}
			return err
		})},
	{name: "a settlement after close is reported as done", fails: "close-ends-settling",
		hooks: onAnswer(func(_ context.Context, _ *faultySource, _ brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrClosed) {
				return nil
			}
			return err
		})},
	{name: "a settlement after close ends the delivery of the present holder", fails: "close-ends-settling",
		hooks: onAnswer(func(ctx context.Context, s *faultySource, st brokers.Settlement, err error) error {
			if errors.Is(err, brokers.ErrClosed) {
				s.b.instead(ctx, st)
			}
			return err
		})},
	{name: "settle waits for receive", fails: "source-concurrent",
		hooks: func() hooks {
			return hooks{
				receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
					s.lock <- struct{}{}
					defer func() { <-s.lock }()
					return s.take(ctx, max)
				},
				settle: func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
					s.lock <- struct{}{}
					defer func() { <-s.lock }()
					return s.settle(ctx, batch...)
				},
			}
		}},
}

// instead settles the delivery of whoever holds the message of st now.
func (b *faulty) instead(ctx context.Context, st brokers.Settlement) {
	b.mu.Lock()
	now := b.holder[st.Delivery.Message.ID]
	b.mu.Unlock()
	if now.d != st.Delivery {
		st.Delivery = now.d
		now.src.inner.Settle(ctx, []brokers.Settlement{st})
	}
}

// remove takes the message with this ID off the broker.
func (b *faulty) remove(ctx context.Context, sub brokers.Subscription, id string) {
	src, err := b.inner.Open(ctx, sub)
	if err != nil {
		return
	}
	defer src.Close(ctx)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	ds, _ := src.Receive(short, 100)
	for _, d := range ds {
		if d.Message.ID == id {
			src.Settle(ctx, []brokers.Settlement{{Delivery: d, Action: brokers.Ack}})
		}
	}
}

// settlesLater keeps the batches of retries until the next call on the source.
func settlesLater() hooks {
	var mu sync.Mutex
	kept := make(map[*faultySource][][]brokers.Settlement)
	flush := func(s *faultySource) {
		mu.Lock()
		batches := kept[s]
		delete(kept, s)
		mu.Unlock()
		for _, batch := range batches {
			s.settle(context.Background(), batch...)
		}
	}
	return hooks{
		receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			flush(s)
			return s.take(ctx, max)
		},
		settle: func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			if len(batch) == 1 && batch[0].Action == brokers.Retry && s.holds(batch[0].Delivery) {
				mu.Lock()
				defer mu.Unlock()
				kept[s] = append(kept[s], batch)
				return nil
			}
			flush(s)
			return s.settle(ctx, batch...)
		},
		closeSource: func(ctx context.Context, s *faultySource) error {
			flush(s)
			return s.inner.Close(ctx)
		},
	}
}

const day = 24 * time.Hour

var brokenRetries = []broken{
	{name: "retry acks", fails: "retry-returns",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Action = brokers.Ack })},
	{name: "retry leaves a copy behind", fails: "retry-returns",
		hooks: onRetry(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if s.holds(st.Delivery) {
				s.b.inner.Publish(ctx, st.Delivery.Message.Topic, st.Delivery.Message)
			}
			return nil
		})},
	{name: "retry ignores the delay", fails: "retry-not-early",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Delay = 0 })},
	{name: "retry comes close and hides it", fails: "retry-keeps-meta retry-not-early",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) {
			st.Delay = st.Delay * 9 / 10
			st.Meta.DueAt = time.Time{}
		})},
	{name: "retry doubles the delay", fails: "retry-not-late",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Delay *= 2 })},
	{name: "retry without delay leaves it to the lease", fails: "retry-at-once",
		hooks: onRetry(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
			if st.Delay <= 0 {
				st.Delay = s.inner.Capabilities().Lease
			}
			return nil
		})},
	{name: "retry refuses more than a quarter of an hour", fails: "retry-longest",
		hooks: onRetry(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			if st.Delay > 15*time.Minute {
				return brokers.ErrMisconfigured
			}
			return nil
		})},
	{name: "a shorter policy forgets what waits for longer", fails: "retry-policy-changes",
		hooks: func() hooks {
			return hooks{receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
				ds, err := s.inner.Receive(ctx, max)
				return slices.DeleteFunc(ds, func(d *brokers.Delivery) bool {
					forgets := d.Meta().Delay > s.sub.MaxDelay && !s.sub.ReadOnly()
					if forgets {
						s.inner.Settle(ctx, []brokers.Settlement{{Delivery: d}})
					}
					return forgets
				}), err
			}}
		}},
	{name: "retry overflows after some hours", fails: "retry-longest",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) {
			if st.Delay >= day {
				st.Delay -= 49 * time.Minute
				st.Meta.DueAt = st.Meta.DueAt.Add(-49 * time.Minute)
			}
		})},
	{name: "retry drops the meta", fails: "retry-keeps-meta",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Meta = st.Delivery.Meta() })},
	{name: "retry merges the meta with the old one", fails: "retry-keeps-meta",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) {
			if st.Meta.IdempotencyKey == "" {
				st.Meta.IdempotencyKey = st.Delivery.Meta().IdempotencyKey
			}
		})},
	{name: "retry drops the death", fails: "retry-keeps-death",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Meta.Death = nil })},
	{name: "retry shortens the error text of a death", fails: "retry-keeps-death",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) {
			if st.Meta.Death != nil {
				death := *st.Meta.Death
				death.ErrorText = death.ErrorText[:10]
				st.Meta.Death = &death
			}
		})},
	{name: "a death stays for ever", fails: "retry-keeps-death",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) {
			if st.Meta.Death == nil {
				st.Meta.Death = st.Delivery.Meta().Death
			}
		})},
	{name: "retry rounds times to seconds", fails: "retry-keeps-meta",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Meta.LastFailedAt = st.Meta.LastFailedAt.Truncate(time.Second) })},
	{name: "retry makes a new ID per hop", fails: "retry-keeps-id",
		hooks: onRetried(func(d *brokers.Delivery) { d.Message.ID += "-again" })},
	{name: "retry drops the headers", fails: "retry-keeps-message",
		hooks: onRetried(func(d *brokers.Delivery) { d.Message.Headers = nil })},
	{name: "retry stamps PublishedAt anew", fails: "retry-keeps-message",
		hooks: onRetried(func(d *brokers.Delivery) { d.Message.PublishedAt = d.ReceivedAt })},
	{name: "retry names the delay queue as the topic", fails: "retry-keeps-message topics-all",
		hooks: onRetried(func(d *brokers.Delivery) { d.Message.Topic = "delay-4s" })},
	{name: "retry waits inside the process", fails: "retry-durable",
		hooks:  retryInProcess,
		adjust: func(h *Harness) { h.LoseRequests, h.LoseConfirms = nil, nil }},
	{name: "a refused retry removes the original", fails: "retry-refused",
		options: memory.Options{MessageLimit: 16 << 10},
		hooks: onRetry(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if len(st.Delivery.Message.Body) > 15<<10 {
				s.settle(ctx, brokers.Settlement{Delivery: st.Delivery, Action: brokers.Ack})
				return brokers.ErrRefused
			}
			return nil
		})},
	{name: "a copy with the ID and the attempt of one before is swallowed", fails: "retry-repeated",
		hooks: swallowsCopies},
	{name: "retry acks first and copies then", fails: "retry-unsent",
		hooks: onRetry(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if s.b.losing.Load() == 0 {
				return nil
			}
			s.settle(ctx, brokers.Settlement{Delivery: st.Delivery, Action: brokers.Ack})
			return s.b.inner.Publish(ctx, st.Delivery.Message.Topic, st.Delivery.Message)
		})},
	{name: "retry takes silence for success", fails: "retry-unsent retry-unconfirmed",
		hooks: settlesBlindly(requests, confirms)},
	{name: "retry takes what is sent for stored", fails: "retry-unconfirmed",
		hooks: settlesBlindly(confirms)},
}

// settlesBlindly reports success when one of these got lost.
func settlesBlindly(lost ...int32) func() hooks {
	return onAnswer(func(_ context.Context, s *faultySource, _ brokers.Settlement, err error) error {
		if errors.Is(err, brokers.ErrUnknownOutcome) && slices.Contains(lost, s.b.losing.Load()) {
			return nil
		}
		return err
	})
}

// swallowsCopies stands for a broker that deduplicates, and an adapter that gives
// it too little to tell copies apart.
func swallowsCopies() hooks {
	var mu sync.Mutex
	stored := make(map[string]bool)
	return onRetry(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
		mu.Lock()
		defer mu.Unlock()
		id := fmt.Sprint(st.Delivery.Message.ID, st.Meta.Attempt)
		if stored[id] && s.holds(st.Delivery) {
			st.Action = brokers.Ack
			return nil
		}
		if err := s.settle(ctx, *st)[0]; err != nil {
			return err
		}
		stored[id] = true
		return errNone
	})()
}

// onReject changes rejections only.
func onReject(change func(ctx context.Context, s *faultySource, st *brokers.Settlement) error) func() hooks {
	return onSettle(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
		if st.Action != brokers.Reject {
			return nil
		}
		return change(ctx, s, st)
	})
}

// onRetry changes retries only.
func onRetry(change func(ctx context.Context, s *faultySource, st *brokers.Settlement) error) func() hooks {
	return onSettle(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
		if st.Action != brokers.Retry {
			return nil
		}
		return change(ctx, s, st)
	})
}

// edit changes the Meta of d, and of no other delivery.
func edit(d *brokers.Delivery, change func(m *brokers.Meta)) {
	m := d.Meta()
	change(&m)
	d.Carried = &m
}

// onRetried changes deliveries of messages that were retried.
func onRetried(change func(d *brokers.Delivery)) func() hooks {
	return onDelivery(func(_ *faultySource, d *brokers.Delivery) {
		if d.Meta().Attempt > 0 {
			change(d)
		}
	})
}

// retryInProcess keeps the lease of a message that waits for its retry, and
// settles it when that is due.
func retryInProcess() hooks {
	var mu sync.Mutex
	waiting := make(map[*brokers.Delivery]bool)
	return onSettle(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
		mu.Lock()
		defer mu.Unlock()
		if waiting[st.Delivery] {
			return brokers.ErrSettled
		}
		if st.Action != brokers.Retry || st.Delay <= 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		d := *st.Delivery
		if err := padded(s.inner.Extend(ctx, st.Delay+time.Minute, []*brokers.Delivery{&d}), nil, 1)[0]; err != nil {
			return err
		}
		waiting[st.Delivery] = true
		later := *st
		later.Delay = 0
		time.AfterFunc(st.Delay, func() { s.settle(context.Background(), later) })
		return errNone
	})()
}
