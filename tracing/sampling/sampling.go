// Package sampling has a sampler for the spans of package tracing. It needs the SDK
// of OpenTelemetry, which package tracing does not.
package sampling

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Sampler samples what next does, such as one message of a hundred, and besides
//
//   - a root span with a link to a sampled one, so that a message which begins a
//     new trace is not lost from sight: a batch, a dead letter that was sent back,
//     an attempt after a long wait;
//   - each attempt from the given one on, 0 for none;
//   - each dead letter.
//
// Whoever may write to the queue may have messages sampled with their traceparent,
// as with every sampler that asks the parent.
//
//	sdktrace.WithSampler(sampling.Sampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01)), 3))
func Sampler(next sdk.Sampler, attempt int) sdk.Sampler { return sampler{next, attempt} }

type sampler struct {
	next    sdk.Sampler
	attempt int
}

// ShouldSample implements [sdk.Sampler].
func (s sampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	result := s.next.ShouldSample(p)
	if result.Decision != sdk.RecordAndSample && (s.late(p.Attributes) || linked(p)) {
		result.Decision = sdk.RecordAndSample
	}
	return result
}

// late reports whether the span is of an attempt or of a dead letter that is always
// sampled.
func (s sampler) late(attributes []attribute.KeyValue) bool {
	for _, a := range attributes {
		switch {
		case a.Key == "retry.attempt" && s.attempt > 0 && a.Value.AsInt64() >= int64(s.attempt):
			return true
		case a.Key == "redrive.outcome" && a.Value.AsString() == "dead_letter":
			return true
		}
	}
	return false
}

// linked reports whether a root span has a link to a sampled span.
func linked(p sdk.SamplingParameters) bool {
	if trace.SpanContextFromContext(p.ParentContext).IsValid() {
		return false
	}
	for _, link := range p.Links {
		if link.SpanContext.IsSampled() {
			return true
		}
	}
	return false
}

// Description implements [sdk.Sampler].
func (s sampler) Description() string {
	return fmt.Sprintf("Redrive{attempt:%d,%s}", s.attempt, s.next.Description())
}
