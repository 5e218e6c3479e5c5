package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var brokenPublishing = []broken{
	{name: "open starts a goroutine that never ends", fails: "close-leaves-nothing",
		hooks: opening(func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			never := make(chan struct{})
			go func() { <-never }()
			return b.inner.Open(ctx, sub)
		})},
	{name: "publish reports success and stores nothing", fails: "publish-delivers",
		hooks: func() hooks {
			return hooks{publish: func(context.Context, *faulty, string, []brokers.Message) error { return nil }}
		},
		adjust: func(h *Harness) { h.LoseRequests, h.LoseConfirms = nil, nil }},
	{name: "publish drops what no source is open for", fails: "publish-stores",
		hooks: func() hooks {
			var closed atomic.Bool
			return hooks{
				publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
					if len(b.sources()) == 0 && !closed.Load() {
						return nil
					}
					return b.inner.Publish(ctx, topic, msgs...)
				},
				closeBroker: func(ctx context.Context, b *faulty) error {
					closed.Store(true)
					return b.inner.Close(ctx)
				},
			}
		}},
	{name: "the source ends with the context of open", fails: "open-context",
		hooks: opening(func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			src, err := b.inner.Open(ctx, sub)
			if err == nil {
				context.AfterFunc(ctx, func() { src.Close(context.Background()) })
			}
			return src, err
		})},
	{name: "publish keeps the IDs that it made to itself", fails: "publish-fills-in",
		hooks: publishing(func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			return b.inner.Publish(ctx, topic, slices.Clone(msgs)...)
		})},
	{name: "publish takes an equal ID for a repeat", fails: "publish-repeated",
		hooks: func() hooks {
			var seen = make(map[string]bool)
			return hooks{publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
				if len(msgs) == 1 && msgs[0].ID != "" {
					if seen[msgs[0].ID] {
						return nil
					}
					seen[msgs[0].ID] = true
				}
				return b.inner.Publish(ctx, topic, msgs...)
			}}
		}},
	{name: "publish loses a message when two calls overlap", fails: "publish-concurrent",
		hooks: func() hooks {
			var busy atomic.Bool
			return hooks{publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
				if !busy.CompareAndSwap(false, true) {
					return nil
				}
				defer busy.Store(false)
				time.Sleep(time.Millisecond) // so that calls overlap
				return b.inner.Publish(ctx, topic, msgs...)
			}}
		}},
	{name: "publish hides that one of several was refused", fails: "publish-refused",
		options: memory.Options{MessageLimit: 256 << 10},
		hooks: publishing(func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			err := b.inner.Publish(ctx, topic, msgs...)
			if perr, ok := errors.AsType[*brokers.PublishError](err); ok && len(perr.Failed) < len(msgs) {
				return nil
			}
			return err
		})},
	{name: "publish reports an ended context without saying what is stored", fails: "publish-interrupted",
		hooks: publishing(func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return b.inner.Publish(ctx, topic, msgs...)
		})},
	{name: "publish takes silence for success", fails: "publish-unsent publish-unconfirmed",
		hooks: publishesBlindly(requests, confirms)},
	{name: "publish takes what is sent for stored", fails: "publish-unconfirmed",
		hooks: publishesBlindly(confirms)},
	{name: "open does not look at dead-letter topics", fails: "dead-letter-topics",
		hooks: provides(func(sub brokers.Subscription) []string { return []string{sub.Receipts} })},
	{name: "open does not look at the topic for receipts", fails: "receipts-topic",
		hooks: provides(func(sub brokers.Subscription) []string { return slices.Collect(maps.Values(sub.DeadLetters)) })},
}

// provides has the topics of subscriptions and those that others names, and no more.
func provides(others func(brokers.Subscription) []string) func() hooks {
	return func() hooks {
		known := make(map[string]bool)
		return hooks{
			openSource: func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
				for _, topic := range append(others(sub), sub.Topics...) {
					known[topic] = true
				}
				return b.inner.Open(ctx, sub)
			},
			publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
				if !known[topic] {
					return &brokers.PublishError{Topic: topic, Failed: map[int]error{0: brokers.ErrMisconfigured}}
				}
				return b.inner.Publish(ctx, topic, msgs...)
			},
		}
	}
}

// publishesBlindly reports success when one of these got lost.
func publishesBlindly(lost ...int32) func() hooks {
	return func() hooks {
		return hooks{publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			err := b.inner.Publish(ctx, topic, msgs...)
			if errors.Is(err, brokers.ErrUnknownOutcome) && slices.Contains(lost, b.losing.Load()) {
				return nil
			}
			return err
		}}
	}
}

var brokenMessages = []broken{
	{name: "publish makes bodies valid UTF-8", fails: "body-intact",
		hooks: onPublish(func(m *brokers.Message) { m.Body = []byte(strings.ToValidUTF8(string(m.Body), "\uFFFD")) })},
	{name: "publish cuts bodies at 64 KiB", fails: "body-intact",
		hooks: onPublish(func(m *brokers.Message) { m.Body = m.Body[:min(len(m.Body), 64<<10)] })},
	{name: "publish drops headers without a value", fails: "headers-intact",
		hooks: onPublish(func(m *brokers.Message) {
			m.Headers = slices.DeleteFunc(slices.Clone(m.Headers), func(h brokers.Header) bool { return h.Value == "" })
		})},
	{name: "publish merges headers of one name", fails: "headers-intact",
		hooks: onPublish(func(m *brokers.Message) {
			for _, h := range slices.Clone(m.Headers) {
				m.Headers = m.Headers.With(h.Name, m.Headers.Get(h.Name))
			}
		})},
	{name: "publish reverses the headers", fails: "headers-intact",
		hooks: onPublish(func(m *brokers.Message) {
			m.Headers = slices.Clone(m.Headers)
			slices.Reverse(m.Headers)
		})},
	{name: "publish forgets the types of headers", fails: "headers-intact",
		hooks: onPublish(func(m *brokers.Message) {
			m.Headers = slices.Clone(m.Headers)
			for i := range m.Headers {
				m.Headers[i].Type = ""
			}
		}),
		adjust: func(h *Harness) {
			h.TypedHeaders = brokers.Headers{{Name: "count", Value: "7", Type: "int64"}}
		}},
	{name: "publish drops the record of a dead letter", fails: "headers-reserved",
		hooks: onPublish(func(m *brokers.Message) {
			m.Headers = m.Headers.Without("redrive-dlq-reason")
		})},
	{name: "publish drops the idempotency key", fails: "headers-reserved",
		hooks: onPublish(func(m *brokers.Message) {
			m.Headers = m.Headers.Without("redrive-idempotency-key")
		})},
	{name: "publish drops the token of a sending", fails: "headers-reserved",
		hooks: onPublish(func(m *brokers.Message) { m.Headers = m.Headers.Without("redrive-send") })},
	{name: "publish drops headers that only look like the framework's", fails: "headers-reserved",
		hooks: onPublish(func(m *brokers.Message) { m.Headers = m.Headers.Without("redrive-color") })},
	{name: "a due time that a producer made up is believed", fails: "headers-hostile",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) {
			if string(d.Message.Body) == "hostile" {
				edit(d, func(m *brokers.Meta) { m.DueAt = time.UnixMilli(9999999999999) })
			}
		})},
	{name: "publish loses the key", fails: "key-intact",
		hooks: onPublish(func(m *brokers.Message) { m.Key = "" })},
	{name: "publish replaces IDs by its own", fails: "id-set",
		hooks: onPublish(func(m *brokers.Message) { m.ID = "" })},
	{name: "publish gives every message the same ID", fails: "id-set",
		hooks: onPublish(func(m *brokers.Message) {
			if m.ID == "" {
				m.ID = "message"
			}
		})},
	{name: "publish overwrites PublishedAt", fails: "published-at-set",
		hooks: onPublish(func(m *brokers.Message) { m.PublishedAt = time.Now() })},
	{name: "deliveries name the topic that the producer wrote into the message", fails: "topic-named",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) {
			if string(d.Message.Body) == "misdirected" {
				d.Message.Topic = "elsewhere"
			}
		})},
	{name: "the first delivery counts as an attempt", fails: "meta-fresh",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) { edit(d, func(m *brokers.Meta) { m.Attempt++ }) })},
	{name: "the first delivery has no origin", fails: "meta-fresh",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) { edit(d, func(m *brokers.Meta) { m.Origin = nil }) })},
	{name: "deliveries do not say when they were received", fails: "received-at",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.ReceivedAt = time.Time{} })},
	{name: "leases are shorter than they are said to be", fails: "lease-until",
		hooks: onDelivery(func(s *faultySource, d *brokers.Delivery) {
			d.LeaseUntil = d.LeaseUntil.Add(s.inner.Capabilities().Lease)
		})},
	{name: "another topic's messages come, too", fails: "topics-own",
		hooks: func() hooks {
			known := make(map[string]bool)
			return hooks{openSource: func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
				for _, topic := range sub.Topics {
					known[topic] = true
				}
				sub.Topics = slices.Sorted(maps.Keys(known))
				return b.inner.Open(ctx, sub)
			}}
		}},
	{name: "only the first topic of a subscription is received from", fails: "topics-all",
		hooks: opening(func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			sub.Topics = sub.Topics[:1]
			return b.inner.Open(ctx, sub)
		})},
	{name: "topics are served in the order of the subscription", fails: "topics-fair",
		hooks: ranked},
	{name: "two sources both get the fresh messages", fails: "share-once",
		hooks: func() hooks {
			copied := make(map[string]bool)
			return onDelivery(func(s *faultySource, d *brokers.Delivery) {
				s.b.mu.Lock()
				defer s.b.mu.Unlock()
				if len(s.b.open) > 1 && d.Abandoned == 0 && !copied[d.Message.ID] {
					copied[d.Message.ID] = true
					s.b.inner.Publish(context.Background(), d.Message.Topic, d.Message)
				}
			})()
		}},
}

// ranked looks into the first topic before it takes what comes.
func ranked() hooks {
	var mu sync.Mutex
	paused := make(map[*faultySource][]string)
	return hooks{
		pause: func(s *faultySource, topics []string) {
			mu.Lock()
			defer mu.Unlock()
			paused[s] = topics
			s.inner.Pause(topics...)
		},
		receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			mu.Lock()
			others := slices.Clone(paused[s])
			mu.Unlock()
			s.inner.Pause(append(slices.Clone(s.sub.Topics[1:]), others...)...)
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			ds, _ := s.take(short, max)
			s.inner.Pause(others...)
			if len(ds) > 0 {
				return ds, nil
			}
			return s.take(ctx, max)
		},
	}
}
