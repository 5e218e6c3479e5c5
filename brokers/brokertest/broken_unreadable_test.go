package brokertest

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
)

var brokenUnreadable = []broken{
	{name: "what cannot be read comes as if it were empty", fails: "unreadable-delivered",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) {
			if unreadable(d) {
				d.Message.Body, d.Unreadable = nil, nil
			}
		})},
	{name: "what cannot be read is read when it comes again", fails: "unreadable-delivered",
		hooks: func() hooks {
			var times atomic.Int32
			return onDelivery(func(_ *faultySource, d *brokers.Delivery) {
				if unreadable(d) && times.Add(1) > 1 {
					d.Unreadable = nil
				}
			})()
		}},
	{name: "what cannot be read is an error of receive", fails: "unreadable-delivered",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if slices.ContainsFunc(ds, unreadable) {
				for _, d := range ds {
					s.settle(ctx, brokers.Settlement{Delivery: d, Action: brokers.Release})
				}
				return nil, errTorn
			}
			return ds, err
		})},
	{name: "what cannot be read is dropped", fails: "unreadable-delivered",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			for {
				ds, err := s.take(ctx, max)
				ds = slices.DeleteFunc(ds, func(d *brokers.Delivery) bool {
					return unreadable(d) && s.settle(ctx, brokers.Settlement{Delivery: d})[0] == nil
				})
				if len(ds) > 0 || err != nil {
					return ds, err
				}
			}
		})},
	{name: "what comes with something unreadable is not read either", fails: "unreadable-delivered",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if slices.ContainsFunc(ds, unreadable) {
				for _, d := range ds {
					d.Unreadable = errTorn
				}
			}
			return ds, err
		})},
	{name: "what cannot be read cannot be acked", fails: "unreadable-delivered",
		hooks: onSettle(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			if unreadable(st.Delivery) && st.Action == brokers.Ack {
				return brokers.ErrRefused
			}
			return nil
		})},
}

func unreadable(d *brokers.Delivery) bool { return d.Unreadable != nil }
