package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

// backlog returns a broker with n messages spread over topics.
func backlog(b *testing.B, n, topics int) (*memory.Broker, []string) {
	b.Helper()
	broker := memory.New(memory.Options{Limit: n + 1})
	names := make([]string, topics)
	batch := make([]brokers.Message, 0, n/topics+1)
	for i := range names {
		names[i] = fmt.Sprintf("orders-%d", i)
		batch = batch[:0]
		for j := i; j < n; j += topics {
			batch = append(batch, brokers.Message{Body: []byte("{}")})
		}
		if err := broker.Publish(context.Background(), names[i], batch...); err != nil {
			b.Fatal(err)
		}
	}
	return broker, names
}

// BenchmarkLoop is the bare Receive and Settle loop that the pipeline is
// compared with.
func BenchmarkLoop(b *testing.B) {
	broker, topics := backlog(b, b.N, 1)
	source, err := broker.Open(b.Context(), brokers.Subscription{Topics: topics, InFlight: 100})
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]brokers.Settlement, 0, 20)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		deliveries, err := source.Receive(b.Context(), 20)
		if err != nil {
			b.Fatal(err)
		}
		batch = batch[:0]
		for _, d := range deliveries {
			batch = append(batch, brokers.Settlement{Delivery: d, Action: brokers.Ack})
		}
		if errs := source.Settle(b.Context(), batch); errs != nil {
			b.Fatal(errs)
		}
		done += len(deliveries)
	}
}

// BenchmarkPipeline is the same work through a Consumer with a handler that
// does nothing.
func BenchmarkPipeline(b *testing.B) {
	for _, concurrency := range []int{1, 10, 1000, 10_000} {
		for _, topics := range []int{1, 100} {
			b.Run(fmt.Sprintf("concurrency=%d/topics=%d", concurrency, topics), func(b *testing.B) {
				broker, names := backlog(b, b.N, topics)
				cfg := quiet()
				cfg.Concurrency = concurrency
				c, err := consumer.New(broker, cfg)
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(b.Context())
				defer stop()
				var handled atomic.Int64
				for _, name := range names {
					c.Handle(name, func(context.Context, *brokers.Message) error {
						if handled.Add(1) == int64(b.N) {
							stop()
						}
						return nil
					})
				}
				b.ReportAllocs()
				b.ResetTimer()
				if err := c.Run(ctx); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
