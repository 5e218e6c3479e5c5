// Package letters measures what it costs to collect dead letters into a store,
// beside receiving and acking them alone, on any broker.
package letters

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/collect"
)

// Letter is the n-th dead letter of a backlog: an order of 1 KiB that failed in
// one of 20 ways.
func Letter(n int) brokers.Message {
	died := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Millisecond)
	e := dlq.Entry{
		Message: brokers.Message{
			ID: fmt.Sprintf("message-%09d", n), Topic: "orders", Key: strconv.Itoa(n % 1000), PublishedAt: died.Add(-time.Hour),
			Body: bytes.Repeat([]byte("x"), 1<<10), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}},
		},
		Meta:   brokers.Meta{Attempt: 8, Class: "transient", FirstFailedAt: died.Add(-time.Hour), LastFailedAt: died},
		Reason: "exhausted", Rule: "net", Group: "billing", DeadAt: died, DeadBy: "worker-1",
	}
	e.DescribeError("*net.OpError", "", fmt.Sprintf("dial %s: connection refused", []string{"stock", "bank", "mail", "tax"}[n%4]), "", nil)
	e.Fingerprint = fmt.Sprint(e.Fingerprint, n%5)
	return e.Encode(0)
}

// clock is a source that is timed, from the first delivery to the n-th ack.
type clock struct {
	brokers.Source
	n    int
	done chan struct{} // closed at the n-th ack

	mu          sync.Mutex
	acked       int
	first, last time.Time
}

func newClock(source brokers.Source, n int) *clock {
	return &clock{Source: source, n: n, done: make(chan struct{})}
}

func (c *clock) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := c.Source.Receive(ctx, max)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(ds) > 0 && c.first.IsZero() {
		c.first = time.Now()
	}
	return ds, err
}

func (c *clock) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	errs := c.Source.Settle(ctx, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.acked
	for i, s := range batch {
		if s.Action == brokers.Ack && (errs == nil || errs[i] == nil) {
			c.acked++
		}
	}
	if before < c.n && c.acked >= c.n {
		c.last = time.Now()
		close(c.done)
	}
	return errs
}

// rate returns acks a second, or why they are too few.
func (c *clock) rate(err error) (float64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked < c.n {
		return 0, fmt.Errorf("%d of %d letters were acked: %w", c.acked, c.n, cmp.Or(err, errors.New("nothing failed")))
	}
	return float64(c.n) / c.last.Sub(c.first).Seconds(), nil
}

// receivable is how many letters a collector asks for at once.
const receivable = 500

// Consume receives n letters of source and acks them, and nothing else. It returns
// how many that are a second.
func Consume(ctx context.Context, source brokers.Source, n int) (float64, error) {
	c := newClock(source, n)
	for {
		ds, err := c.Receive(ctx, receivable)
		if err != nil {
			return c.rate(err)
		}
		batch := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			batch[i] = brokers.Settlement{Delivery: d, Action: brokers.Ack}
		}
		err = errors.Join(c.Settle(ctx, batch)...)
		select {
		case <-c.done:
			return c.rate(nil)
		default:
		}
		if err != nil {
			return c.rate(err)
		}
	}
}

// Collect has n letters of source collected into a store, as redrive does it. It
// returns how many that are a second.
func Collect(ctx context.Context, source brokers.Source, into collect.Store, n int) (float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := newClock(source, n)
	collector, err := collect.New(collect.Config{
		Store: into, Source: c, Broker: "bench", Follow: true, Limits: collect.Limits{FreeDisk: 1e-9, Letters: 1 << 40},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := collector.Run(ctx)
		ended <- err
	}()
	select {
	case <-c.done:
		stop()
		return c.rate(<-ended)
	case err := <-ended:
		return c.rate(errors.Join(err, context.Cause(ctx)))
	}
}
