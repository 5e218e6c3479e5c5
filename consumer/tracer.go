package consumer

import (
	"cmp"
	"context"
	"slices"

	"github.com/redrive-go/redrive/brokers"
)

// Tracer gives each run of a handler a span. Package tracing has one for
// OpenTelemetry. It sees all events, after the Observers, and its methods have the
// duties of [Observer.Observe].
type Tracer interface {
	Observer

	// Start begins the span of a run, and returns ctx with it. The handler, the
	// Observers and the Logger get a context with these values. A run has one
	// message, or those of a batch; the Attempt of each Meta is the number of this
	// run. The messages are those of the events: neither change nor
	// keep them, nor the run.
	Start(ctx context.Context, run []Item) context.Context

	// Traceparent returns the W3C traceparent of the span in ctx, or "". If the run
	// fails, the message carries it in [brokers.Meta.Trace], and so does its dead
	// letter.
	Traceparent(ctx context.Context) string
}

func (c *Config) observers() []Observer {
	if c.Tracer == nil {
		return c.Observers
	}
	return append(slices.Clip(c.Observers), c.Tracer)
}

// trace begins the span of a, before anybody else knows of a.
func (w *worker) trace(a *attempt) {
	if w.tracer == nil {
		return
	}
	defer w.recovered(a, EventStarted)
	for _, d := range a.runs() {
		w.run = append(w.run, Item{&d.Message, d.metaOfRun()})
	}
	defer func() {
		clear(w.run)
		w.run = w.run[:0]
	}()
	span := w.tracer.Start(a.base(), w.run)
	if a.extra == nil {
		a.extra = new(extra)
	}
	a.span = span
}

// traced returns m with the trace of the run of d that has ended.
func (r *reporter) traced(d *delivery, m brokers.Meta) (with brokers.Meta) {
	if with = m; r.tracer != nil {
		defer r.recovered(d.current, EventFailed)
		with.Trace = cmp.Or(r.tracer.Traceparent(d.current.base()), m.Trace)
	}
	return with
}

// recovered logs that the tracer panicked, which is the user's fault.
func (r *reporter) recovered(a *attempt, kind EventKind) {
	if v := recover(); v != nil {
		r.log.panicked(r.values, r.tracer, Event{Kind: kind, Time: a.started}, v)
	}
}
