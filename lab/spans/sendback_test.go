package spans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
	"github.com/redrive-go/redrive/tracing"
)

var _ job.Tracer = (*tracing.Tracer)(nil)

// shop is a worker of orders, a store of its dead letters, and jobs.
type shop struct {
	*testing.T
	broker   *memory.Broker
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	letters  *store.Store
	log      lines
	refuse   error // what the broker says to a send-back, once
	mended   bool
}

func inShop(t *testing.T, play func(s *shop)) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{T: t, spans: tracetest.NewInMemoryExporter()}
		s.broker = memory.New(memory.Options{Fault: func(op memory.Op) (f memory.Fault) {
			if op.Operation == memory.SendBack {
				f.Err, s.refuse = s.refuse, nil
			}
			return f
		}})
		s.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
		letters, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "letters.db"))
		s.must(err)
		s.letters = letters
		play(s)
		s.must(errors.Join(letters.Close(), s.broker.Close(context.WithoutCancel(t.Context()))))
	})
}

func (s *shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// publish publishes orders, in a span each unless traceparent says another one.
func (s *shop) publish(n int, traceparent string) {
	for i := range n {
		m := brokers.Message{ID: fmt.Sprint("order-", i), Body: []byte("{}")}
		parent := traceparent
		if parent == "" {
			ctx, span := s.provider.Tracer("producer").Start(s.Context(), "publish orders", trace.WithSpanKind(trace.SpanKindProducer))
			header := propagation.MapCarrier{}
			propagation.TraceContext{}.Inject(ctx, header)
			span.End()
			parent = header["traceparent"]
		}
		m.Headers = brokers.Headers{{Name: "traceparent", Value: parent}}
		s.must(s.broker.Publish(s.Context(), "orders", m))
		time.Sleep(time.Second)
	}
}

// work has a worker handle orders for a minute.
func (s *shop) work(tracer consumer.Tracer) {
	ctx, stop := context.WithTimeout(s.Context(), time.Minute)
	defer stop()
	c, err := consumer.New(s.broker, consumer.Config{DeadLetter: "*.dead", Tracer: tracer, Guard: consumer.Guard{Off: true}, Logger: slog.New(slog.DiscardHandler)})
	s.must(err)
	c.Handle("orders", func(_ context.Context, m *brokers.Message) error {
		n, _ := strconv.Atoi(strings.TrimPrefix(m.ID, "order-"))
		time.Sleep(time.Duration(n) * time.Second) // so that they die in their order
		if s.mended {
			return nil
		}
		return classify.Permanent(errors.New("no such product"))
	})
	s.must(c.Run(ctx))
}

// collect takes n dead letters into the store.
func (s *shop) collect(n int) {
	source, err := s.broker.Open(s.Context(), brokers.Subscription{Topics: []string{"orders.dead"}, InFlight: 1000, MaxAttempts: 1})
	s.must(err)
	for n > 0 {
		batch, err := source.Receive(s.Context(), n)
		s.must(err)
		for _, d := range batch {
			entry, err := dlq.Decode(d.Message)
			s.must(err)
			_, err = s.letters.Collect(s.Context(), time.Now(), []store.Collected{{Broker: "memory", Source: "orders.dead", Format: "redrive", Raw: d.Message, Entry: entry}})
			s.must(err)
			s.must(errors.Join(source.Settle(s.Context(), []brokers.Settlement{{Delivery: d, Action: brokers.Ack}})...))
			n--
		}
	}
	s.must(source.Close(s.Context()))
}

// sendBack has a job send all letters back.
func (s *shop) sendBack(tracer job.Tracer) {
	targets := job.Targets{{Broker: "memory", Topic: "orders", Dead: []string{"orders.dead"}}}
	plan, err := job.NewPlan(s.Context(), s.letters, time.Now(), targets, job.Spec{Rate: 1000, Wait: time.Second, Waves: []int{}}, store.Filter{})
	s.must(err)
	j, err := plan.Create(s.Context(), s.letters, time.Now(), store.Actor{Who: "anna", Command: "test", Reason: "the product is back"})
	s.must(err)
	runner := job.Runner{
		Store: s.letters, Targets: targets, Owner: "anna@host", Tracer: tracer,
		Logger: slog.New(tracing.LogHandler(slog.NewTextHandler(&s.log, nil))),
		Open:   func(context.Context, string) (brokers.Broker, error) { return s.broker, nil },
	}
	_, err = runner.Run(s.Context(), j.ID)
	s.must(err)
	s.mended = true
}

// TestSendBacks compares the spans of jobs that send letters back, and of the runs
// before and after, with testdata/sendbacks.txt.
func TestSendBacks(t *testing.T) {
	const forged = "00-4bf92f3577b34da6a3ce929d0e0e4736-" + outside + "-01"
	var trees strings.Builder
	for _, scene := range []struct {
		name   string
		orders int
		parent string
		worker bool // has a Tracer
		fault  error
	}{
		{"one letter", 1, "", true, nil},
		{"batch", 3, "", true, nil},
		{"worker without a Tracer", 1, "", false, nil},
		{"broker down", 1, "", true, errors.New("connection reset")},
		{"forged producer", 1, forged, true, nil},
		{"malformed producer", 1, "00-forged", true, nil},
	} {
		t.Run(scene.name, func(t *testing.T) {
			inShop(t, func(s *shop) {
				tracer := tracing.New(s.provider)
				var ofWorker consumer.Tracer
				if scene.worker {
					ofWorker = tracer
				}
				s.publish(scene.orders, scene.parent)
				s.work(ofWorker)
				s.collect(scene.orders)
				s.refuse = scene.fault
				s.sendBack(tracer)
				s.work(ofWorker)
				fmt.Fprintf(&trees, "== %s\n%s\n", scene.name, treeOf(t, s.spans.GetSpans()))
			})
		})
	}
	goldentest.File(t, "testdata/sendbacks.txt", trees.String())
}

// TestLogOfSendBacks has the broker refuse a letter. The line about it has the
// IDs of the span; without a Tracer, the trace in which the letter died.
func TestLogOfSendBacks(t *testing.T) {
	for _, traced := range []bool{true, false} {
		inShop(t, func(s *shop) {
			var tracer job.Tracer
			if traced {
				tracer = tracing.New(s.provider)
			}
			s.publish(1, "")
			s.work(tracing.New(s.provider))
			s.collect(1)
			s.refuse = &brokers.PublishError{Failed: map[int]error{0: fmt.Errorf("%w: too large", brokers.ErrRefused)}}
			s.sendBack(tracer)
			want := ""
			for _, span := range s.spans.GetSpans() {
				of := span.SpanContext
				switch {
				case traced && span.Name == "send orders":
					want = fmt.Sprintf("trace_id=%s span_id=%s", of.TraceID(), of.SpanID())
					if len(span.Links) != 1 || valueOf(span.Attributes, "error.type") != "refused" {
						t.Errorf("the span of the send-back is %+v", span)
					}
				case !traced && span.Name == "process orders":
					want = "trace_id=" + of.TraceID().String()
				}
			}
			_, line, _ := strings.Cut(s.log.String(), "the broker refuses letters")
			line, _, _ = strings.Cut(line, "\n")
			if strings.Count(line, want) != 1 || strings.Contains(line, "span_id=") != traced {
				t.Errorf("traced: %v: the log is %s\nwant %s", traced, line, want)
			}
		})
	}
}
