package brokertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var brokenReturning = []broken{
	{name: "return reports success and stores nothing", fails: "return-delivers",
		hooks:  returning(func(context.Context, *faulty, string, string, []brokers.Item) error { return nil }),
		adjust: func(h *Harness) { h.LoseRequests, h.LoseConfirms = nil, nil }},
	{name: "return gives the message a new ID", fails: "return-delivers",
		hooks: onReturn(func(l *brokers.Item) { l.Message.ID = "" })},
	{name: "return takes the time of death for that of publishing", fails: "return-delivers",
		hooks: onReturn(func(l *brokers.Item) { l.Message.PublishedAt = time.Now() })},
	{name: "return publishes the message as a new one", fails: "return-starts-over",
		hooks: returning(func(ctx context.Context, b *faulty, _, topic string, letters []brokers.Item) error {
			msgs := make([]brokers.Message, len(letters))
			for i, l := range letters {
				msgs[i] = *l.Message
			}
			return b.inner.Publish(ctx, topic, msgs...)
		})},
	{name: "what was returned goes on where it ended", fails: "return-starts-over",
		hooks: func() hooks {
			return onDelivery(func(_ *faultySource, d *brokers.Delivery) {
				if d.Meta().RedriveCount == 4 && d.Meta().Attempt == 0 {
					edit(d, func(m *brokers.Meta) { m.Attempt = 10 })
				}
			})()
		}},
	{name: "a retry in place forgets by which sending the message came", fails: "return-survives",
		hooks: changed(brokers.Retry, func(st *brokers.Settlement) { st.Meta.Send = "" }),
		adjust: func(h *Harness) {
			h.EstimatesMeta = true
		}},
	{name: "return drops what no source is open for", fails: "return-stores",
		hooks: func() hooks {
			return hooks{sendBack: func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
				if len(b.sources()) == 0 {
					return nil
				}
				return b.inner.SendBack(ctx, group, topic, letters...)
			}}
		}},
	{name: "return puts the message where every group sees it", fails: "return-alone",
		hooks: func() hooks { // a group is nothing here
			return hooks{capabilities: func(s *faultySource, c brokers.Capabilities) brokers.Capabilities {
				c.Group = s.sub.Group
				return c
			}}
		},
		adjust: func(h *Harness) { h.Groups = true }},
	{name: "a source does not say for which group it receives", fails: "group-named",
		hooks:  func() hooks { return hooks{} },
		adjust: func(h *Harness) { h.Groups = true }},
	{name: "return takes an equal ID for a repeat", fails: "return-repeated",
		hooks: func() hooks {
			seen := make(map[string]bool)
			return returning(func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
				id := letters[0].Message.ID
				if id != "" && seen[id] {
					return nil
				}
				seen[id] = true
				return b.inner.SendBack(ctx, group, topic, letters...)
			})()
		}},
	{name: "return hides that one of several was refused", fails: "return-refused",
		options: memory.Options{MessageLimit: 256 << 10},
		hooks: returning(func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
			err := b.inner.SendBack(ctx, group, topic, letters...)
			if perr, ok := errors.AsType[*brokers.PublishError](err); ok && len(perr.Failed) < len(letters) {
				return nil
			}
			return err
		})},
	{name: "return takes silence for success", fails: "return-unsent return-unconfirmed",
		hooks: returnsBlindly(requests, confirms)},
	{name: "return takes what is sent for stored", fails: "return-unconfirmed",
		hooks: returnsBlindly(confirms)},
}

// returnsBlindly reports success when one of these got lost.
func returnsBlindly(lost ...int32) func() hooks {
	return returning(func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
		err := b.inner.SendBack(ctx, group, topic, letters...)
		if errors.Is(err, brokers.ErrUnknownOutcome) && slices.Contains(lost, b.losing.Load()) {
			return nil
		}
		return err
	})
}
