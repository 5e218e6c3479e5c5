package tracing_test

import (
	"bytes"
	"context"
	"go/build"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/tracing"
	"github.com/redrive-go/redrive/tracing/sampling"
)

const (
	producer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	before   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	sending  = "00-22222222222222222222222222222222-2222222222222222-01"
	silent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00" // not sampled
)

// message is one from a producer, in its first attempt.
func message(traceparent string) brokers.Item {
	return brokers.Item{
		Message: &brokers.Message{ID: "7f3a", Topic: "orders", Headers: brokers.Headers{{Name: "tenant", Value: "a"}, {Name: "traceparent", Value: traceparent}}},
		Meta:    brokers.Meta{Attempt: 1},
	}
}

// retried is message after a failure of a run whose span was trace.
func retried(traceparent, trace string) brokers.Item {
	item := message(traceparent)
	item.Meta.Attempt, item.Meta.Trace = 2, trace
	item.Meta.FirstFailedAt, item.Meta.LastFailedAt = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
	return item
}

// one is the span of a run that succeeds.
func one(t *testing.T, ctx context.Context, options []tracing.Option, run ...brokers.Item) tracetest.SpanStub {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), options...)
	ctx = tracer.Start(ctx, run)
	for _, item := range run {
		tracer.Observe(ctx, consumer.Event{Kind: consumer.EventSucceeded, Topic: item.Message.Topic, Message: item.Message, Meta: item.Meta})
	}
	got := spans.GetSpans()
	if len(got) != 1 {
		t.Fatalf("%d spans, want 1", len(got))
	}
	return got[0]
}

// relations is the parent and the links of a span.
func relations(span tracetest.SpanStub) string {
	parent := "root"
	if span.Parent.IsValid() {
		parent = "child of " + span.Parent.SpanID().String()[:4]
	}
	for _, link := range span.Links {
		parent += ", " + link.Attributes[0].Value.AsString() + " " + link.SpanContext.SpanID().String()[:4]
	}
	return parent
}

// Whatever the headers say, a run has a span, and its handler the span's context.
func TestRelations(t *testing.T) {
	sentBack := func(item brokers.Item, failed bool) brokers.Item {
		item.Meta.RedriveCount = 1
		if !failed {
			item.Meta.FirstFailedAt, item.Meta.LastFailedAt = time.Time{}, time.Time{}
		}
		return item
	}
	ambient := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	hour := []tracing.Option{tracing.NewTraceAfter(time.Hour)}
	for _, tt := range []struct {
		name    string
		ctx     context.Context
		options []tracing.Option
		item    brokers.Item
		want    string
	}{
		{"first", t.Context(), nil, message(producer), "child of 00f0"},
		{"without a producer", t.Context(), nil, message(""), "root"},
		{"in a span of Run", ambient, nil, message(producer), "child of 00f0"},
		{"in a span of Run, without a producer", ambient, nil, message(""), "root"},
		{"retry", t.Context(), nil, retried(producer, before), "child of 00f0, previous_attempt b7ad"},
		{"retry without a trace", t.Context(), nil, retried(producer, ""), "child of 00f0"},
		{"retry of a run without a span of its own", t.Context(), nil, retried(producer, producer), "child of 00f0"},
		{"retry without a producer", t.Context(), nil, retried("", before), "child of b7ad"},
		{"retry after too short a wait", t.Context(), []tracing.Option{tracing.NewTraceAfter(2 * time.Hour)}, retried(producer, "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01"), "child of 00f0, previous_attempt b7ad"},
		{"retry after a long wait", t.Context(), hour, retried(producer, before), "root, producer 00f0, previous_attempt b7ad"},
		{"retry after a long wait, without a trace", t.Context(), hour, retried(producer, ""), "root, producer 00f0"},
		{"first, where a long wait begins a trace", t.Context(), hour, message(producer), "child of 00f0"},
		{"sent back", t.Context(), nil, sentBack(retried(producer, before), false), "root, producer 00f0, previous_attempt b7ad"},
		{"sent back, without traces", t.Context(), nil, sentBack(retried("", ""), false), "root"},
		{"sent back by a job with a span", t.Context(), nil, sentBack(retried(producer, before+","+sending), false), "root, producer 00f0, previous_attempt b7ad, send_back 2222"},
		{"sent back by a job with a span, without other traces", t.Context(), nil, sentBack(retried("", ","+sending), false), "root, send_back 2222"},
		{"sent back with two malformed traces", t.Context(), nil, sentBack(retried(producer, "00-1,00-2,"+sending), false), "root, producer 00f0"},
		{"retry of one that was sent back", t.Context(), nil, sentBack(retried(producer, before), true), "child of b7ad, producer 00f0"},
		{"malformed producer", t.Context(), nil, message("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"), "root"},
		{"no hexadecimal", t.Context(), nil, message("00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01"), "root"},
		{"upper case", t.Context(), nil, message(strings.ToUpper(producer)), "root"},
		{"all zero", t.Context(), nil, message("00-00000000000000000000000000000000-0000000000000000-01"), "root"},
		{"version ff", t.Context(), nil, message("ff" + producer[2:]), "root"},
		{"a newer version", t.Context(), nil, message("cc" + producer[2:] + "-more"), "child of 00f0"},
		{"a megabyte", t.Context(), nil, message(strings.Repeat("0", 1<<20)), "root"},
		{"control characters", t.Context(), nil, message("\x00\n\x1b"), "root"},
		{"malformed trace", t.Context(), nil, retried(producer, "00-1-2-3"), "child of 00f0"},
		{"no UTF-8", t.Context(), nil, retried(producer, "\xff\xfe"), "child of 00f0"},
	} {
		span := one(t, tt.ctx, tt.options, tt.item)
		if got := relations(span); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if !span.SpanContext.IsValid() || span.Name != "process orders" || span.SpanKind != trace.SpanKindConsumer {
			t.Errorf("%s: %s %q with %v", tt.name, span.SpanKind, span.Name, span.SpanContext)
		}
	}
}

// The producer's header and that of the attempt before are the only ones that are
// read: the attributes of a span are those of the message, and its origin.
func TestAttributes(t *testing.T) {
	at := func(origin ...brokers.Header) brokers.Item {
		item := message(producer)
		item.Meta.Origin, item.Meta.RedriveCount = origin, 2
		return item
	}
	for _, tt := range []struct {
		name string
		run  []brokers.Item
		want map[attribute.Key]string
	}{
		{"memory", []brokers.Item{at(brokers.Header{Name: "topic", Value: "orders"})}, map[attribute.Key]string{}},
		{"kafka", []brokers.Item{at(brokers.Header{Name: "topic", Value: "orders"}, brokers.Header{Name: "partition", Value: "3"}, brokers.Header{Name: "offset", Value: "42"})},
			map[attribute.Key]string{"messaging.system": "kafka", "messaging.destination.partition.id": "3", "messaging.kafka.offset": "42"}},
		{"kafka, forged", []brokers.Item{at(brokers.Header{Name: "partition", Value: "3"}, brokers.Header{Name: "offset", Value: "much"})},
			map[attribute.Key]string{"messaging.system": "kafka", "messaging.destination.partition.id": "3"}},
		{"rabbitmq", []brokers.Item{at(brokers.Header{Name: "exchange"}, brokers.Header{Name: "routing-key", Value: "eu"})},
			map[attribute.Key]string{"messaging.system": "rabbitmq", "messaging.rabbitmq.destination.routing_key": "eu"}},
		{"sqs", []brokers.Item{at(brokers.Header{Name: "queue", Value: "orders"})}, map[attribute.Key]string{"messaging.system": "aws_sqs"}},
		{"too many", []brokers.Item{at(slices.Repeat([]brokers.Header{{Name: "partition", Value: "3"}}, 100)...)},
			map[attribute.Key]string{"messaging.system": "kafka"}},
	} {
		span := one(t, t.Context(), nil, tt.run...)
		want := map[attribute.Key]string{
			"messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.destination.name": "orders",
			"messaging.message.id": "7f3a", "retry.attempt": "1", "redrive.count": "2", "redrive.outcome": "success",
		}
		maps.Copy(want, tt.want)
		got := map[attribute.Key]string{}
		for _, a := range span.Attributes {
			got[a.Key] = a.Value.String()
		}
		if tt.name != "too many" && !maps.Equal(got, want) || got["messaging.system"] != want["messaging.system"] {
			t.Errorf("%s: got\n%v\nwant\n%v", tt.name, got, want)
		}
		if scope := span.InstrumentationScope; scope.SchemaURL != semconv.SchemaURL || !strings.HasSuffix(scope.SchemaURL, "/"+tracing.Conventions) {
			t.Errorf("%s: the schema is %q, want that of version %s", tt.name, scope.SchemaURL, tracing.Conventions)
		}
	}
}

// Who uses package tracing takes in the API of OpenTelemetry, and not the SDK.
func TestNoSDK(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(pkg.Imports, func(path string) bool { return strings.Contains(path, "/otel/sdk") }) {
		t.Errorf("the package imports an SDK: %q", pkg.Imports)
	}
}

// What a sampler needs is there when a span starts.
func TestAttributesAtTheStart(t *testing.T) {
	var seen []attribute.Key
	sampler := asked(func(p sdktrace.SamplingParameters) {
		for _, a := range p.Attributes {
			seen = append(seen, a.Key)
		}
	})
	tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler))).Start(t.Context(), []brokers.Item{message(producer)})
	want := []attribute.Key{"messaging.operation.type", "messaging.operation.name", "messaging.destination.name", "messaging.message.id", "retry.attempt"}
	if !slices.Equal(seen, want) {
		t.Errorf("a sampler sees %q, want %q", seen, want)
	}
}

// asked is a sampler that samples nothing.
type asked func(sdktrace.SamplingParameters)

func (a asked) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	a(p)
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (asked) Description() string { return "asked" }

// A batch is linked to the producer of each of its messages, to their attempts before,
// and to what sent them back.
func TestLinksOfABatch(t *testing.T) {
	other := retried("00-11111111111111111111111111111111-1111111111111111-01", before+","+sending)
	other.Message.ID = "8c"
	span := one(t, t.Context(), nil, message(producer), other, message(""))
	if got, want := relations(span), "root, producer 00f0, producer 1111, previous_attempt b7ad, send_back 2222"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	for i, id := range []string{"7f3a", "8c", "8c", "8c"} {
		if !slices.Contains(span.Links[i].Attributes, semconv.MessagingMessageID(id)) {
			t.Errorf("link %d has the attributes %v, want the ID %s", i, span.Links[i].Attributes, id)
		}
	}
}

func TestTraceparent(t *testing.T) {
	tracer := tracing.New(sdktrace.NewTracerProvider())
	ctx := tracer.Start(t.Context(), []brokers.Item{message(producer)})
	span := trace.SpanContextFromContext(ctx)
	if got, want := tracer.Traceparent(ctx), producer[:36]+span.SpanID().String()+"-01"; got != want {
		t.Errorf("Traceparent = %q, want %q", got, want)
	}
	if got := tracer.Traceparent(t.Context()); got != "" {
		t.Errorf("Traceparent without a span = %q", got)
	}
	if ctx := tracing.New(noop.NewTracerProvider()).Start(t.Context(), []brokers.Item{message("")}); tracer.Traceparent(ctx) != "" {
		t.Error("a provider that makes no spans has a traceparent")
	}
}

// A propagator may read other formats, and baggage.
func TestPropagator(t *testing.T) {
	tracer := tracing.New(sdktrace.NewTracerProvider(), tracing.Propagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	item := message(producer)
	item.Message.Headers = append(item.Message.Headers, brokers.Header{Name: "baggage", Value: "tenant=acme"})
	ctx := tracer.Start(t.Context(), []brokers.Item{item})
	if got := baggage.FromContext(ctx).Member("tenant").Value(); got != "acme" {
		t.Errorf("the baggage is %q, want acme", got)
	}
	if got := trace.SpanContextFromContext(ctx).TraceID().String(); got != producer[3:35] {
		t.Errorf("the trace is %s, want the producer's", got)
	}
}

// Only what ends a message is sampled where little is, and what began with a
// sampled span.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := onMemory()
		defer broker.Close(t.Context())
		never := sdktrace.ParentBased(sdktrace.NeverSample())
		s := newStage(t, broker, "orders", sdktrace.WithSampler(sampling.Sampler(never, 3)))
		s.publish("one")
		s.work(1, s.orders(errBusy, errBusy, errBusy))
		s.sendBack()
		s.work(1, s.orders())
		var got []string
		for _, span := range s.spans.GetSpans() {
			got = append(got, span.Name)
		}
		// The third attempt, its dead letter, and the run after it, by its link.
		if want := []string{"process orders", "dead-letter orders", "process orders"}; !slices.Equal(got, want) {
			t.Errorf("sampled are %q, want %q", got, want)
		}
	})
}

func TestLogHandler(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(tracing.LogHandler(slog.NewTextHandler(&out, nil))).With("worker", 1).WithGroup("order")
	tracer := tracing.New(sdktrace.NewTracerProvider())
	ctx := tracer.Start(t.Context(), []brokers.Item{message(producer)})
	logger.InfoContext(ctx, "charged", "id", 7)
	logger.Info("no span", "id", 8)
	id := trace.SpanContextFromContext(ctx).SpanID().String()
	lines := strings.Split(out.String(), "\n")
	if want := "worker=1 order.id=7 order.trace_id=" + producer[3:35] + " order.span_id=" + id; !strings.HasSuffix(lines[0], want) {
		t.Errorf("the line is %q, want %q at its end", lines[0], want)
	}
	if !strings.HasSuffix(lines[1], "worker=1 order.id=8") {
		t.Errorf("a line without a span is %q", lines[1])
	}
}

func TestExemplar(t *testing.T) {
	for traceparent, want := range map[string]string{producer: producer[3:35], silent: "", "": ""} {
		provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
		ctx := tracing.New(provider).Start(t.Context(), []brokers.Item{message(traceparent)})
		got := tracing.Exemplar(ctx)
		if got["trace_id"] != want || (got == nil) != (want == "") {
			t.Errorf("%s: the exemplar is %v, want the trace %q", traceparent, got, want)
		}
	}
}
