package tracing

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
)

// Attributes of a send-back.
const (
	jobKey    = attribute.Key("redrive.job")
	failedKey = attribute.Key("redrive.failed")
)

// mostLinks is how many links the SDK keeps of a span by default. It would drop the
// first ones.
const mostLinks = 128

// StartSend begins the span of a batch of dead letters that a job sends back to a
// topic, as the Tracer of package operate/job wants it. It begins a trace, with links
// to the runs that died. It is no PRODUCER: the messages keep the context of theirs.
// StartSend adds its own to Meta.Trace of the letters, so that their next runs link
// to it.
func (t *Tracer) StartSend(ctx context.Context, job int64, topic string, letters []brokers.Item) context.Context {
	s := t.starts.Get().(*start)
	defer t.starts.Put(s)
	defer s.reset()
	s.kind = clientKind
	s.add(semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send"), semconv.MessagingDestinationName(topic),
		jobKey.Int64(job), semconv.MessagingBatchMessageCount(len(letters)))
	s.system(letters[0].Meta.Origin)
	ctx = withoutSpan(ctx)
	for i := range letters[:min(len(letters), mostLinks)] {
		r := &letters[i]
		id := semconv.MessagingMessageID(r.Message.ID)
		_, producer := t.producer(s, ctx, r.Message)
		if died := previous(&r.Meta, producer); died.IsValid() {
			s.link(died, append(toPrevious, id, attemptKey.Int(r.Meta.Attempt)))
		} else {
			s.link(producer, append(toProducer, id))
		}
	}
	ctx, _ = t.tracer.Start(ctx, name("send", topic), s.options()...)
	if sent := t.Traceparent(ctx); sent != "" {
		for i := range letters {
			died, _, _ := strings.Cut(letters[i].Meta.Trace, ",")
			letters[i].Meta.Trace = died + "," + sent
		}
	}
	return ctx
}

// EndSend ends the span in ctx. errs say what the broker has not confirmed.
func (t *Tracer) EndSend(ctx context.Context, errs []error) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	failed, kind := 0, ""
	for _, err := range errs {
		if err != nil {
			failed++
			kind = sendError(err)
		}
	}
	if failed > 0 {
		span.SetAttributes(failedKey.Int(failed), semconv.ErrorTypeKey.String(kind))
	}
}

func sendError(err error) string {
	switch {
	case errors.Is(err, brokers.ErrRefused):
		return "refused"
	case errors.Is(err, brokers.ErrMisconfigured):
		return "misconfigured"
	}
	return "unknown"
}
