package brokertest

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
)

func brokenUnreadable() []broken {
	const fails = "unreadable-delivered"
	torn := func(d *brokers.Delivery) bool { return d.Unreadable != nil }
	return []broken{
		{name: "what cannot be read comes as if it were empty", fails: fails,
			hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) {
				if torn(d) {
					d.Message.Body, d.Unreadable = nil, nil
				}
			})},
		{name: "what cannot be read is read when it comes again", fails: fails,
			hooks: func() hooks {
				var times atomic.Int32
				return onDelivery(func(_ *faultySource, d *brokers.Delivery) {
					if torn(d) && times.Add(1) > 1 {
						d.Unreadable = nil
					}
				})()
			}},
		{name: "what cannot be read is an error of receive", fails: fails,
			hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
				ds, err := s.take(ctx, max)
				if slices.ContainsFunc(ds, torn) {
					for _, d := range ds {
						s.settle(ctx, brokers.Settlement{Delivery: d, Action: brokers.Release})
					}
					return nil, errTorn
				}
				return ds, err
			})},
		{name: "what cannot be read is dropped", fails: fails,
			hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
				for {
					ds, err := s.take(ctx, max)
					ds = slices.DeleteFunc(ds, func(d *brokers.Delivery) bool {
						return torn(d) && s.settle(ctx, brokers.Settlement{Delivery: d})[0] == nil
					})
					if len(ds) > 0 || err != nil {
						return ds, err
					}
				}
			})},
		{name: "what comes with something unreadable is not read either", fails: fails,
			hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
				ds, err := s.take(ctx, max)
				if slices.ContainsFunc(ds, torn) {
					for _, d := range ds {
						d.Unreadable = errTorn
					}
				}
				return ds, err
			})},
		{name: "what cannot be read cannot be acked", fails: fails,
			hooks: onSettle(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
				if torn(st.Delivery) && st.Action == brokers.Ack {
					return brokers.ErrRefused
				}
				return nil
			})},
	}
}
