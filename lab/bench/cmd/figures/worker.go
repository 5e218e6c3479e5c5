package main

import (
	"context"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/tracing"
)

// workerArea measures what it costs to watch a worker.
func workerArea(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	return []figure.Measurement{
		{Name: "tracing", Run: traced, Figures: []*figure.Figure{
			figure.AtMost("unsampled_allocs", "allocs/message", 6),
			figure.AtMost("sampled_allocs", "allocs/message", 20),
			figure.Reported("unsampled_ratio", "ratio"),
			figure.Reported("sampled_ratio", "ratio"),
		}},
	}, nil, nil
}

// traced compares the pipeline with a Tracer and without, alternating. What a Tracer
// allocates is beyond what the pipeline does, with an Observer in both.
func traced(_ context.Context, s *figure.Samples) error {
	const backlog = 50_000
	run := func(tracer consumer.Tracer) cost {
		return measured(backlog, 1, func(b *memory.Broker, topics []string, n int) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var handled atomic.Int64
			cfg := quiet()
			cfg.Guard = consumer.Guard{Limiter: started(10)}
			if cfg.Tracer = tracer; tracer == nil {
				cfg.Observers = []consumer.Observer{observed(func(consumer.Event) {})}
			}
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
		off := run(nil)
		for name, tracer := range map[string]consumer.Tracer{"unsampled": unsampled, "sampled": sampled} {
			on := run(tracer)
			s.Add(name+"_allocs", on.allocs-off.allocs)
			s.Add(name+"_ratio", on.nanos/off.nanos)
		}
	}
	return nil
}

// exporter is that of a collector that costs nothing.
type exporter struct{}

func (exporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (exporter) Shutdown(context.Context) error                             { return nil }
