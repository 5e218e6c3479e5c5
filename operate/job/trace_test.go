package job_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	collecting "github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

const producer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// traces is a Tracer that numbers the runs of orders, and notes what each links to.
type traces struct {
	mu   sync.Mutex
	runs []string
}

type spanKey struct{}

func (*traces) Observe(context.Context, consumer.Event) {}

func (tr *traces) Start(ctx context.Context, run []consumer.Item) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	m := run[0]
	tr.runs = append(tr.runs, fmt.Sprintf("%d: sent back %d times, attempt %d, producer %.36s, before %s",
		len(tr.runs)+1, m.Meta.RedriveCount, m.Meta.Attempt, m.Message.Headers.Get("traceparent"), m.Meta.Trace))
	return context.WithValue(ctx, spanKey{}, fmt.Sprintf("00-%032x-%016x-01", 10, len(tr.runs)))
}

func (*traces) Traceparent(ctx context.Context) string {
	trace, _ := ctx.Value(spanKey{}).(string)
	return trace
}

// TestSentBackKeepsTrace has an order die twice. Each time it is collected, and
// a job sends it back. Its first run then knows the run that died, for the link.
func TestSentBackKeepsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		broker, tr := memory.New(memory.Options{}), &traces{}
		s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
		must(err)
		c, err := consumer.New(broker, consumer.Config{DeadLetter: "*.dead", Receipts: "receipts", Tracer: tr, Logger: slog.New(slog.DiscardHandler)})
		must(err)
		c.Handle("orders", func(context.Context, *brokers.Message) error { return errPoison })
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer func() {
			stop()
			work.Wait()
			must(broker.Close(context.WithoutCancel(ctx)))
			must(s.Close())
		}()
		synctest.Wait()

		must(broker.Publish(ctx, "orders", brokers.Message{ID: "order-1", Headers: brokers.Headers{{Name: "traceparent", Value: producer}}}))
		runner := &job.Runner{Store: s, Targets: targets, Owner: "anna@host", Logger: slog.New(slog.DiscardHandler),
			Open: func(context.Context, string) (brokers.Broker, error) { return broker, nil }}
		for range 2 {
			source, err := broker.Open(ctx, collecting.Subscription(collecting.Group, "orders.dead"))
			must(err)
			collector, err := collecting.New(collecting.Config{Store: s, Source: source, Broker: "memory", Limits: collecting.Limits{FreeDisk: 1e-9}})
			must(err)
			_, err = collector.Run(ctx)
			must(err)
			must(source.Close(ctx))
			plan, err := job.NewPlan(ctx, s, time.Now(), targets, job.Spec{}, store.Filter{})
			must(err)
			j, err := plan.Create(ctx, s, time.Now(), operator)
			must(err)
			working, leave := context.WithTimeout(ctx, 10*time.Second)
			if _, err := runner.Run(working, j.ID); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Run = %v, want the end of its context, as nobody confirms the letter", err)
			}
			leave()
		}

		tr.mu.Lock()
		defer tr.mu.Unlock()
		for i := range 3 {
			want := fmt.Sprintf("%d: sent back %d times, attempt 1, producer %.36s, before ", i+1, i, producer)
			if i > 0 {
				want += fmt.Sprintf("00-%032x-%016x-01", 10, i)
			}
			if len(tr.runs) <= i || tr.runs[i] != want {
				t.Errorf("run %d of %q\nwant %s", i+1, tr.runs, want)
			}
		}
	})
}
