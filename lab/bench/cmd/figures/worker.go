package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/flow"
	"github.com/redrive-go/redrive/tracing"
)

// workerArea measures what it costs to watch a worker.
func workerArea(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	worlds, end, err := allMetered()
	all := []figure.Measurement{
		{Name: "tracing", Run: traced, Figures: []*figure.Figure{
			figure.AtMost("off_allocs", "allocs/message", 0),
			figure.AtMost("unsampled_allocs", "allocs/message", 6),
			figure.AtMost("sampled_allocs", "allocs/message", 20),
			figure.Reported("unsampled_ratio", "ratio"),
			figure.Reported("sampled_ratio", "ratio"),
		}},
		{Name: "status", Run: status, Figures: []*figure.Figure{figure.AtMost("status_us", "µs", 100)}},
	}
	for _, w := range worlds {
		all = append(all, scraped(w))
	}
	return all, end, err
}

// scraped counts the calls by which a worker asks its broker how much that has. There
// is a scrape each 5 s, for two of the intervals in which the worker asks once.
func scraped(w metered) figure.Measurement {
	const every, interval, intervals = 5 * time.Second, 30 * time.Second, 2
	name := w.broker + "_calls_per_scrape_interval"
	return figure.Measurement{
		Name:    w.broker + "_scrape",
		Figures: []*figure.Figure{figure.AtMost(name, "calls", w.goal)},
		Run: func(ctx context.Context, s *figure.Samples) error {
			topics, err := w.Fill(ctx, 0, "scraped")
			if err != nil {
				return err
			}
			m, err := metrics.New(metrics.Topic{Name: topics[0]})
			if err != nil {
				return err
			}
			registry := prometheus.NewRegistry()
			registry.MustRegister(m)
			var worker *consumer.Consumer
			started := make(chan struct{})
			ctx, stop := startWatched(ctx, w, consumer.Config{Observers: []consumer.Observer{m}}, func(c *consumer.Consumer) {
				m.Follow(c)
				worker = c
				close(started)
			}, unexpected, topics[0])
			select {
			case <-started:
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), stop())
			}
			for worker.Status().State != health.Running && err == nil {
				err = pause(ctx, every)
			}
			began := time.Time{}
			for err == nil && (began.IsZero() || time.Since(began) < intervals*interval) {
				if _, err = registry.Gather(); err == nil {
					err = pause(ctx, every)
				}
				if began.IsZero() { // after the first ask, which may have opened a connection
					w.Take()
					began = time.Now()
				}
			}
			sent, asks := w.Take(), 0
			for _, kind := range w.asks {
				asks += sent[kind]
			}
			figure.Note("%s, in %v with a scrape each %v: %v", w.broker, intervals*interval, every, sent)
			s.Add(name, float64(asks)/intervals)
			return errors.Join(err, stop())
		},
	}
}

// traced compares the pipeline with a Tracer and without, alternating. What a Tracer
// allocates is beyond what the pipeline does, with an Observer in both. Without either,
// it is what the pipeline does beyond a bare loop, in whole allocations a message, as
// testing.AllocsPerRun counts.
func traced(_ context.Context, s *figure.Samples) error {
	const backlog = 50_000
	run := func(tracer consumer.Tracer, observers ...consumer.Observer) cost {
		return measured(backlog, 1, func(b *memory.Broker, topics []string, n int) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var handled atomic.Int64
			cfg := quiet()
			cfg.Guard = consumer.Guard{Limiter: started(10)}
			cfg.Tracer, cfg.Observers = tracer, observers
			work(ctx, b, topics, cfg, func(context.Context, *brokers.Message) error {
				if handled.Add(1) == int64(n) {
					stop()
				}
				return nil
			})
		})
	}
	with := func(sampler sdktrace.Sampler) consumer.Tracer {
		return tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(exporter{})))
	}
	unsampled, sampled := with(sdktrace.NeverSample()), with(sdktrace.AlwaysSample())
	for range coreRounds {
		loop := measured(backlog, 1, bareLoop)
		s.Add("off_allocs", max(0, math.Floor(run(nil).allocs-loop.allocs)))
		off := run(nil, observed(func(consumer.Event) {}))
		for name, tracer := range map[string]consumer.Tracer{"unsampled": unsampled, "sampled": sampled} {
			on := run(tracer)
			s.Add(name+"_allocs", on.allocs-off.allocs)
			s.Add(name+"_ratio", on.nanos/off.nanos)
		}
	}
	return nil
}

// status measures Consumer.Status with 10,000 messages in flight or more, in ten
// topics.
func status(ctx context.Context, s *figure.Samples) error {
	const topics, each, least = 10, 2500, 10_000
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	broker, cfg := memory.New(memory.Options{}), quiet()
	cfg.Prefetch, cfg.Guard = each, consumer.Guard{Limiter: flow.Unbounded(rand.Float64)}
	c, err := consumer.New(broker, cfg)
	must(err)
	for i := range topics {
		topic := fmt.Sprint("topic-", i)
		c.Handle(topic, func(context.Context, *brokers.Message) error { <-ctx.Done(); return nil })
		must(broker.Publish(ctx, topic, make([]brokers.Message, each)...))
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for inFlight := 0; inFlight < least; time.Sleep(time.Millisecond) {
		inFlight = 0
		for _, t := range c.Status().Topics {
			inFlight += t.InFlight
		}
	}
	for range coreRounds {
		const calls = 1000
		began := time.Now()
		for range calls {
			c.Status()
		}
		s.Add("status_us", float64(time.Since(began).Microseconds())/calls)
	}
	stop()
	return <-ended
}

// exporter is that of a collector that costs nothing.
type exporter struct{}

func (exporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (exporter) Shutdown(context.Context) error                             { return nil }
