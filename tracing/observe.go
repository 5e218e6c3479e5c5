package tracing

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// Outcomes, in the words of the metric retry_attempts_total.
const (
	success    = "success"
	again      = "retry"
	deferred   = "defer"
	deadLetter = "dead_letter"
	skipped    = "skip"
	released   = "release"
	lost       = "lost"
)

// run is the span of a run that is recorded, and the context that has it.
type run struct {
	context.Context
	span  trace.Span
	batch bool
	one   [1]*brokers.Message

	mu     sync.Mutex
	open   []*brokers.Message // of which nothing is decided yet
	failed bool
}

// runKey is the key of a run in its own context.
type runKey struct{}

// Value implements [context.Context].
func (r *run) Value(key any) any {
	if key == (runKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// Observe implements [consumer.Observer].
func (t *Tracer) Observe(ctx context.Context, e consumer.Event) {
	switch e.Kind {
	case consumer.EventSucceeded:
		t.decided(ctx, &e, success)
	case consumer.EventFailed:
		t.decided(ctx, &e, outcomeOf(&e))
	case consumer.EventLeaseLost:
		t.decided(ctx, &e, lost)
	case consumer.EventSettled:
		if e.Action == brokers.Release || e.Action == brokers.Retry { // of a handler that the worker did not wait for
			t.decided(ctx, &e, released)
		}
	case consumer.EventDeferred:
		t.putOff(ctx, &e)
	case consumer.EventDeadLettered:
		what := "dead-letter"
		if e.DeadLetterTopic == dlq.Discard {
			what = "discard"
		}
		t.died(ctx, what, &e)
	}
}

// decided ends the span of the run in ctx when the outcome of its last message is
// known. An event after the end of a run is about no run.
func (t *Tracer) decided(ctx context.Context, e *consumer.Event, outcome string) {
	r, _ := ctx.Value(runKey{}).(*run)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.open, e.Message)
	if at < 0 {
		return
	}
	r.open = slices.Delete(r.open, at, at+1)
	switch {
	case !r.batch:
		describe(r.span, e, outcome)
	case outcome != success:
		r.failed = true
		t.decide(r, e, outcome)
	case len(r.open) == 0 && !r.failed:
		r.span.SetAttributes(outcomeKey.String(success))
	}
	if len(r.open) == 0 {
		r.span.End()
	}
}

// decide has a child of the span of a batch tell what becomes of one message.
func (t *Tracer) decide(r *run, e *consumer.Event, outcome string) {
	_, span := t.tracer.Start(r.Context, name("decide", e.Topic), trace.WithAttributes(
		semconv.MessagingMessageID(e.Message.ID), attemptKey.Int(e.Attempt)))
	describe(span, e, outcome)
	span.End()
}

// describe says in span how a run ended, and whether it ended the message.
func describe(span trace.Span, e *consumer.Event, outcome string) {
	if outcome == success {
		span.SetAttributes(outcomeKey.String(outcome))
		return
	}
	attributes := make([]attribute.KeyValue, 0, 5)
	attributes = append(attributes, outcomeKey.String(outcome))
	if class := e.Verdict.Class; class != "" {
		attributes = append(attributes, semconv.ErrorTypeKey.String(class))
	}
	switch outcome {
	case again, deferred:
		attributes = append(attributes, delayOf(e))
	case deadLetter:
		span.SetStatus(codes.Error, e.Decision.Reason)
	}
	if e.Decision.Reason != "" {
		attributes = append(attributes, reasonKey.String(e.Decision.Reason))
	}
	if n := len(e.Meta.History); n > 0 && (outcome == again || outcome == deadLetter) {
		attributes = append(attributes, fingerprintKey.String(e.Meta.History[n-1].Fingerprint))
	}
	span.SetAttributes(attributes...)
}

func delayOf(e *consumer.Event) attribute.KeyValue {
	return delayKey.Int64(e.Decision.Delay.Milliseconds())
}

// outcomeOf is the outcome of a run that failed.
func outcomeOf(e *consumer.Event) string {
	switch {
	case e.Decision.Retry && e.Verdict.Deferred:
		return deferred
	case e.Decision.Retry:
		return again
	case e.Decision.DeadLetter:
		return deadLetter
	case e.Verdict.Class == classify.ClassSkipped:
		return skipped
	case e.Verdict.Class == classify.ClassShutdown:
		return released
	}
	return lost
}

// putOff makes a span of a run that is put off.
func (t *Tracer) putOff(ctx context.Context, e *consumer.Event) {
	attributes := []attribute.KeyValue{outcomeKey.String(deferred), reasonKey.String(e.Decision.Reason), delayOf(e)}
	if e.Decision.Reason == "budget" {
		attributes = append(attributes, exhaustedKey.Bool(true))
	}
	t.happened(ctx, "defer", e, e.Time, attributes...)
}

// died makes a span of a dead letter, from the death of the message until the dead
// letter is durable.
func (t *Tracer) died(ctx context.Context, operation string, e *consumer.Event) {
	t.happened(ctx, operation, e, e.DeadLetter.DeadAt, outcomeKey.String(deadLetter), reasonKey.String(e.DeadLetter.Reason),
		fingerprintKey.String(e.DeadLetter.Fingerprint))
}

// happened makes a span of what the worker did with a message outside of a run. It
// is a child of the last run, or of the producer's span.
func (t *Tracer) happened(ctx context.Context, operation string, e *consumer.Event, began time.Time, more ...attribute.KeyValue) {
	s := t.starts.Get().(*start)
	defer t.starts.Put(s)
	defer s.reset()
	producing, producer := t.producer(s, withoutSpan(ctx), e.Message)
	if before := previous(&e.Meta, producer); before.IsValid() {
		producing = trace.ContextWithRemoteSpanContext(producing, before)
	}
	more = append(more, semconv.MessagingDestinationName(e.Topic), semconv.MessagingMessageID(e.Message.ID))
	if e.Attempt > 0 {
		more = append(more, attemptKey.Int(e.Attempt))
	}
	_, span := t.tracer.Start(producing, name(operation, e.Topic), trace.WithTimestamp(began), trace.WithAttributes(more...))
	span.End(trace.WithTimestamp(e.Time))
}
