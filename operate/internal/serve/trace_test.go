package serve_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// traces is a Tracer that numbers runs, and notes what each has for its links.
type traces struct {
	mu   sync.Mutex
	runs []string
}

type spanKey struct{}

// Observe implements [consumer.Observer].
func (*traces) Observe(context.Context, consumer.Event) {}

// Start implements [consumer.Tracer].
func (tr *traces) Start(ctx context.Context, run []brokers.Item) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	m := run[0]
	tr.runs = append(tr.runs, fmt.Sprintf("sent back %d times, attempt %d, producer %s, before %q",
		m.Meta.RedriveCount, m.Meta.Attempt, m.Message.Headers.Get("traceparent"), m.Meta.Trace))
	return context.WithValue(ctx, spanKey{}, traceparent(len(tr.runs)))
}

// Traceparent implements [consumer.Tracer].
func (*traces) Traceparent(ctx context.Context) string {
	trace, _ := ctx.Value(spanKey{}).(string)
	return trace
}

func traceparent(run int) string { return fmt.Sprintf("00-%032x-%016x-01", 1, run) }

// TestSentBackKeepsTrace has an order die three times. The server collects it, and a job
// sends it back. The run after that knows the run that died, and the producer, for its
// links.
func TestSentBackKeepsTrace(t *testing.T) {
	inWorld(t, func(w *world) {
		const producer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		tr := &traces{}
		worker, err := consumer.New(w.brokers["shop"], consumer.Config{DeadLetter: "*-dead", Receipts: "receipts", Tracer: tr, Logger: slog.New(slog.DiscardHandler)})
		w.must(err)
		worker.Handle("orders", consumer.JSON(func(context.Context, struct{}) error { return nil }))
		w.run()
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		w.running.Go(func() { _ = worker.Run(ctx) })
		w.must(w.brokers["shop"].Publish(ctx, "orders", brokers.Message{ID: "order-1", Body: []byte("no JSON"), Headers: brokers.Headers{{Name: "traceparent", Value: producer}}}))
		for range 2 {
			w.pass(2 * time.Minute)
			plan, err := job.NewPlan(ctx, w.store, time.Now(), serve.Targets(w.server.Config), job.Spec{}, store.Filter{})
			w.must(err)
			_, err = plan.Create(ctx, w.store, time.Now(), store.Actor{Who: "anna"})
			w.must(err)
		}
		w.pass(2 * time.Minute)
		cancel()

		tr.mu.Lock()
		defer tr.mu.Unlock()
		if len(tr.runs) != 3 {
			t.Errorf("%d runs, want 3", len(tr.runs))
		}
		before := ""
		for i, got := range tr.runs {
			want := fmt.Sprintf("sent back %d times, attempt 1, producer %s, before %q", i, producer, before)
			if got != want {
				t.Errorf("run %d: %s\nwant %s", i+1, got, want)
			}
			before = traceparent(i + 1)
		}
	})
}
