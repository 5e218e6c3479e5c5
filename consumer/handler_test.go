package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// day is longer than any retry of the tests takes.
const day = 24 * time.Hour

// work runs h on the messages of topic "orders" until nothing is left to do,
// and checks that every message has an end.
func work(t *testing.T, broker *memory.Broker, cfg consumer.Config, h consumer.Handler, settings ...consumer.TopicConfig) {
	t.Helper()
	w := start(t, broker, cfg, orders(h, settings...))
	w.stopAfter(2 * day)
	if n := broker.Len("orders"); n != 0 {
		t.Errorf("%d messages left in the topic, want all handled or dead", n)
	}
}

func TestPanics(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name  string
		panic func()
		text  string
	}{
		{"nil", func() { panic(nil) }, "panic called with nil argument"},
		{"error", func() { panic(broken) }, "broken"},
		{"string", func() { panic("out of cheese") }, "out of cheese"},
		{"runtime error", func() { _ = []int{}[len("x")] }, "index out of range"},
		{"abort", func() { panic(http.ErrAbortHandler) }, "abort Handler"},
	} {
		for _, stacks := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s/stacks=%t", tt.name, stacks), func(t *testing.T) {
				broker := brokerWith("orders", "one")
				cfg := quiet()
				cfg.Stacks, cfg.Concurrency = stacks, 1
				seen := record(&cfg)
				runs := 0
				work(t, broker, cfg, func(context.Context, *brokers.Message) error {
					runs++
					tt.panic()
					return nil
				})
				got := oneDeadLetter(t, broker, "orders")
				if runs != 6 || got.Reason != "panic" || !strings.Contains(got.ErrorText, tt.text) {
					t.Errorf("%d runs, reason %q, text %q; want 6, panic, %q", runs, got.Reason, got.ErrorText, tt.text)
				}
				if has := strings.Contains(got.Stack, "handler_test.go"); has != stacks {
					t.Errorf("stack with the handler's line: %t, want %t:\n%s", has, stacks, got.Stack)
				}
				for _, e := range seen.of(consumer.EventFailed) {
					p, ok := errors.AsType[*classify.PanicError](e.Err)
					if !ok || !bytes.Contains(p.Stack, []byte("handler_test.go")) {
						t.Errorf("event with %T, want a *PanicError with the stack", e.Err)
					}
				}
			})
		}
	}
}

// Goexit ends the goroutine that the handler runs on, but not the slot, and
// not the message either.
func TestGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 15 // fewer than open a breaker
		broker := memory.New(memory.Options{})
		for range n {
			publish(t, broker, "orders", "one")
		}
		cfg := quiet()
		cfg.Concurrency = 1
		cfg.Retry.MaxAttempts = 2
		seen := record(&cfg)
		runs := map[string]int{}
		work(t, broker, cfg, func(_ context.Context, m *brokers.Message) error {
			runs[m.ID]++
			if runs[m.ID] == 1 {
				runtime.Goexit()
			}
			return nil
		})
		for id, count := range runs {
			if count != 2 {
				t.Errorf("%s ran %d times, want 2", id, count)
			}
		}
		if len(runs) != n || broker.Len("orders.dead") != 0 {
			t.Errorf("%d messages handled and %d dead, want %d and 0", len(runs), broker.Len("orders.dead"), n)
		}
		failed := seen.of(consumer.EventFailed)
		if len(failed) != n {
			t.Errorf("%d failures, want %d", len(failed), n)
		}
		for _, e := range failed {
			if e.Verdict.Class != classify.ClassUnknown || !e.Decision.Counted || !strings.Contains(e.Err.Error(), "runtime.Goexit") {
				t.Fatalf("%+v %+v %v; want a counted failure of class unknown that names Goexit", e.Verdict, e.Decision, e.Err)
			}
		}
	})
}

// standsStill is an observer that keeps a run from its handler, as a machine does
// that has no processor for it.
type standsStill chan struct{}

func (s standsStill) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventStarted {
		<-s
	}
}

// No handler starts with a message that a stopping worker has given back.
func TestNothingStartsAfterItWasGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg, stand := quiet(), make(standsStill)
		cfg.Observers = []consumer.Observer{stand}
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		synctest.Wait()
		if err := w.shutdown(); !errors.Is(err, consumer.ErrUnclean) {
			t.Errorf("Run = %v, want ErrUnclean", err)
		}
		close(stand)
		synctest.Wait()
		holds(t, broker, "orders", memory.Stats{Ready: 1})
		if runs.Load() != 0 {
			t.Errorf("%d runs, want none", runs.Load())
		}
	})
}

// An error that joins poison with something worth a retry is retried.
func TestJoinedErrors(t *testing.T) {
	undecodable := classify.Undecodable(errors.New("no such field"))
	refused := &classify.HTTPError{Method: "POST", URL: "http://payments/", Status: 422}
	down := &classify.HTTPError{Method: "POST", URL: "http://payments/", Status: 503}
	busy := classify.Transient(errors.New("busy"))
	never := classify.Permanent(errors.New("never"))
	for _, tt := range []struct {
		name string
		err  error
		runs int
	}{
		{"statuses", errors.Join(refused, down), 4},
		{"statuses wrapped", fmt.Errorf("charge: %w, then %w", refused, down), 4},
		{"all poison", errors.Join(refused, refused), 1},
		{"undecodable and transient", errors.Join(undecodable, busy), 4},
		{"marks", errors.Join(never, busy), 4},
		{"mark and status", errors.Join(never, down), 1},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			cfg := quiet()
			cfg.Retry.MaxAttempts = 4
			runs := 0
			work(t, broker, cfg, func(context.Context, *brokers.Message) error {
				runs++
				return tt.err
			})
			oneDeadLetter(t, broker, "orders")
			if runs != tt.runs {
				t.Errorf("%d runs, want %d", runs, tt.runs)
			}
		})
	}
}

func TestMiddlewareOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		named := func(name string) func(consumer.Handler) consumer.Handler {
			return func(next consumer.Handler) consumer.Handler {
				return func(ctx context.Context, m *brokers.Message) error {
					calls = append(calls, name)
					err := next(ctx, m)
					calls = append(calls, "/"+name)
					return err
				}
			}
		}
		broker := brokerWith("orders", "one")
		cfg := quiet()
		cfg.Middleware = []func(consumer.Handler) consumer.Handler{named("a"), named("b")}
		cfg.Retry = retry.Policy{MaxAttempts: 2}
		work(t, broker, cfg, func(context.Context, *brokers.Message) error {
			calls = append(calls, "handler")
			if len(calls) > 9 {
				return nil
			}
			return classify.Transient(errors.New("once more"))
		}, consumer.TopicConfig{Middleware: []func(consumer.Handler) consumer.Handler{named("c"), named("d")}})
		want := []string{"a", "b", "c", "d", "handler", "/d", "/c", "/b", "/a"}
		want = append(want, want...) // it sees every run
		if !slices.Equal(calls, want) {
			t.Errorf("calls %v, want %v", calls, want)
		}
	})
}

// Middleware may keep a run from the handler, turn its result, and panic.
func TestMiddlewareDecidesWhatTheRunReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "skip", "poison", "panic")
		handled := 0
		cfg := quiet()
		cfg.Middleware = []func(consumer.Handler) consumer.Handler{func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, m *brokers.Message) error {
				switch string(m.Body) {
				case "skip":
					return classify.Skip(errors.New("done before"))
				case "poison":
					return classify.Permanent(next(ctx, m))
				}
				panic("middleware")
			}
		}}
		work(t, broker, cfg, func(context.Context, *brokers.Message) error { handled++; return errors.New("odd") })
		reasons := map[string]string{}
		for _, entry := range deadLetters(t, broker, "orders") {
			reasons[string(entry.Message.Body)] = entry.Reason
		}
		want := map[string]string{"poison": "poison", "panic": "panic"}
		if handled != 1 || !reflect.DeepEqual(reasons, want) {
			t.Errorf("handled %d times, dead letters %v; want 1 and %v", handled, reasons, want)
		}
	})
}
