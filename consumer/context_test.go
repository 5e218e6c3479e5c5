package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

type valueKey struct{}

func TestContextOfAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		c := must(consumer.New(broker, quiet()))
		ctx, stop := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "of Run"))
		c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
			deadline, ok := ctx.Deadline()
			if !ok || time.Until(deadline) != 5*time.Minute {
				t.Errorf("deadline in %v, want the default of 5m", time.Until(deadline))
			}
			if err := ctx.Err(); err != nil {
				t.Errorf("Err = %v before anybody asked for Done", err)
			}
			for range 2 { // with and without a Done channel behind it
				if got := ctx.Value(valueKey{}); got != "of Run" {
					t.Errorf("value %v, want that of Run's context", got)
				}
				if ctx.Value("nobody's") != nil || context.Cause(ctx) != nil {
					t.Errorf("value %v, cause %v; want neither", ctx.Value("nobody's"), context.Cause(ctx))
				}
				if consumer.MessageFrom(ctx) != m {
					t.Error("MessageFrom is not the handler's message")
				}
				select {
				case <-ctx.Done():
					t.Error("Done is closed")
				default:
				}
			}
			child, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if got := consumer.MetaFrom(child); got.Attempt != 1 || got.IdempotencyKey != m.ID {
				t.Errorf("MetaFrom = %+v, want attempt 1 and the message's ID as key", got)
			}
			stop() // Run's own end is no end for a handler
			if ctx.Err() != nil {
				t.Errorf("Err = %v once Run's context has ended, want nil until DrainTimeout", ctx.Err())
			}
			return nil
		})
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestContextsThatAreNoHandlers(t *testing.T) {
	ctx := t.Context()
	if m := consumer.MessageFrom(ctx); m != nil {
		t.Errorf("MessageFrom = %+v, want nil", m)
	}
	if meta := consumer.MetaFrom(ctx); meta.Attempt != 0 || meta.IdempotencyKey != "" {
		t.Errorf("MetaFrom = %+v, want the zero value", meta)
	}
}

// leaked uses what it can of a context, on a goroutine of its own that no
// handler waits for.
func leaked(ctx context.Context, stop <-chan struct{}, wg *sync.WaitGroup) {
	wg.Go(func() {
		for range 100 {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			consumer.MetaFrom(ctx)
			consumer.MessageFrom(ctx)
			ctx.Deadline()
			_ = ctx.Err()
			_ = ctx.Value(valueKey{})
		}
	})
}

// A context that a handler leaks has ended when it returned, and may be used
// all the same, while the message is held, run again, and after it is gone.
func TestContextAfterTheHandlerHasReturned(t *testing.T) {
	for _, hold := range []time.Duration{-1, time.Hour} {
		bubble(t, fmt.Sprintf("hold=%v", hold), func(t *testing.T) {
			broker := brokerWith("orders", "one", "two", "three")
			cfg := quiet()
			cfg.HoldLimit = hold
			cfg.Retry = retry.Policy{MaxAttempts: 4, Backoff: retry.Backoff{Base: time.Second, Jitter: retry.NoJitter}}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var mu sync.Mutex
			contexts := map[string][]context.Context{}
			work(t, broker, cfg, func(ctx context.Context, m *brokers.Message) error {
				if m.ID == "memory-2" {
					<-time.After(time.Second) // meanwhile others end
				}
				leaked(ctx, stop, &wg)
				mu.Lock()
				defer mu.Unlock()
				for _, old := range contexts[m.ID] {
					if !errors.Is(old.Err(), context.Canceled) {
						t.Errorf("Err = %v after the handler's return, want context.Canceled", old.Err())
					}
				}
				contexts[m.ID] = append(contexts[m.ID], ctx)
				return classify.Transient(errors.New("busy"))
			})
			close(stop)
			wg.Wait()
			for id, all := range contexts {
				for i, ctx := range all {
					select {
					case <-ctx.Done():
					default:
						t.Errorf("%s, run %d: Done is open after the end", id, i+1)
					}
					if cause := context.Cause(ctx); cause != context.Canceled {
						t.Errorf("%s, run %d: cause %v, want context.Canceled", id, i+1, cause)
					}
					if m := consumer.MessageFrom(ctx); m.ID != id || consumer.MetaFrom(ctx).IdempotencyKey != id {
						t.Errorf("%s, run %d: now %+v", id, i+1, m)
					}
				}
				if len(all) != 4 {
					t.Errorf("%s ran %d times, want 4", id, len(all))
				}
			}
		})
	}
}

// The cause of a context that ended is the reason, and decides what becomes of
// the message, whatever the handler returns then.
func TestHandlerTimeout(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  func(context.Context) error
		runs int
		why  string
	}{
		{"its own error", func(ctx context.Context) error { return ctx.Err() }, 5, "timeout"},
		{"the cause", func(ctx context.Context) error { return context.Cause(ctx) }, 5, "timeout"},
		{"another error", func(context.Context) error { return errors.New("cut off") }, 5, "timeout"},
		{"poison all the same", func(context.Context) error { return classify.Permanent(errors.New("no")) }, 1, "poison"},
		{"done all the same", func(context.Context) error { return nil }, 1, ""},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			runs := 0
			work(t, broker, quiet(), func(ctx context.Context, m *brokers.Message) error {
				runs++
				began := time.Now()
				<-ctx.Done()
				if took := time.Since(began); took != time.Minute {
					t.Errorf("the context ended after %v, want 1m", took)
				}
				if cause := context.Cause(ctx); !errors.Is(cause, classify.ErrAttemptTimeout) || ctx.Err() != context.DeadlineExceeded {
					t.Errorf("cause %v, err %v; want ErrAttemptTimeout and DeadlineExceeded", cause, ctx.Err())
				}
				return tt.err(ctx)
			}, consumer.TopicConfig{HandlerTimeout: time.Minute})
			if runs != tt.runs {
				t.Errorf("%d runs, want %d", runs, tt.runs)
			}
			if tt.why == "" {
				if n := broker.Len("orders.dead"); n != 0 {
					t.Errorf("%d dead letters, want none", n)
				}
			} else if got := oneDeadLetter(t, broker, "orders"); got.Reason != tt.why {
				t.Errorf("reason %q, want %q", got.Reason, tt.why)
			}
		})
	}
}

// A context's error from a handler whose own context lives on says nothing
// about this worker: it is a failure, and counts.
func TestContextErrorsOfALivingWorker(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, consumer.ErrShutdown, brokers.ErrLeaseLost} {
		bubble(t, err.Error(), func(t *testing.T) {
			broker := brokerWith("orders", "one")
			cfg := quiet()
			cfg.Retry.MaxAttempts = 3
			runs := 0
			work(t, broker, cfg, func(ctx context.Context, _ *brokers.Message) error {
				runs++
				if ctx.Err() != nil {
					t.Errorf("the handler's own context: %v", ctx.Err())
				}
				return fmt.Errorf("call: %w", err)
			})
			if got := oneDeadLetter(t, broker, "orders"); runs != 3 || got.Meta.Attempt != 3 {
				t.Errorf("%d runs, %d counted; want 3", runs, got.Meta.Attempt)
			}
		})
	}
}

// What a handler returns when the worker stops it decides only if the handler
// says so itself.
func TestShutdownOfAHandler(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		left memory.Stats
		dead int
	}{
		{"the context's error", context.Canceled, memory.Stats{Ready: 1}, 0},
		{"any error", errors.New("cut off"), memory.Stats{Ready: 1}, 0},
		{"a mark around the context's error", classify.Permanent(context.Canceled), memory.Stats{Ready: 1}, 0},
		{"poison", classify.Permanent(errors.New("no")), memory.Stats{}, 1},
		{"skip", classify.Skip(errors.New("no")), memory.Stats{}, 0},
		{"success", nil, memory.Stats{}, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			cfg := quiet()
			cfg.DrainTimeout = time.Second
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, consumer.ErrShutdown) {
					t.Errorf("cause %v, want ErrShutdown", cause)
				}
				return tt.err
			}))
			w.stopAfter(0)
			if got := broker.Stats("orders"); got != tt.left || broker.Len("orders.dead") != tt.dead {
				t.Errorf("topic %+v, %d dead; want %+v and %d", got, broker.Len("orders.dead"), tt.left, tt.dead)
			}
			for _, record := range broker.Records("orders") {
				if record.Meta.Attempt != 0 {
					t.Errorf("attempt %d, want the run not counted", record.Meta.Attempt)
				}
			}
		})
	}
}

func TestProducersIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		headers := brokers.Headers{{Name: "idempotency-key", Value: "order-17"}}
		send(t, broker, "orders", brokers.Message{ID: "a", Headers: headers}, brokers.Message{ID: "b"})
		keys := map[string]string{}
		cfg := quiet()
		cfg.Concurrency = 1
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			keys[m.ID] = consumer.MetaFrom(ctx).IdempotencyKey
			return nil
		}))
		w.stopAfter(time.Second)
		if keys["a"] != "order-17" || keys["b"] != "b" {
			t.Errorf("keys %v, want that of the header, and else the ID", keys)
		}
	})
}
