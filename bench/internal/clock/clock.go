// Package clock times contenders in the same way.
package clock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Clock takes the time from the first of n ticks to the last, which leaves out
// connecting and declaring for all alike.
type Clock struct {
	n     int64
	ticks atomic.Int64
	begin time.Time
	first atomic.Int64 // since begin
	done  chan time.Duration
}

// New returns a clock for n ticks.
func New(n int) *Clock {
	return &Clock{n: int64(n), begin: time.Now(), done: make(chan time.Duration, 1)}
}

// Tick notes that a message is handled. Those after the last are ignored.
func (c *Clock) Tick() {
	n := c.ticks.Add(1)
	if n == 1 {
		c.first.Store(int64(time.Since(c.begin)))
	}
	if n == c.n {
		c.done <- time.Since(c.begin) - time.Duration(c.first.Load())
	}
}

// Wait returns the time, or an error if ctx ends before the last tick.
func (c *Clock) Wait(ctx context.Context) (time.Duration, error) {
	select {
	case took := <-c.done:
		return took, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d messages handled: %w", c.ticks.Load(), c.n, context.Cause(ctx))
	}
}
