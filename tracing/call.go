package tracing

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// StartCall begins the span of an HTTP call of the retry service, as the Tracer of
// package operate/service wants it. The span is a child of the one in the headers of r,
// which have the span's own context afterwards.
func (t *Tracer) StartCall(r *http.Request, m brokers.Meta) context.Context {
	s := t.starts.Get().(*start)
	defer t.starts.Put(s)
	defer s.reset()
	s.kind = clientKind
	ctx := t.call(s, r, &m)
	ctx, span := t.tracer.Start(ctx, callName(r), s.options()...)
	if span.SpanContext().IsValid() {
		for _, name := range t.propagator.Fields() {
			r.Header.Del(name) // tracestate without its traceparent means nothing
		}
		t.propagator.Inject(ctx, propagation.HeaderCarrier(r.Header))
	}
	return ctx
}

// call has s begin something about a call, and returns the context of r with its
// parent. URLs and headers may have secrets: of them there is only who is called.
func (t *Tracer) call(s *start, r *http.Request, m *brokers.Meta) context.Context {
	s.add(semconv.HTTPRequestMethodKey.String(methodOf(r)), semconv.ServerAddress(r.URL.Hostname()), attemptKey.Int(m.Attempt))
	if port, err := strconv.Atoi(portOf(r)); err == nil {
		s.add(semconv.ServerPort(port))
	}
	if m.Attempt > 1 {
		s.add(semconv.HTTPRequestResendCount(m.Attempt - 1))
	}
	ctx := t.propagator.Extract(withoutSpan(r.Context()), propagation.HeaderCarrier(r.Header))
	return t.relate(s, ctx, trace.SpanContextFromContext(ctx), m)
}

// EndCall ends the span in ctx. v and d are zero if the call succeeded; status is 0 if
// it had no response.
func (t *Tracer) EndCall(ctx context.Context, status int, v classify.Verdict, d retry.Decision) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	if !span.IsRecording() {
		return
	}
	e := consumer.Event{Verdict: v, Decision: d}
	outcome := success
	if d != (retry.Decision{}) {
		outcome = outcomeOf(&e)
	}
	describe(span, &e, outcome)
	if status == 0 {
		return
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if outcome != success {
		span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
	}
}

// NotCalled makes a span of a call that was put off, or given up, before it was sent.
// It is where the call's own would have been.
func (t *Tracer) NotCalled(r *http.Request, m brokers.Meta, d retry.Decision) {
	s := t.starts.Get().(*start)
	defer t.starts.Put(s)
	defer s.reset()
	s.kind = trace.WithSpanKind(trace.SpanKindInternal)
	ctx := t.call(s, r, &m)
	operation, about := "defer", []attribute.KeyValue{outcomeKey.String(deferred), reasonKey.String(d.Reason), delayKey.Int64(d.Delay.Milliseconds())}
	switch {
	case d.DeadLetter:
		operation, about = "dead-letter", []attribute.KeyValue{outcomeKey.String(deadLetter), reasonKey.String(d.Reason)}
	case d.Reason == "budget":
		about = append(about, exhaustedKey.Bool(true))
	}
	_, span := t.tracer.Start(ctx, name(operation, callName(r)), append(s.options(), trace.WithAttributes(about...))...)
	if d.DeadLetter {
		span.SetStatus(codes.Error, d.Reason)
	}
	span.End()
}

// known are the methods of the conventions. Another one is the caller's, who could make
// any number of names of spans.
var known = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions,
	http.MethodTrace, "QUERY",
}

func methodOf(r *http.Request) string {
	if slices.Contains(known, r.Method) {
		return r.Method
	}
	return "_OTHER"
}

// callName is that of the span of a call: the conventions want no path in it.
func callName(r *http.Request) string {
	if method := methodOf(r); method != "_OTHER" {
		return method
	}
	return "HTTP"
}

func portOf(r *http.Request) string {
	switch port := r.URL.Port(); {
	case port != "":
		return port
	case r.URL.Scheme == "http":
		return "80"
	default:
		return "443"
	}
}
