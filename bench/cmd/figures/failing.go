package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

var errBusy = errors.New("the service is busy")

// unguarded is for figures in which every message fails at first: a guard takes
// that for an outage, rightly, and these are about what retries cost.
var unguarded = consumer.Guard{NoBudget: true, NoBreaker: true, NoPoisonStop: true}

// failOnce has work run a consumer, with the default policy for when failures
// come again, and a handler that fails some messages when it sees them first.
// As long as there are new messages, of which there are n, those that are done
// count: the time it takes is extrapolated to all. What is left then is waited
// for, and not timed.
func failOnce(ctx context.Context, n int, fails func(*brokers.Message) bool, work func(context.Context, consumer.Handler) error) (took time.Duration, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var firsts, done, start atomic.Int64
	begin := time.Now()
	err = work(ctx, func(ctx context.Context, m *brokers.Message) error {
		fails := fails(m)
		if !fails || consumer.MetaFrom(ctx).Attempt == 1 {
			switch firsts.Add(1) {
			case 1:
				start.Store(int64(time.Since(begin)))
			case int64(n):
				elapsed := time.Since(begin) - time.Duration(start.Load())
				took = time.Duration(float64(elapsed) * float64(n) / float64(done.Load()))
			}
			if fails {
				return errBusy
			}
		}
		if done.Add(1) == int64(n) {
			stop()
		}
		return nil
	})
	if left := int64(n) - done.Load(); err == nil && left > 0 {
		err = fmt.Errorf("%d of %d messages were not handled: %w", left, n, context.Cause(ctx))
	}
	return took, err
}
