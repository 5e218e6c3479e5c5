package brokertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// lenient is a broker that does what the contract allows and memory does not.
type lenient struct {
	name     string
	hooks    func() hooks
	options  memory.Options
	adjust   func(*Harness)
	external bool // stands for a broker outside the process
}

func allLenient() []lenient {
	return []lenient{
		{name: "a retry that comes close and says so",
			hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Delay = st.Delay * 4 / 5 })},
		{name: "delays of a quarter of an hour at most",
			hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Delay = min(st.Delay, 15*time.Minute) })},
		{name: "delays of whole seconds", hooks: wholeSeconds},
		{name: "leases that last as long as the session", hooks: sessionLeases, adjust: func(h *Harness) { h.AbandonedMargin = -1 }},
		{name: "leases that cannot be extended", hooks: rigidLeases},
		{name: "a source that takes longer to open than the slack", hooks: slowOpen},
		{name: "leases that last for one length at most", hooks: shortExtensions},
		{name: "headers that lose their order", hooks: sortedHeaders, adjust: func(h *Harness) { h.SortsHeaders = true }},
		{name: "retries in place that store nothing, and a counter of deliveries",
			hooks:  countedDeliveries,
			adjust: func(h *Harness) { h.EstimatesMeta = true }},
		{name: "abandoned less a margin",
			hooks:  onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.Abandoned = max(0, d.Abandoned-4) }),
			adjust: func(h *Harness) { h.AbandonedMargin = 4 }},
		{name: "a late retry that leaves a copy", hooks: lateCopies},
		{name: "a broker without dead-lettering of its own",
			hooks: onReject(func(context.Context, *faultySource, *brokers.Settlement) error { return brokers.ErrRefused })},
		{name: "a log, which keeps what is rejected",
			hooks:  changed(brokers.Reject, func(st *brokers.Settlement) { st.Action = brokers.Ack }),
			adjust: func(h *Harness) { h.Rejected = func(string, string) string { return "" } }},
		{name: "a broker with no place for retries where one only reads",
			hooks: ofReaders(brokers.Retry, func(context.Context, *faultySource, *brokers.Settlement) error { return brokers.ErrRefused })},
		{name: "calls that fail for a while", hooks: temporaryErrors},
		{name: "acks that get lost on their way", hooks: lostAcks, external: true},
		{name: "a duplicate now and then", hooks: duplicates(), external: true},
		{name: "an ordered broker outside the process", hooks: func() hooks { return hooks{} }, options: memory.Options{Ordered: true}, external: true},
	}
}

// TestLenientBrokers demands that no clause asks for more than the contract
// promises. External ones run in a bubble, too, but the suite does not know it.
func TestLenientBrokers(t *testing.T) {
	for _, l := range allLenient() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := harness(l.options, l.hooks)
			if l.adjust != nil {
				l.adjust(&h)
			}
			for _, c := range clauses() {
				var err error
				if l.external {
					h.Virtual, h.AbandonedMargin = false, -1
					synctest.Test(t, func(t *testing.T) { err = h.try(t, c) })
				} else {
					err = h.try(t, c)
				}
				if _, skipped := errors.AsType[skip](err); err != nil && !skipped {
					t.Errorf("%s:%s", c.name, c.explain(err))
				}
			}
		})
	}
}

func wholeSeconds() hooks {
	h := changed(brokers.Retry, func(st *brokers.Settlement) { st.Delay = (st.Delay + time.Second - 1).Truncate(time.Second) })()
	h.capabilities = func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
		c.Granularity = time.Second
		return c
	}
	return h
}

// sessionLeases releases the deliveries of a source when it crashes, as a
// broker does that notices the end of a connection.
func sessionLeases() hooks {
	h := onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.LeaseUntil = time.Time{} })()
	h.openSource = func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
		sub.Lease = 10000 * time.Hour
		return b.inner.Open(ctx, sub)
	}
	h.capabilities = func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
		c.Lease = 0
		return c
	}
	h.crash = func(_ *faulty, s *faultySource) { s.inner.Close(context.Background()) }
	return h
}

func slowOpen() hooks {
	return hooks{openSource: func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
		time.Sleep(time.Second)
		return b.inner.Open(ctx, sub)
	}}
}

func rigidLeases() hooks {
	return hooks{
		capabilities: func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
			c.MaxLease = c.Lease
			return c
		},
		extend: func(ctx context.Context, s *faultySource, lease time.Duration, ds []*brokers.Delivery) []error {
			return s.inner.Extend(ctx, time.Nanosecond, ds) // says who holds what, and changes nothing
		},
	}
}

// countedDeliveries has nothing but a counter, which rises with every delivery.
func countedDeliveries() hooks {
	counts := make(map[string]int)
	return onDelivery(func(s *faultySource, d *brokers.Delivery) {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		edit(d, func(m *brokers.Meta) {
			*m = brokers.Meta{
				Attempt:        counts[d.Message.ID],
				Origin:         m.Origin,
				IdempotencyKey: m.IdempotencyKey,
				RedriveCount:   m.RedriveCount,
				Send:           m.Send,
				History:        m.History,
				Trace:          m.Trace,
			}
		})
		d.Abandoned = 0
		counts[d.Message.ID]++
	})()
}

func shortExtensions() hooks {
	return hooks{extend: func(ctx context.Context, s *faultySource, lease time.Duration, ds []*brokers.Delivery) []error {
		return s.inner.Extend(ctx, min(lease, s.inner.Capabilities().Lease), ds)
	}}
}

func sortedHeaders() hooks {
	return onDelivery(func(_ *faultySource, d *brokers.Delivery) {
		d.Message.Headers = slices.SortedStableFunc(slices.Values(d.Message.Headers), func(a, b brokers.Header) int {
			return cmp.Compare(a.Name, b.Name)
		})
		edit(d, func(m *brokers.Meta) {
			if m.RedriveCount == 0 {
				m.Origin = m.Origin.With("offset", "7")
			}
			if m.Attempt > 0 {
				slices.Reverse(m.Origin)
			}
		})
	})()
}

// lateCopies stores the copy of a retry before it finds that the lease is lost.
func lateCopies() hooks {
	return onAnswer(func(_ context.Context, s *faultySource, st brokers.Settlement, err error) error {
		if st.Action == brokers.Retry && lost(err) {
			s.b.inner.Publish(context.Background(), st.Delivery.Message.Topic, st.Delivery.Message)
		}
		return err
	})()
}

// temporaryErrors lets the first settlement of each delivery and every other
// Receive fail.
func temporaryErrors() hooks {
	var mu sync.Mutex
	seen := make(map[*brokers.Delivery]bool)
	calls := 0
	busy := errors.New("the broker is busy")
	h := onSettle(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
		mu.Lock()
		defer mu.Unlock()
		if !seen[st.Delivery] && s.holds(st.Delivery) {
			seen[st.Delivery] = true
			return busy
		}
		return nil
	})()
	h.receive = func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
		mu.Lock()
		calls++
		fail := calls%2 == 0
		mu.Unlock()
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if fail && !closed && ctx.Err() == nil {
			return nil, busy
		}
		return s.take(ctx, max)
	}
	return h
}

// lostAcks loses the first ack of each message.
func lostAcks() hooks {
	var mu sync.Mutex
	seen := make(map[string]bool)
	return onSettle(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
		mu.Lock()
		defer mu.Unlock()
		if st.Action == brokers.Ack && !seen[st.Delivery.Message.ID] && s.holds(st.Delivery) {
			seen[st.Delivery.Message.ID] = true
			st.Action = brokers.Release
		}
		return nil
	})()
}

// duplicates stores the first message of every third call of Publish twice.
func duplicates() func() hooks {
	var mu sync.Mutex
	calls := 0 // of all brokers together, so that rounds differ
	return func() hooks {
		return hooks{publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			mu.Lock()
			calls++
			twice := calls%3 == 1
			mu.Unlock()
			err := b.inner.Publish(ctx, topic, msgs...)
			if err == nil && twice && len(msgs) > 0 {
				err = b.inner.Publish(ctx, topic, msgs[0])
			}
			return err
		}}
	}
}
