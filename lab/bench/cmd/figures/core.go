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
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// core measures the pipeline on the memory broker, and the decision alone.
func core(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	return []figure.Measurement{
		{Name: "overhead", Run: overhead, Figures: []*figure.Figure{
			figure.AtMost("pipeline_overhead_ns", "ns/message", 1000),
			figure.AtMost("pipeline_overhead_allocs", "allocs/message", 2),
			figure.AtMost("success_allocs", "allocs/message", 0),
		}},
		{Name: "decision", Run: decision, Figures: []*figure.Figure{figure.AtMost("decide_ns", "ns/failure", 500)}},
		{Name: "scale", Run: scale, Figures: []*figure.Figure{figure.AtMost("scale_ratio", "ratio", 1.5)}},
		{Name: "flood", Run: flood, Figures: []*figure.Figure{figure.AtMost("flood_heap_mib", "MiB", 64)}},
	}, nil, nil
}

const (
	coreRounds  = 9       // of which the median counts
	coreBacklog = 200_000 // messages of one round
)

// overhead compares the pipeline with the bare loop, alternating.
func overhead(_ context.Context, s *figure.Samples) error {
	var ratios []float64
	for range coreRounds {
		loop := measured(coreBacklog, 1, bareLoop)
		pipeline := measured(coreBacklog, 1, func(b *memory.Broker, topics []string, n int) { noop(b, topics, n, 10) })
		ratios = append(ratios, pipeline.nanos/loop.nanos)
		s.Add("pipeline_overhead_ns", pipeline.nanos-loop.nanos)
		s.Add("pipeline_overhead_allocs", pipeline.allocs-loop.allocs)
	}
	figure.Note("a message costs %.2f times what it does in the bare loop", figure.Median(ratios))
	for range 3 {
		s.Add("success_allocs", testing.AllocsPerRun(1000, func() {
			if v := classify.Of(nil); v.Class != "" {
				panic("nil has a class")
			}
		}))
	}
	return nil
}

// decision measures the classification of a wrapped error with its decision.
func decision(_ context.Context, s *figure.Samples) error {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	err := fmt.Errorf("charge order 17: %w", fmt.Errorf("call the bank: %w", dial))
	now := time.Now()
	took := benchmark(func() {
		d := retry.Policy{}.Decide(retry.FailedRun{Attempt: 2, Now: now, Verdict: classify.Of(err)}, 0.5)
		if !d.Retry {
			panic(d)
		}
	})
	s.Add("decide_ns", took.nanos)
	return nil
}

// scale compares the cost of a message over slots and topics.
func scale(_ context.Context, samples *figure.Samples) error {
	type shape struct{ slots, topics int }
	shapes := []shape{{10, 1}, {1000, 1}, {10_000, 1}, {10, 100}, {1000, 100}, {10_000, 100}}
	times := map[shape][]float64{}
	for range coreRounds {
		for _, s := range shapes {
			cost := measured(coreBacklog, s.topics, func(b *memory.Broker, topics []string, n int) { noop(b, topics, n, s.slots) })
			times[s] = append(times[s], cost.nanos)
		}
	}
	var medians []float64
	for _, s := range shapes {
		medians = append(medians, figure.Median(times[s]))
	}
	samples.Add("scale_ratio", slices.Max(medians)/slices.Min(medians))
	return nil
}

// flood lets a million messages fail always while they are published, with
// at most 10,000 in the topic, and reports how far the heap of worker and
// broker grows beyond what it was after the first 100,000.
func flood(ctx context.Context, s *figure.Samples) error {
	const messages, warm = 1_000_000, 100_000
	broker := memory.New(memory.Options{Limit: 10_000})
	ctx, stop := context.WithCancel(ctx)
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
			if now := heap(1).HeapAlloc; dead.Load() < warm {
				steady = max(steady, now)
			} else {
				most = max(most, now)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	cfg := quiet()
	cfg.Guard = unguarded // or practically nothing would run, as everything fails
	cfg.Retry = retry.Policy{MaxAttempts: 3, Backoff: retry.Backoff{Base: time.Millisecond, Cap: 10 * time.Millisecond}}
	cfg.DeadLetter = dlq.Discard
	cfg.Observers = []consumer.Observer{observed(func(e consumer.Event) {
		if e.Kind == consumer.EventDeadLettered && dead.Add(1) == messages {
			stop()
		}
	})}
	work(ctx, broker, []string{"orders"}, cfg, func(context.Context, *brokers.Message) error { return errors.New("always fails") })
	<-watched
	if n := dead.Load(); n < messages {
		return fmt.Errorf("%d of %d messages are dead: %w", n, messages, context.Cause(ctx))
	}
	s.Add("flood_heap_mib", max(0, float64(most)-float64(steady))/(1<<20))
	return nil
}

// observed is an Observer that is a function.
type observed func(consumer.Event)

// Observe implements consumer.Observer.
func (f observed) Observe(_ context.Context, e consumer.Event) { f(e) }

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

// started returns the limiter of a worker that has been busy for four seconds: it lets
// all slots run at once. A new one begins with half of them.
func started(slots int) *flow.Limiter {
	l, now := flow.New(slots, rand.Float64), time.Now().Add(-4*time.Second)
	for n := range uint64(80) {
		l.Adjust(now, flow.Change{Waits: true})
		if ok, _ := l.Start(now); ok {
			l.Done(now.Add(time.Microsecond), flow.End{Began: now, Who: n, Outcome: flow.Success})
		}
		now = now.Add(50 * time.Millisecond)
	}
	return l
}

// noop works n messages with a handler that does nothing.
func noop(broker *memory.Broker, topics []string, n, slots int) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var handled atomic.Int64
	cfg := quiet()
	cfg.Concurrency, cfg.Guards = slots, make(map[string]consumer.Guard)
	for _, topic := range topics {
		cfg.Guards[topic] = consumer.Guard{Limiter: started(slots)}
	}
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
		DeadLetter: "*.dead",
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
