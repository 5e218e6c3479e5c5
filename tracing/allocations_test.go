//go:build !race

package tracing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/tracing"
)

// costs are runs, and how many allocations each may cost.
var costs = []struct {
	name    string
	sampler sdktrace.Sampler
	item    brokers.Item
	event   consumer.Event
	most    float64
}{
	{"not sampled", sdktrace.NeverSample(), message(producer), succeeded, 5},
	{"not sampled, no producer", sdktrace.NeverSample(), message(""), succeeded, 5},
	{"not sampled, a retry that fails", sdktrace.NeverSample(), retried(producer, before), failed, 7},
	{"sampled", sdktrace.AlwaysSample(), message(producer), succeeded, 19},
	{"sampled, a retry that fails", sdktrace.AlwaysSample(), retried(producer, before), failed, 19},
}

var (
	succeeded = consumer.Event{Kind: consumer.EventSucceeded}
	failed    = consumer.Event{Kind: consumer.EventFailed, Topic: "orders", Err: errors.New("busy"),
		Decision: retry.Decision{Retry: true, Reason: "transient", Delay: time.Second}}
)

// measured returns a run of cost n, for a benchmark.
func measured(n int) func(ctx context.Context) {
	c := costs[n]
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(c.sampler), sdktrace.WithBatcher(discard{})))
	run, e := []brokers.Item{c.item}, c.event
	e.Message = c.item.Message
	return func(ctx context.Context) { tracer.Observe(tracer.Start(ctx, run), e) }
}

// Tracing allocates little. The share of the SDK is most of it. A worker adds one
// allocation.
func TestAllocations(t *testing.T) {
	for n, c := range costs {
		run := measured(n)
		if got := testing.AllocsPerRun(100, func() { run(t.Context()) }); got > c.most {
			t.Errorf("%s: %.0f allocations, want %.0f at most", c.name, got, c.most)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for n, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			run := measured(n)
			b.ReportAllocs()
			for b.Loop() {
				run(b.Context())
			}
		})
	}
}

// discard is an exporter of a collector that costs nothing.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                             { return nil }
