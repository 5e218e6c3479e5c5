package sampling_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/tracing/sampling"
)

func TestSampler(t *testing.T) {
	span := func(flags trace.TraceFlags) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true})
	}
	sampled, silent := span(trace.FlagsSampled), span(0)
	links := func(to ...trace.SpanContext) (links []trace.Link) {
		for _, span := range to {
			links = append(links, trace.Link{SpanContext: span})
		}
		return links
	}
	attempt := attribute.Key("retry.attempt")
	for _, tt := range []struct {
		name       string
		parent     trace.SpanContext
		links      []trace.Link
		attributes []attribute.KeyValue
		limit      int
		want       bool
	}{
		{"root", trace.SpanContext{}, nil, nil, 3, false},
		{"root, linked to a sampled span", trace.SpanContext{}, links(silent, sampled), nil, 3, true},
		{"root, linked to others", trace.SpanContext{}, links(silent, silent), nil, 3, false},
		{"child of a sampled span", sampled, nil, nil, 3, true},
		{"child of another, linked to a sampled span", silent, links(sampled), nil, 3, false},
		{"early attempt", silent, nil, []attribute.KeyValue{attempt.Int(2)}, 3, false},
		{"late attempt", silent, nil, []attribute.KeyValue{attempt.Int(3)}, 3, true},
		{"later attempt", trace.SpanContext{}, nil, []attribute.KeyValue{attempt.Int(9)}, 3, true},
		{"attempt, without a limit", silent, nil, []attribute.KeyValue{attempt.Int(9)}, 0, false},
		{"attempt of another type", silent, nil, []attribute.KeyValue{attempt.String("9")}, 3, false},
		{"dead letter", silent, nil, []attribute.KeyValue{attribute.String("redrive.outcome", "dead_letter")}, 0, true},
		{"put off", silent, nil, []attribute.KeyValue{attribute.String("redrive.outcome", "defer")}, 0, false},
	} {
		sampler := sampling.Sampler(sdktrace.ParentBased(sdktrace.NeverSample()), tt.limit)
		result := sampler.ShouldSample(sdktrace.SamplingParameters{
			ParentContext: trace.ContextWithSpanContext(context.Background(), tt.parent), TraceID: trace.TraceID{1}, Links: tt.links, Attributes: tt.attributes,
		})
		if got := result.Decision == sdktrace.RecordAndSample; got != tt.want {
			t.Errorf("%s: sampled %t, want %t", tt.name, got, tt.want)
		}
	}
	if got, want := sampling.Sampler(sdktrace.NeverSample(), 3).Description(), "Redrive{attempt:3,AlwaysOffSampler}"; got != want {
		t.Errorf("Description = %q, want %q", got, want)
	}
}
