package tracing_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
	"github.com/redrive-go/redrive/settings"
	"github.com/redrive-go/redrive/tracing"
)

// stage is where a scene is played: a broker, a topic of its own, a producer and a
// worker whose spans are kept.
type stage struct {
	*testing.T
	broker   brokers.Broker
	topic    string // "orders", or that on a real broker
	provider *sdktrace.TracerProvider
	spans    *exporter
	options  []tracing.Option
	cfg      consumer.Config

	mu      sync.Mutex
	ended   int // deliveries that a worker was rid of for good
	changed chan struct{}
}

func newStage(t *testing.T, broker brokers.Broker, topic string, options ...sdktrace.TracerProviderOption) *stage {
	s := &stage{T: t, broker: broker, topic: topic, spans: &exporter{InMemoryExporter: tracetest.NewInMemoryExporter()}, changed: make(chan struct{}, 100)}
	s.provider = sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(s.spans))...)
	s.cfg = consumer.Config{
		DeadLetter: "*-dead",
		Retry:      every(time.Second, 3),
		Guard:      consumer.Guard{Off: true},
		Group:      "workers-of-" + topic,
		Logger:     slog.New(slog.DiscardHandler),
		Observers:  []consumer.Observer{s},
		Random:     func() float64 { return 0.5 },
	}
	source, err := broker.Open(t.Context(), brokers.Subscription{ // creates the queues
		Topics: []string{topic}, DeadLetters: map[string]string{topic: topic + "-dead"}, Group: s.cfg.Group,
		InFlight: 1, MaxDelay: time.Minute, MaxAge: time.Hour, MaxAttempts: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// exporter keeps spans, but for those of a worker that was killed.
type exporter struct {
	*tracetest.InMemoryExporter
	killed atomic.Bool
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if e.killed.Load() {
		return nil
	}
	return e.InMemoryExporter.ExportSpans(ctx, spans)
}

// every is a policy that waits for exactly delay after each failure.
func every(delay time.Duration, attempts int) retry.Policy {
	return retry.Policy{MaxAttempts: attempts, Backoff: retry.Backoff{
		Base: delay, Cap: max(delay, 15*time.Minute), Multiplier: 1, Jitter: retry.NoJitter}}
}

// Observe counts the messages that are gone.
func (s *stage) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventSettled && e.Action == brokers.Ack {
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		s.changed <- struct{}{}
	}
}

// publish publishes messages, each in a span of its producer.
func (s *stage) publish(bodies ...string) {
	s.Helper()
	for _, body := range bodies {
		ctx, span := s.provider.Tracer("producer").Start(s.Context(), "publish "+s.topic, trace.WithSpanKind(trace.SpanKindProducer))
		headers := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, headers)
		span.End()
		s.send(brokers.Message{Body: []byte(body), Headers: brokers.Headers{{Name: "traceparent", Value: headers["traceparent"]}}})
	}
}

func (s *stage) send(m brokers.Message) {
	s.Helper()
	if err := s.broker.Publish(s.Context(), s.topic, m); err != nil {
		s.Fatal(err)
	}
}

// work has a worker handle until n more messages are gone.
func (s *stage) work(n int, handle func(c *consumer.Consumer)) {
	s.Helper()
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	until := s.count() + n
	worker := s.start(ctx, handle)
	for s.count() < until {
		select {
		case <-s.changed:
		case err := <-worker:
			s.Fatalf("the worker ended before: %v", err)
		case <-time.After(10 * time.Minute):
			s.Fatalf("%d messages are gone, want %d", s.count(), until)
		}
	}
	stop()
	if err := <-worker; err != nil {
		s.Fatal(err)
	}
}

func (s *stage) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stage) start(ctx context.Context, handle func(c *consumer.Consumer)) <-chan error {
	s.Helper()
	cfg := s.cfg
	cfg.Tracer = tracing.New(s.provider, s.options...)
	c, err := consumer.New(s.broker, cfg)
	if err != nil {
		s.Fatal(err)
	}
	handle(c)
	worker := make(chan error, 1)
	go func() { worker <- c.Run(ctx) }()
	return worker
}

// orders registers a handler that fails with these errors, one after the other.
func (s *stage) orders(errs ...error) func(*consumer.Consumer) {
	runs := 0
	return func(c *consumer.Consumer) {
		c.Handle(s.topic, func(context.Context, *brokers.Message) error {
			runs++
			if runs > len(errs) {
				return nil
			}
			return errs[runs-1]
		})
	}
}

// sendBack sends the only dead letter back.
func (s *stage) sendBack() {
	s.Helper()
	source, err := s.broker.Open(s.Context(), brokers.Subscription{Topics: []string{s.topic + "-dead"}, Group: "operators-of-" + s.topic, InFlight: 1})
	if err != nil {
		s.Fatal(err)
	}
	defer source.Close(s.Context())
	ds, err := source.Receive(s.Context(), 1)
	if err != nil {
		s.Fatal(err)
	}
	letter, err := dlq.Decode(ds[0].Message)
	if err != nil {
		s.Fatal(err)
	}
	letter.Message.Topic = s.topic
	if err := s.broker.SendBack(s.Context(), letter.Group, s.topic, brokers.Item{Message: &letter.Message, Meta: letter.Meta}); err != nil {
		s.Fatal(err)
	}
	if errs := source.Settle(s.Context(), []brokers.Settlement{{Delivery: ds[0], Action: brokers.Ack}}); errs != nil {
		s.Fatal(errs)
	}
}

var errBusy = classify.Transient(errors.New("the bank is busy"))

type scene struct {
	name string
	play func(s *stage)
}

// scenes are what happens to messages, on whichever broker.
var scenes = []scene{
	{"success", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders())
	}},
	{"no producer", func(s *stage) {
		s.send(brokers.Message{Body: []byte("one")})
		s.work(1, s.orders(errBusy, errBusy))
	}},
	{"quick retry", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders(errBusy, errBusy))
	}},
	{"waiting retry", func(s *stage) {
		s.cfg.Retry = every(4*time.Second, 3)
		s.publish("one")
		s.work(1, s.orders(errBusy, errBusy))
	}},
	{"waiting retry in a new trace", func(s *stage) {
		s.options = append(s.options, tracing.NewTraceAfter(3*time.Second))
		s.publish("one")
		s.work(1, s.orders(classify.RetryAfter(errBusy, 4*time.Second), errBusy))
	}},
	{"batch with one failure", func(s *stage) {
		s.publish("one", "two", "three")
		s.work(3, s.batches(2, func(body string, run int) error {
			if body == "two" && run == 1 {
				return errBusy
			}
			return nil
		}))
	}},
	{"batch that fails as a whole", func(s *stage) {
		s.publish("one", "two")
		s.work(2, s.batches(1, func(_ string, run int) error {
			if run == 1 {
				return errBusy
			}
			return nil
		}))
	}},
	{"pause", func(s *stage) {
		limiter := flow.New(1, s.cfg.Random)
		s.cfg.Guard = consumer.Guard{Limiter: limiter}
		s.publish("one")
		failed := false
		s.work(1, func(c *consumer.Consumer) {
			c.Handle(s.topic, func(context.Context, *brokers.Message) error {
				if failed {
					return nil
				}
				failed = true
				limiter.Adjust(time.Now(), flow.Change{Pause: "the bank moves"})
				time.AfterFunc(8*time.Second, func() { limiter.Adjust(time.Now(), flow.Change{Resume: true}) })
				return errBusy
			})
		})
	}},
	{"put off", func(s *stage) {
		s.publish("one")
		s.work(1, func(c *consumer.Consumer) {
			c.HandleWith(s.topic, func(context.Context, *brokers.Message) error { return nil }, consumer.TopicConfig{StartAfter: 6 * time.Second})
		})
	}},
	{"no token", func(s *stage) {
		s.cfg.Guard = consumer.Guard{Off: true, Budget: &miser{}}
		s.publish("one")
		s.work(1, s.orders(errBusy))
	}},
	{"skip", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders(classify.Skip(errors.New("the customer is gone"))))
	}},
	{"dead letter", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders(errBusy, errBusy, errBusy))
	}},
	{"poison", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders(classify.Permanent(errors.New("no such article"))))
	}},
	{"send-back", func(s *stage) {
		s.publish("one")
		s.work(1, s.orders(errBusy, errBusy, errBusy))
		s.sendBack()
		s.work(1, s.orders(errBusy))
	}},
}

// deaths are what happens to workers, which the memory broker can do.
var deaths = []scene{
	{"shutdown", func(s *stage) {
		s.publish("one")
		ctx, stop := context.WithCancel(s.Context())
		s.cfg.DrainTimeout = settings.None
		worker := s.start(ctx, func(c *consumer.Consumer) {
			c.Handle(s.topic, func(ctx context.Context, _ *brokers.Message) error {
				stop()
				<-ctx.Done()
				return ctx.Err()
			})
		})
		if err := <-worker; err != nil {
			s.Fatal(err)
		}
		s.work(1, s.orders())
	}},
	{"handler that ignores the shutdown", func(s *stage) {
		s.publish("one")
		ctx, stop := context.WithCancel(s.Context())
		s.cfg.DrainTimeout = settings.None
		wake := make(chan struct{})
		worker := s.start(ctx, func(c *consumer.Consumer) {
			c.Handle(s.topic, func(context.Context, *brokers.Message) error {
				stop()
				<-wake
				return nil
			})
		})
		if err := <-worker; !errors.Is(err, consumer.ErrUnclean) {
			s.Fatal(err)
		}
		close(wake)
		synctest.Wait()
		s.work(1, s.orders())
	}},
	{"lost lease", func(s *stage) {
		s.broker = memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Extend && op.Nth == 1 {
				return memory.Fault{Err: brokers.ErrLeaseLost}
			}
			return memory.Fault{}
		}})
		s.publish("one")
		lost := false
		s.work(1, func(c *consumer.Consumer) {
			c.Handle(s.topic, func(ctx context.Context, _ *brokers.Message) error {
				if !lost {
					lost = true
					<-ctx.Done()
				}
				return ctx.Err()
			})
		})
	}},
	{"crash loop", func(s *stage) {
		s.publish("one")
		mortal := &mortal{Broker: s.broker.(*memory.Broker)}
		s.broker = mortal
		for kills := 0; ; kills++ {
			ran := make(chan struct{}, 1)
			ctx, stop := context.WithCancel(s.Context())
			worker := s.start(ctx, func(c *consumer.Consumer) {
				c.Handle(s.topic, func(ctx context.Context, _ *brokers.Message) error {
					ran <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
			})
			dead := false
			select {
			case <-ran:
			case <-s.changed:
				dead = true
			}
			synctest.Wait()
			s.spans.killed.Store(!dead)
			if !dead {
				mortal.Crash(mortal.source)
			}
			stop()
			<-worker
			s.spans.killed.Store(false)
			if dead {
				if kills != 5 {
					s.Errorf("the message is dead after %d kills, want 5", kills)
				}
				return
			}
		}
	}},
}

// mortal is a broker whose source can be crashed, or robbed.
type mortal struct {
	*memory.Broker
	source brokers.Source
}

func (b *mortal) Open(ctx context.Context, sub brokers.Subscription) (_ brokers.Source, err error) {
	b.source, err = b.Broker.Open(ctx, sub)
	return b.source, err
}

// miser has no token for whoever asks first.
type miser struct {
	asked atomic.Bool
	budget.Pacer
}

func (b *miser) Withdraw(time.Time, time.Duration, float64) (wait time.Duration, ok bool) {
	return time.Second, b.asked.Swap(true)
}

func (b *miser) Deposit(time.Time, int)             {}
func (b *miser) Refund(time.Time)                   {}
func (b *miser) Snapshot(time.Time) budget.Snapshot { return budget.Snapshot{} }

// batches registers a handler of batches of three. When all messages have come it
// judges each by its body and by how often it ran.
func (s *stage) batches(least int, judge func(body string, run int) error) func(*consumer.Consumer) {
	var mu sync.Mutex
	runs := map[string]int{}
	return func(c *consumer.Consumer) {
		c.HandleBatch(s.topic, func(_ context.Context, batch []brokers.Item) []error {
			mu.Lock()
			defer mu.Unlock()
			results := make([]error, len(batch))
			for i, item := range batch {
				body := string(item.Message.Body)
				runs[body]++
				results[i] = judge(body, runs[body])
			}
			return results
		}, consumer.TopicConfig{BatchSize: 3, BatchWait: 3 * time.Second})
	}
}

// TestTrees compares the spans of each scene with testdata/trees.txt. They are the
// same on all brokers.
func TestTrees(t *testing.T) {
	for name, open := range map[string]func() brokers.Broker{
		"memory": onMemory,
		"sqs":    func() brokers.Broker { return onSQS(sqs.Options{}) },
		"copies": func() brokers.Broker { return onSQS(sqs.Options{Copies: true}) },
	} {
		t.Run(name, func(t *testing.T) { compare(t, "testdata/trees.txt", scenes, open) })
	}
}

// TestTreesOfDeaths is TestTrees for workers that die, or have to stop.
func TestTreesOfDeaths(t *testing.T) { compare(t, "testdata/deaths.txt", deaths, onMemory) }

// compare plays scenes in virtual time, and compares their trees with a file.
func compare(t *testing.T, file string, scenes []scene, open func() brokers.Broker) {
	var trees strings.Builder
	for _, scene := range scenes {
		synctest.Test(t, func(t *testing.T) {
			broker := open()
			defer broker.Close(t.Context())
			s := newStage(t, broker, "orders")
			scene.play(s)
			fmt.Fprintf(&trees, "== %s\n%s\n", scene.name, s.tree())
		})
	}
	goldentest.File(t, file, trees.String())
}

func onMemory() brokers.Broker { return memory.New(memory.Options{}) }

func onSQS(options sqs.Options) brokers.Broker {
	server := sqstest.New(sqstest.Options{})
	options.Config, options.Create = server.Config(), true
	broker, err := sqs.New(options)
	if err != nil {
		panic(err)
	}
	return broker
}

// tree is the spans as text, and checks that parents and links lead to spans.
func (s *stage) tree() string {
	s.Helper()
	return treeOf(s.T, s.spans.GetSpans(), s.topic)
}

func treeOf(t *testing.T, spans tracetest.SpanStubs, topic string) string {
	t.Helper()
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	numbers, children := map[trace.SpanID]int{}, map[trace.SpanID][]tracetest.SpanStub{}
	known := map[trace.SpanID]bool{}
	for _, span := range spans {
		known[span.SpanContext.SpanID()] = true
	}
	var order []tracetest.SpanStub
	depth := map[trace.SpanID]int{}
	for _, span := range spans {
		parent := span.Parent.SpanID()
		if parent.IsValid() && !known[parent] {
			t.Errorf("the parent of %q is no span of this run", span.Name)
		}
		children[parent] = append(children[parent], span)
	}
	var walk func(parent trace.SpanID, level int)
	walk = func(parent trace.SpanID, level int) {
		for _, span := range children[parent] {
			id := span.SpanContext.SpanID()
			order = append(order, span)
			numbers[id], depth[id] = len(order), level
			walk(id, level+1)
		}
	}
	walk(trace.SpanID{}, 0)
	var b strings.Builder
	for i, span := range order {
		fmt.Fprintf(&b, "%s%d %s", strings.Repeat("  ", depth[span.SpanContext.SpanID()]), i+1, strings.ReplaceAll(span.Name, topic, "orders"))
		attributes := map[string]string{}
		for _, a := range span.Attributes {
			if told(a.Key) {
				attributes[string(a.Key)] = a.Value.String()
			}
		}
		if attributes["redrive.reason"] == "start-after" {
			delete(attributes, "retry.delay_ms") // since the message was published
		}
		for _, key := range slices.Sorted(maps.Keys(attributes)) {
			fmt.Fprintf(&b, " %s=%s", key, attributes[key])
		}
		if span.Status.Code != codes.Unset {
			fmt.Fprintf(&b, " [%s: %s]", span.Status.Code, span.Status.Description)
		}
		for _, link := range span.Links {
			if numbers[link.SpanContext.SpanID()] == 0 {
				t.Errorf("a link of %q leads to no span of this run", span.Name)
			}
			what := ""
			for _, a := range link.Attributes {
				if a.Key == "redrive.link" {
					what = a.Value.AsString()
				}
			}
			fmt.Fprintf(&b, " %s->%d", cmp.Or(what, "?"), numbers[link.SpanContext.SpanID()])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// told reports whether an attribute is in the text of a tree: those that are alike
// on all brokers and in each run.
func told(key attribute.Key) bool {
	return strings.HasPrefix(string(key), "retry.") || strings.HasPrefix(string(key), "redrive.") && key != "redrive.fingerprint" ||
		key == "error.type" || key == "messaging.batch.message_count"
}
