package idempotency

import (
	"context"
	"fmt"
	"time"
)

// contained is a store that returns its panics as errors. The extension of a
// claim runs in the goroutine of a timer, where a panic would end the worker. A
// panic of the store must not count as a fault of the message.
type contained struct{ Store }

// Begin implements Store.
func (s contained) Begin(ctx context.Context, c Claim, lease time.Duration) (r Record, err error) {
	defer func() {
		if recovered(&err, recover()) {
			r = Record{}
		}
	}()
	return s.Store.Begin(ctx, c, lease)
}

// Complete implements Store.
func (s contained) Complete(ctx context.Context, c Claim, ttl time.Duration) (err error) {
	defer func() { recovered(&err, recover()) }()
	return s.Store.Complete(ctx, c, ttl)
}

// Release implements Store.
func (s contained) Release(ctx context.Context, c Claim) (err error) {
	defer func() { recovered(&err, recover()) }()
	return s.Store.Release(ctx, c)
}

func recovered(err *error, v any) bool {
	if v != nil {
		*err = fmt.Errorf("the idempotency store panicked: %v", v)
	}
	return v != nil
}
