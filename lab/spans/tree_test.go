package spans

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// outside is the span of a caller whose spans are elsewhere: forged, or of another
// system.
const outside = "00f067aa0ba902b7"

// treeOf is spans as text. It fails the test if a parent or a link leads to no span.
func treeOf(t *testing.T, spans tracetest.SpanStubs) string {
	t.Helper()
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		const id = "messaging.message.id" // runs may begin at the same time
		return cmp.Or(a.StartTime.Compare(b.StartTime), strings.Compare(valueOf(a.Attributes, id), valueOf(b.Attributes, id)))
	})
	known, children := map[trace.SpanID]bool{}, map[trace.SpanID]tracetest.SpanStubs{}
	for _, span := range spans {
		known[span.SpanContext.SpanID()] = true
	}
	for _, span := range spans {
		parent := span.Parent.SpanID()
		switch {
		case parent.String() == outside:
			parent = trace.SpanID{}
		case parent.IsValid() && !known[parent]:
			t.Errorf("the parent of %q is no span of this run", span.Name)
		}
		children[parent] = append(children[parent], span)
	}
	numbers := map[trace.SpanID]int{}
	var order []func(b *strings.Builder)
	var walk func(parent trace.SpanID, level int)
	walk = func(parent trace.SpanID, level int) {
		for _, span := range children[parent] {
			numbers[span.SpanContext.SpanID()] = len(order) + 1
			order = append(order, func(b *strings.Builder) {
				fmt.Fprint(b, strings.Repeat("  ", level), numbers[span.SpanContext.SpanID()], " ", textOf(span))
				for _, link := range span.Links {
					to := fmt.Sprint(numbers[link.SpanContext.SpanID()])
					switch {
					case link.SpanContext.SpanID().String() == outside:
						to = "outside"
					case to == "0":
						t.Errorf("a link of %q leads to no span of this run", span.Name)
					}
					fmt.Fprintf(b, " %s->%s", cmp.Or(valueOf(link.Attributes, "redrive.link"), "?"), to)
				}
				b.WriteByte('\n')
			})
			walk(span.SpanContext.SpanID(), level+1)
		}
	}
	walk(trace.SpanID{}, 0)
	var b strings.Builder
	for _, write := range order {
		write(&b)
	}
	return b.String()
}

func textOf(span tracetest.SpanStub) string {
	var b strings.Builder
	b.WriteString(span.Name)
	if span.SpanKind != trace.SpanKindInternal {
		fmt.Fprintf(&b, " %s", strings.ToUpper(span.SpanKind.String()))
	}
	if span.Parent.SpanID().String() == outside {
		b.WriteString(" (child of outside)")
	}
	attributes := map[string]string{}
	for _, a := range span.Attributes {
		switch a.Key {
		case "server.port", "redrive.fingerprint", "messaging.message.id", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name":
		default:
			attributes[string(a.Key)] = a.Value.String()
		}
	}
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		fmt.Fprintf(&b, " %s=%s", key, attributes[key])
	}
	if span.Status.Code != codes.Unset {
		fmt.Fprintf(&b, " [%s: %s]", span.Status.Code, span.Status.Description)
	}
	return b.String()
}

func valueOf(attributes []attribute.KeyValue, key attribute.Key) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.AsString()
		}
	}
	return ""
}
