package job

import (
	"context"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/store"
)

// Tracer makes a span of each batch of letters that a job sends back. That of module
// tracing does: tracing.New(provider). Its methods may be called at the same time. If
// one panics, the log says so, and nothing changes for the letters.
type Tracer interface {
	// StartSend begins the span of a batch, of one letter or more, and returns ctx with it:
	// the call of the broker has that context. Meta.Trace of a letter leads to the run
	// that died. StartSend may add the traceparent of its span, after a comma.
	StartSend(ctx context.Context, job int64, topic string, letters []brokers.Item) context.Context

	// EndSend ends the span in ctx. errs has nil for each letter that the broker has
	// confirmed.
	EndSend(ctx context.Context, errs []error)
}

// startSend returns ctx with the span of a batch.
func (w *run) startSend(ctx context.Context, to destination, letters []brokers.Item) (span context.Context) {
	if w.Tracer == nil {
		return ctx
	}
	span = ctx
	w.safely(func() { span = w.Tracer.StartSend(ctx, w.id, to.target.Topic, letters) })
	return span
}

func (w *run) endSend(span context.Context, errs []error) {
	if w.Tracer != nil {
		w.safely(func() { w.Tracer.EndSend(span, errs) })
	}
}

// traceOf names the trace in which a letter died, for a line of the log whose context
// has no span.
func (w *run) traceOf(l store.Sending) (attrs []any) {
	died, _, _ := strings.Cut(l.Entry.Meta.Trace, ",")
	if parts := strings.Split(died, "-"); w.Tracer == nil && len(parts) == 4 && text.IsWord(parts[1]) {
		attrs = append(attrs, "trace_id", parts[1])
	}
	return attrs
}

// safely calls the Tracer, which may panic.
func (w *run) safely(f func()) {
	defer func() {
		if v := recover(); v != nil {
			w.log.Error("Runner.Tracer panicked: letters go on without a span", "error", fmt.Sprint("panic: ", v))
		}
	}()
	f()
}
