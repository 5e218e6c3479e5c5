package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// core measures the pipeline on the memory broker, and the decision alone.
func core(report func(figure.Figure)) error {
	overhead(report)
	decision(report)
	scale(report)
	flood(report)
	return nil
}

const (
	rounds  = 9       // of which the median counts
	backlog = 200_000 // messages of one round
)

// overhead compares the pipeline with the bare loop, alternating.
func overhead(report func(figure.Figure)) {
	var ratios, extraTime, extraAllocs, succeeding []float64
	for range rounds {
		loop := measured(backlog, 1, bareLoop)
		pipeline := measured(backlog, 1, func(b *memory.Broker, topics []string, n int) { noop(b, topics, n, 10) })
		ratios = append(ratios, pipeline.nanos/loop.nanos)
		extraTime = append(extraTime, pipeline.nanos-loop.nanos)
		extraAllocs = append(extraAllocs, pipeline.allocs-loop.allocs)
	}
	for range 3 {
		succeeding = append(succeeding, testing.AllocsPerRun(1000, func() {
			if v := classify.Of(nil); v.Class != "" {
				panic("nil has a class")
			}
		}))
	}
	report(figure.Figure{Name: "pipeline_overhead_ns", Value: figure.Median(extraTime), Unit: "ns/message", Goal: 1000})
	note("a message costs %.2f times what it does in the bare loop", figure.Median(ratios))
	report(figure.Figure{Name: "pipeline_overhead_allocs", Value: figure.Median(extraAllocs), Unit: "allocs/message", Goal: 2})
	report(figure.Figure{Name: "success_allocs", Value: figure.Median(succeeding), Unit: "allocs/message", Goal: 0})
}

// decision measures the classification of a wrapped error with its decision.
func decision(report func(figure.Figure)) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	err := fmt.Errorf("charge order 17: %w", fmt.Errorf("call the bank: %w", dial))
	now := time.Now()
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			d := retry.Decide(retry.Policy{}, retry.Run{Attempt: 2, Now: now, Verdict: classify.Of(err)}, 0.5)
			if d.Action != retry.ActionRetry {
				b.Fatal(d)
			}
		}
	})
	report(figure.Figure{Name: "decide_ns", Value: float64(result.NsPerOp()), Unit: "ns/failure", Goal: 500})
}

// scale compares the cost of a message over slots and topics.
func scale(report func(figure.Figure)) {
	type shape struct{ slots, topics int }
	shapes := []shape{{10, 1}, {1000, 1}, {10_000, 1}, {10, 100}, {1000, 100}, {10_000, 100}}
	times := map[shape][]float64{}
	for range rounds {
		for _, s := range shapes {
			cost := measured(backlog, s.topics, func(b *memory.Broker, topics []string, n int) { noop(b, topics, n, s.slots) })
			times[s] = append(times[s], cost.nanos)
		}
	}
	least, most := 0.0, 0.0
	for _, s := range shapes {
		cost := figure.Median(times[s])
		if least == 0 || cost < least {
			least = cost
		}
		most = max(most, cost)
	}
	report(figure.Figure{Name: "scale_ratio", Value: most / least, Unit: "ratio", Goal: 1.5})
}

// flood lets a million messages fail always while they are published, with
// at most 10,000 in the topic, and reports how far the heap of worker and
// broker grows beyond what it was after the first 100,000.
func flood(report func(figure.Figure)) {
	const messages, warm = 1_000_000, 100_000
	broker := memory.New(memory.Options{Limit: 10_000})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		batch := make([]brokers.Message, 100)
		for range messages / len(batch) {
			for i := range batch {
				batch[i] = brokers.Message{Body: []byte("{}")}
			}
			must(broker.Publish(ctx, "orders", batch...))
		}
	}()
	var dead atomic.Int64
	var steady, most uint64
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			if now := heap(); dead.Load() < warm {
				steady = max(steady, now)
			} else {
				most = max(most, now)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	cfg := quiet()
	cfg.Guard = consumer.Guard{NoBudget: true, NoBreaker: true} // or practically nothing would run, as everything fails
	cfg.Retry = retry.Policy{MaxAttempts: 3, Backoff: retry.Backoff{Base: time.Millisecond, Cap: 10 * time.Millisecond}}
	cfg.DeadLetter = dlq.Discard
	cfg.Observers = []consumer.Observer{discarded(func() {
		if dead.Add(1) == messages {
			stop()
		}
	})}
	work(ctx, broker, []string{"orders"}, cfg, func(context.Context, *brokers.Message) error { return errors.New("always fails") })
	<-watched
	report(figure.Figure{Name: "flood_heap_mib", Value: max(0, float64(most)-float64(steady)) / (1 << 20), Unit: "MiB", Goal: 64})
}

// discarded calls a function for every message that is discarded.
type discarded func()

// Observe implements consumer.Observer.
func (f discarded) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventDiscarded {
		f()
	}
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// cost is what one message took.
type cost struct{ nanos, allocs float64 }

// measured runs work on a fresh backlog of n messages.
func measured(n, topics int, work func(b *memory.Broker, topics []string, n int)) cost {
	broker, names := loaded(n, topics)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	work(broker, names, n)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return cost{float64(took.Nanoseconds()) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n)}
}

// loaded returns a broker with n messages spread over topics.
func loaded(n, topics int) (*memory.Broker, []string) {
	broker := memory.New(memory.Options{Limit: n + 1})
	names := make([]string, topics)
	for i := range names {
		names[i] = fmt.Sprintf("orders-%d", i)
		batch := make([]brokers.Message, 0, n/topics+1)
		for j := i; j < n; j += topics {
			batch = append(batch, brokers.Message{Body: []byte("{}")})
		}
		must(broker.Publish(context.Background(), names[i], batch...))
	}
	return broker, names
}

// bareLoop receives and acks without a pipeline.
func bareLoop(broker *memory.Broker, topics []string, n int) {
	ctx := context.Background()
	source, err := broker.Open(ctx, brokers.Subscription{Topics: topics, InFlight: 20})
	must(err)
	batch := make([]brokers.Settlement, 0, 20)
	for done := 0; done < n; done += len(batch) {
		deliveries, err := source.Receive(ctx, 20)
		must(err)
		batch = batch[:0]
		for _, d := range deliveries {
			batch = append(batch, brokers.Settlement{Delivery: d, Action: brokers.Ack})
		}
		must(errors.Join(source.Settle(ctx, batch)...))
	}
	must(source.Close(ctx))
}

// noop works n messages with a handler that does nothing.
func noop(broker *memory.Broker, topics []string, n, slots int) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var handled atomic.Int64
	cfg := quiet()
	cfg.Concurrency = slots
	work(ctx, broker, topics, cfg, func(context.Context, *brokers.Message) error {
		if handled.Add(1) == int64(n) {
			stop()
		}
		return nil
	})
}

// work runs a Consumer until ctx ends.
func work(ctx context.Context, broker *memory.Broker, topics []string, cfg consumer.Config, h consumer.Handler) {
	c, err := consumer.New(broker, cfg)
	must(err)
	for _, topic := range topics {
		c.Handle(topic, h)
	}
	must(c.Run(ctx))
}

func quiet() consumer.Config {
	return consumer.Config{
		DeadLetter: dlq.Suffix(".dead"),
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Random:     rand.Float64,
	}
}

// must ends the program on an error that only a bug can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
