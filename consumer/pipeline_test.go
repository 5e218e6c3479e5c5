package consumer_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// quiet is the default Config, but that it logs nowhere. Dead letters go to
// topic + ".dead".
func quiet() consumer.Config {
	return consumer.Config{
		DeadLetter: "*.dead",
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Guard:      consumer.Guard{Off: true}, // every failure counts, with no other message beside it
	}
}

// worker is a Consumer that runs in the bubble of a test.
type worker struct {
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// start runs a Consumer with the handlers that register adds.
func start(t *testing.T, broker brokers.Broker, cfg consumer.Config, register func(*consumer.Consumer)) *worker {
	t.Helper()
	if len(cfg.Observers) > 0 { // observing costs what a worker without it does not pay
		cfg.Observers = append(slices.Clip(cfg.Observers), observing(func(e consumer.Event) { checkFields(t, e) }))
	}
	c := must(consumer.New(broker, cfg))
	register(c)
	ctx, stop := context.WithCancel(t.Context())
	w := &worker{t: t, stop: stop, done: make(chan error, 1)}
	go func() { w.done <- c.Run(ctx) }()
	return w
}

// orders registers the handler of topic "orders".
func orders(h consumer.Handler, settings ...consumer.TopicConfig) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) { c.HandleWith("orders", h, append(settings, consumer.TopicConfig{})[0]) }
}

// bubble is a subtest in virtual time.
func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// shutdown stops the worker and returns the error of Run.
func (w *worker) shutdown() error {
	w.t.Helper()
	w.stop()
	return <-w.done
}

func (w *worker) mustShutdown() {
	w.t.Helper()
	if err := w.shutdown(); err != nil {
		w.t.Errorf("Run = %v, want nil after a clean drain", err)
	}
}

// stopAfter stops the worker when d has passed, and all that is due is done.
func (w *worker) stopAfter(d time.Duration) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.mustShutdown()
}

// sleep lets time pass, which is that of the bubble.
func sleep(d time.Duration) { time.Sleep(d) }

// send publishes messages.
func send(t *testing.T, broker brokers.Broker, topic string, messages ...brokers.Message) {
	t.Helper()
	if err := broker.Publish(t.Context(), topic, messages...); err != nil {
		t.Fatal(err)
	}
}

// publish publishes a message with nothing but a body for each of bodies.
func publish(t *testing.T, broker brokers.Broker, topic string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		send(t, broker, topic, brokers.Message{Body: []byte(body)})
	}
}

// recorder is an Observer that keeps what it sees, of some kinds if there are any.
type recorder struct {
	only []string
	born time.Time

	mu     sync.Mutex
	events []consumer.Event
}

// record adds a recorder of the kinds given, or of all, to a Config.
func record(cfg *consumer.Config, kinds ...string) *recorder {
	r := &recorder{only: kinds, born: time.Now()}
	cfg.Observers = append(cfg.Observers, r)
	return r
}

func (r *recorder) Observe(_ context.Context, e consumer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.only) == 0 || slices.Contains(r.only, kindOf(e)) {
		r.events = append(r.events, e)
	}
}

// observing is an Observer that is a function.
type observing func(consumer.Event)

func (o observing) Observe(_ context.Context, e consumer.Event) { o(e) }

func (r *recorder) kinds() (kinds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		kinds = append(kinds, kindOf(e))
	}
	return kinds
}

func (r *recorder) of(kind string) (events []consumer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if kindOf(e) == kind {
			events = append(events, e)
		}
	}
	return events
}

func TestHandledMessageIsAcked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one", "two")
		var got []string
		cfg := quiet()
		cfg.Concurrency = 1
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			got = append(got, string(m.Body))
			return nil
		}))
		w.stopAfter(0)
		if len(got) != 2 || broker.Len("orders") != 0 {
			t.Errorf("handled %q, %d left; want both handled and none left", got, broker.Len("orders"))
		}
	})
}

func TestFailureIsRetriedNeverEarly(t *testing.T) {
	for _, hold := range []time.Duration{-1, 0} {
		synctest.Test(t, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			cfg := quiet()
			cfg.HoldLimit = hold
			cfg.Retry = retry.Policy{MaxAttempts: 4, Backoff: retry.Backoff{Base: time.Second, Jitter: retry.NoJitter}}
			var starts []time.Duration
			began := time.Now()
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if got := consumer.MetaFrom(ctx).Attempt; got != len(starts)+1 {
					t.Errorf("attempt %d, want %d", got, len(starts)+1)
				}
				starts = append(starts, time.Since(began))
				return classify.Transient(errors.New("busy"))
			}))
			w.stopAfter(time.Minute)
			want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}
			if len(starts) != len(want) {
				t.Fatalf("hold %v: runs at %v, want %v", hold, starts, want)
			}
			for i := range want {
				if starts[i] != want[i] {
					t.Errorf("hold %v: runs at %v, want %v", hold, starts, want)
				}
			}
			dead := broker.Messages("orders.dead")
			if len(dead) != 1 || broker.Len("orders") != 0 {
				t.Fatalf("%d dead letters and %d left, want 1 and 0", len(dead), broker.Len("orders"))
			}
		})
	}
}
