package service

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// Tracer makes a span of each call. That of module tracing does:
// tracing.New(provider). Its methods may be called at the same time. If one panics,
// the log says so, and nothing changes for the task.
type Tracer interface {
	// StartCall begins the span of a call, and returns the context of r with it. r has the
	// headers of the trace in which the task was created. StartCall sets those of the span
	// in their place.
	//
	// m has the number of the attempt, when an attempt failed first and last, and as Trace
	// the Traceparent of the attempt before. Its RedriveCount is 1 if the task was
	// EXHAUSTED and came back.
	StartCall(r *http.Request, m brokers.Meta) context.Context

	// Traceparent returns the W3C traceparent of the span in ctx, or "".
	Traceparent(ctx context.Context) string

	// EndCall ends the span in ctx. status is that of the response, 0 if there was none. v
	// says why the call failed and d what becomes of the task. Both are zero if the call
	// succeeded.
	EndCall(ctx context.Context, status int, v classify.Verdict, d retry.Decision)

	// NotCalled tells of a task that was put off or given up without a call. Both r and
	// m are as for StartCall. A d.Reason of "budget" means that the target has no token
	// for a retry.
	NotCalled(r *http.Request, m brokers.Meta, d retry.Decision)
}

// span is that of the call of a task, if it comes to one. A nil span is that of a
// service without a Tracer.
type span struct {
	tracer Tracer
	log    *slog.Logger
	task   Task
	ctx    context.Context // nil until the call is sent
	target string          // that has got its headers
	header http.Header     // of these, those of the trace
}

// spanKey is the key of a span in the context of its call.
type spanKey struct{}

// span returns the span of a call of t, and the context for it.
func (s *Service) span(ctx context.Context, t Task) (*span, context.Context) {
	if s.cfg.Tracer == nil {
		return nil, ctx
	}
	sp := &span{tracer: s.cfg.Tracer, log: s.cfg.Logger, task: t}
	return sp, context.WithValue(ctx, spanKey{}, sp)
}

// traced starts the span of a call where it is sent: behind the breaker, which may
// refuse it. What follows a redirect belongs to the same call; another host does not
// hear of the trace.
type traced struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	sp, _ := r.Context().Value(spanKey{}).(*span)
	if sp == nil {
		return t.RoundTripper.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	switch {
	case sp.ctx == nil:
		sp.ctx, sp.target = r.Context(), hostPort(r.URL)
		sp.safely(func() { sp.ctx = sp.tracer.StartCall(r, sp.task.meta()) })
		sp.header = http.Header{traceparent: r.Header[traceparent], tracestate: r.Header[tracestate]}
		r = r.WithContext(sp.ctx)
	case sp.target == hostPort(r.URL):
		maps.Copy(r.Header, sp.header)
	}
	return t.RoundTripper.RoundTrip(r)
}

// meta is what a task remembers of its attempts, in the words of a message.
func (t Task) meta() brokers.Meta {
	m := brokers.Meta{Attempt: t.AttemptNumber + 1, FirstFailedAt: t.FirstFailedAt, IdempotencyKey: t.IdempotencyKey, Trace: t.LastSpan}
	if !t.FirstFailedAt.IsZero() {
		m.LastFailedAt = t.UpdatedAt
	}
	if !t.BudgetSince.Equal(t.CreatedAt) {
		m.RedriveCount = 1
	}
	return m
}

// logged returns the context for a line of the log about t: that of the span, which a
// handler of the Logger may ask for its ID. Without a span, more has the ID of the
// trace in which t was created.
func (sp *span) logged(t Task) (ctx context.Context, more []any) {
	if sp != nil && sp.ctx != nil {
		return sp.ctx, nil
	}
	if parent := t.Traceparent(); parent != "" {
		more = []any{"trace_id", parent[3:35]}
	}
	return context.Background(), more
}

// traceparent returns that of the call, or of the one before if there was none.
func (sp *span) traceparent() (parent string) {
	if sp.ctx == nil {
		return sp.task.LastSpan
	}
	sp.safely(func() { parent = sp.tracer.Traceparent(sp.ctx) })
	return cmp.Or(parent, sp.task.LastSpan)
}

// released ends the span of a call that ended with the service.
func (sp *span) released() {
	if sp != nil && sp.ctx != nil {
		const shutdown = classify.ClassShutdown
		sp.safely(func() {
			sp.tracer.EndCall(sp.ctx, 0, classify.Verdict{Class: shutdown}, retry.Decision{Reason: string(shutdown)})
		})
	}
}

// decided ends the span: r is what came of the task by the policy p, and o what
// becomes of it.
func (sp *span) decided(p Policy, r result, o Outcome) {
	if sp == nil {
		return
	}
	v, d := verdictOf(p, r, o)
	sp.safely(func() {
		if sp.ctx != nil {
			sp.tracer.EndCall(sp.ctx, r.status, v, d)
			return
		}
		req, err := newRequest(context.Background(), sp.task, nil)
		if err == nil {
			sp.tracer.NotCalled(req, sp.task.meta(), d)
		}
	})
}

// verdictOf returns why a task failed, and what becomes of it; zero if it succeeded.
func verdictOf(p Policy, r result, o Outcome) (v classify.Verdict, d retry.Decision) {
	if r.err == nil {
		return v, d
	}
	v = p.verdict(r)
	d = retry.Decision{Reason: v.Class, Counted: o.Attempt != nil}
	if o.Task.Status == Exhausted {
		d.DeadLetter = true
		d.Reason, _, _ = strings.Cut(o.Task.LastError, separatesDetail)
		return v, d
	}
	d.Retry = true
	d.Delay = o.Task.NextAttemptAt.Sub(o.Task.UpdatedAt).Truncate(time.Millisecond)
	if put, ok := r.err.(*deferral); ok {
		d.Reason = put.word()
	}
	return v, d
}

// word is the reason of a deferral as a word.
func (d *deferral) word() string {
	switch d.reason {
	case reasonTokens:
		return "budget"
	case reasonDown:
		return "breaker"
	case reasonBusy:
		return "busy"
	case reasonNoWorker:
		return "no-worker"
	case reasonBody, reasonNoBodies:
		return "body"
	}
	return "other"
}

// safely calls the Tracer, which may panic.
func (sp *span) safely(f func()) {
	defer func() {
		if v := recover(); v != nil {
			sp.log.Error("retry service: Config.Tracer panicked: the task goes on without a span", "task", sp.task.ID, "error", fmt.Sprint("panic: ", v))
		}
	}()
	f()
}
