package tracing_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/tracing"
)

// recorded returns a Tracer, and a function that returns its only span.
func recorded(t *testing.T, options ...tracing.Option) (*tracing.Tracer, func() tracetest.SpanStub) {
	spans := tracetest.NewInMemoryExporter()
	return tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), options...), func() tracetest.SpanStub {
		t.Helper()
		got := spans.GetSpans()
		if len(got) != 1 {
			t.Fatalf("%d spans, want 1", len(got))
		}
		return got[0]
	}
}

func request(t *testing.T, method, url string, headers ...string) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// attributesOf is the attributes of a span, in their order.
func attributesOf(span tracetest.SpanStub) string {
	var b strings.Builder
	for _, a := range span.Attributes {
		fmt.Fprintf(&b, "%s=%s ", a.Key, a.Value.String())
	}
	return strings.TrimSpace(b.String())
}

// TestCall holds the spans of calls, and what goes to the target, against what the task
// remembers. Trees of whole tasks are in lab/spans.
func TestCall(t *testing.T) {
	failed := time.Now().Add(-time.Hour)
	for name, tt := range map[string]struct {
		parent, state string
		options       []tracing.Option
		meta          brokers.Meta
		want          string
	}{
		"first":                 {parent: producer, state: "a=1", meta: brokers.Meta{Attempt: 1}, want: "child of 00f0"},
		"second":                {parent: producer, meta: brokers.Meta{Attempt: 2, FirstFailedAt: failed, LastFailedAt: failed, Trace: before}, want: "child of 00f0, previous_attempt b7ad"},
		"after a long wait":     {parent: producer, options: []tracing.Option{tracing.NewTraceAfter(time.Minute)}, meta: brokers.Meta{Attempt: 2, FirstFailedAt: failed, LastFailedAt: failed, Trace: before}, want: "root, producer 00f0, previous_attempt b7ad"},
		"back":                  {parent: producer, meta: brokers.Meta{Attempt: 1, RedriveCount: 1, Trace: before}, want: "root, producer 00f0, previous_attempt b7ad"},
		"no caller":             {meta: brokers.Meta{Attempt: 1}, want: "root"},
		"state without parent":  {state: "a=1", meta: brokers.Meta{Attempt: 1}, want: "root"},
		"malformed":             {parent: "00-1", state: "a=1", meta: brokers.Meta{Attempt: 1}, want: "root"},
		"malformed call before": {parent: producer, meta: brokers.Meta{Attempt: 2, FirstFailedAt: failed, Trace: "x"}, want: "child of 00f0"},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, span := recorded(t, tt.options...)
			r := request(t, "POST", "https://user:pass@bank.example/pay/secret?token=secret", "Authorization", "secret", "traceparent", tt.parent, "tracestate", tt.state)
			ctx := tracer.StartCall(r, tt.meta)
			tracer.EndCall(ctx, 200, classify.Verdict{}, retry.Decision{})
			got := span()
			if got.Name != "POST" || got.SpanKind != trace.SpanKindClient || relations(got) != tt.want {
				t.Errorf("the span is %s %q, %s, want %s", got.SpanKind, got.Name, relations(got), tt.want)
			}
			if sent := r.Header.Get("traceparent"); sent != tracer.Traceparent(ctx) || !strings.Contains(sent, got.SpanContext.SpanID().String()) {
				t.Errorf("the target gets %q of span %s", sent, got.SpanContext.SpanID())
			}
			if state := r.Header.Get("tracestate"); (state != "") != (name == "first") {
				t.Errorf("the target gets the tracestate %q", state)
			}
			if text := attributesOf(got); strings.Contains(text, "secret") || !strings.Contains(text, "server.address=bank.example retry.attempt=") || !strings.Contains(text, "server.port=443") {
				t.Errorf("attributes: %s", text)
			}
		})
	}
}

// TestCallNotRecorded has the context of the caller go on where no span is made.
func TestCallNotRecorded(t *testing.T) {
	r := request(t, "POST", "http://bank.example/", "traceparent", producer, "tracestate", "a=1")
	tracer := tracing.New(noop.NewTracerProvider())
	tracer.EndCall(tracer.StartCall(r, brokers.Meta{Attempt: 1}), 200, classify.Verdict{}, retry.Decision{})
	if r.Header.Get("traceparent") != producer || r.Header.Get("tracestate") != "a=1" {
		t.Errorf("the target gets %v", r.Header)
	}
	tracer = tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())), tracing.Propagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	r.Header.Set("baggage", "tenant=a")
	tracer.StartCall(r, brokers.Meta{Attempt: 1})
	if parent := r.Header.Get("traceparent"); parent[:36] != producer[:36] || !strings.HasSuffix(parent, "-00") || r.Header.Get("baggage") != "tenant=a" {
		t.Errorf("the target gets %v", r.Header)
	}
}

func TestNotCalled(t *testing.T) {
	for _, tt := range []struct {
		d    retry.Decision
		want string
	}{
		{retry.Decision{Retry: true, Delay: 1500 * time.Millisecond, Reason: "budget"},
			"defer HTTP http.request.method=_OTHER server.address=bank.example retry.attempt=3 server.port=8080 http.request.resend_count=2 redrive.outcome=defer redrive.reason=budget retry.delay_ms=1500 retry.budget_exhausted=true Unset"},
		{retry.Decision{Retry: true, Delay: time.Second, Reason: "breaker"},
			"defer HTTP http.request.method=_OTHER server.address=bank.example retry.attempt=3 server.port=8080 http.request.resend_count=2 redrive.outcome=defer redrive.reason=breaker retry.delay_ms=1000 Unset"},
		{retry.Decision{DeadLetter: true, Reason: "expired"},
			"dead-letter HTTP http.request.method=_OTHER server.address=bank.example retry.attempt=3 server.port=8080 http.request.resend_count=2 redrive.outcome=dead_letter redrive.reason=expired Error"},
	} {
		tracer, span := recorded(t)
		tracer.NotCalled(request(t, "FROB", "http://bank.example:8080/", "traceparent", producer), brokers.Meta{Attempt: 3, FirstFailedAt: time.Now(), Trace: before}, tt.d)
		got := span()
		if text := fmt.Sprint(got.Name, " ", attributesOf(got), " ", got.Status.Code); text != tt.want || relations(got) != "child of 00f0, previous_attempt b7ad" {
			t.Errorf("the span is %s, %s\nwant %s", text, relations(got), tt.want)
		}
	}
}

// TestSend holds the span of a send-back against its letters.
func TestSend(t *testing.T) {
	letter := func(id, parent, died string) brokers.Item {
		return brokers.Item{Message: &brokers.Message{ID: id, Headers: brokers.Headers{{Name: "traceparent", Value: parent}}}, Meta: brokers.Meta{Attempt: 3, Trace: died}}
	}
	tracer, span := recorded(t)
	around, end := sdktrace.NewTracerProvider().Tracer("").Start(t.Context(), "the caller")
	defer end.End()
	letters := []brokers.Item{letter("1", producer, before), letter("2", producer, ""), letter("3", "", before), letter("4", "00-é", "00-é"), letter("5", "", before+","+sending)}
	letters[0].Meta.Origin = brokers.Headers{{Name: "partition", Value: "3"}}
	tracer.EndSend(tracer.StartSend(around, 7, "orders", letters), []error{nil, brokers.ErrRefused, errors.New("it broke"), fmt.Errorf("%w: it is too large", brokers.ErrRefused), nil})
	got := span()
	const want = "root, previous_attempt b7ad, producer 00f0, previous_attempt b7ad, previous_attempt b7ad"
	if got.Name != "send orders" || got.SpanKind != trace.SpanKindClient || relations(got) != want || got.Status.Code != codes.Unset {
		t.Errorf("the span is %s %q, %s, want %s", got.SpanKind, got.Name, relations(got), want)
	}
	const attributes = "messaging.operation.type=send messaging.operation.name=send messaging.destination.name=orders redrive.job=7 messaging.batch.message_count=5 messaging.system=kafka redrive.failed=3 error.type=refused"
	if text := attributesOf(got); text != attributes {
		t.Errorf("attributes: %s\nwant %s", text, attributes)
	}

	sent := tracer.Traceparent(trace.ContextWithSpanContext(t.Context(), got.SpanContext))
	for i, died := range []string{before, "", before, "00-é", before} {
		if trace := letters[i].Meta.Trace; trace != died+","+sent {
			t.Errorf("letter %d goes with the trace %q, want %q and %q", i+1, trace, died, sent)
		}
	}

	tracer, span = recorded(t)
	many := make([]brokers.Item, 500)
	for i := range many {
		many[i] = letter(fmt.Sprint(i), producer, before)
	}
	tracer.EndSend(tracer.StartSend(t.Context(), 7, "orders", many), make([]error, 500))
	if n := len(span().Links); n != 128 || span().DroppedLinks != 0 {
		t.Errorf("%d links of 500 letters, %d dropped, want 128 and 0", n, span().DroppedLinks)
	}
}
