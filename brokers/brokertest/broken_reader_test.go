package brokertest

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
)

var brokenReading = []broken{
	{name: "a reader drops what it releases", fails: "reader-receives",
		hooks: ofReaders(brokers.Release, func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			st.Action = brokers.Ack
			return nil
		})},
	{name: "a reader keeps what it acks", fails: "reader-receives",
		hooks: ofReaders(brokers.Ack, func(context.Context, *faultySource, *brokers.Settlement) error { return errNone })},
	{name: "a reader has nowhere to put a retry, and acks it", fails: "reader-retry",
		hooks: ofReaders(brokers.Retry, func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
			st.Action = brokers.Ack
			return nil
		})},
	{name: "a reader refuses a retry when it has acked it", fails: "reader-retry",
		hooks: ofReaders(brokers.Retry, func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			s.settle(ctx, brokers.Settlement{Delivery: st.Delivery})
			return brokers.ErrRefused
		})},
	{name: "a reader makes its topic", fails: "reader-missing",
		hooks: opening(func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			sub.MaxAttempts = max(sub.MaxAttempts, 1)
			return b.inner.Open(ctx, sub)
		})},
	{name: "a reader does not say which topic is missing", fails: "reader-missing",
		hooks: opening(func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			src, err := b.inner.Open(ctx, sub)
			if err != nil && sub.ReadOnly() {
				return nil, brokers.ErrMisconfigured
			}
			return src, err
		})},
}

// ofReaders changes the settlements with this action of sources that only read.
func ofReaders(action brokers.Action, change func(ctx context.Context, s *faultySource, st *brokers.Settlement) error) func() hooks {
	return onSettle(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
		if st.Action != action || !s.sub.ReadOnly() {
			return nil
		}
		return change(ctx, s, st)
	})
}
