//go:build !race

package tracing_test

import (
	"errors"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/tracing"
)

// Tracing allocates little. The share of the SDK is most of it. A worker adds one
// allocation.
func TestAllocations(t *testing.T) {
	failed := consumer.Event{Kind: consumer.EventFailed, Topic: "orders", Err: errors.New("busy"), Decision: retry.Decision{Retry: true, Reason: "transient", Delay: time.Second}}
	for _, tt := range []struct {
		name    string
		sampler sdktrace.Sampler
		item    consumer.Item
		event   consumer.Event
		most    float64
	}{
		{"not sampled", sdktrace.NeverSample(), message(producer), consumer.Event{Kind: consumer.EventSucceeded}, 5},
		{"not sampled, no producer", sdktrace.NeverSample(), message(""), consumer.Event{Kind: consumer.EventSucceeded}, 5},
		{"sampled", sdktrace.AlwaysSample(), message(producer), consumer.Event{Kind: consumer.EventSucceeded}, 19},
		{"sampled, a retry that fails", sdktrace.AlwaysSample(), retried(producer, before), failed, 19},
	} {
		exporter := discard{}
		tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(tt.sampler), sdktrace.WithBatcher(exporter)))
		run := []consumer.Item{tt.item}
		e := tt.event
		e.Message = tt.item.Message
		got := testing.AllocsPerRun(100, func() { tracer.Observe(tracer.Start(t.Context(), run), e) })
		t.Logf("%s: %.0f allocations", tt.name, got)
		if got > tt.most {
			t.Errorf("%s: %.0f allocations, want %.0f at most", tt.name, got, tt.most)
		}
	}
}
