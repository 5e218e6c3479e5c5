package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/demo"
	"github.com/redrive-go/redrive/tracing"
	"github.com/redrive-go/redrive/tracing/sampling"
)

// traces writes the spans of a worker to w: of one mail of ten, and besides each
// attempt from the fifth one on, and dead letters.
func traces(w io.Writer) demo.Traces {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(lines{w}),
		sdktrace.WithSampler(sampling.Sampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.1)), 5)))
	return demo.Traces{
		Tracer: tracing.New(provider), Parent: publishing(provider), Exemplar: tracing.Exemplar, Log: tracing.LogHandler, End: provider.Shutdown,
	}
}

// publishing returns the traceparent of a producer that has published a message.
func publishing(provider trace.TracerProvider) func() string {
	tracer := provider.Tracer("shop")
	return func() string {
		ctx, span := tracer.Start(context.Background(), "publish", trace.WithSpanKind(trace.SpanKindProducer))
		defer span.End()
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		return carrier["traceparent"]
	}
}

// lines is an exporter that writes a line for each span.
type lines struct{ io.Writer }

// ExportSpans implements [sdktrace.SpanExporter].
func (l lines) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		if _, err := io.WriteString(l, line(s)); err != nil {
			return err
		}
	}
	return nil
}

// Shutdown implements [sdktrace.SpanExporter].
func (l lines) Shutdown(context.Context) error { return nil }

// line is a span in a line: its trace, when it began, its name, how long it took, what
// it says of the message, and the spans that it links to.
func line(s sdktrace.ReadOnlySpan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %v", s.SpanContext().TraceID(), s.StartTime().Format("15:04:05.000"), s.Name(),
		s.EndTime().Sub(s.StartTime()).Round(10*time.Microsecond))
	for _, a := range s.Attributes() {
		if key := string(a.Key); strings.HasPrefix(key, "retry.") || strings.HasPrefix(key, "redrive.") || key == "error.type" {
			fmt.Fprintf(&b, " %s=%s", key, a.Value.String())
		}
	}
	for _, link := range s.Links() {
		fmt.Fprintf(&b, " link=%s", link.SpanContext.SpanID())
	}
	fmt.Fprintf(&b, " span=%s\n", s.SpanContext().SpanID())
	return b.String()
}
