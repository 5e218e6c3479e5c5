package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// scribe is a Tracer whose spans are numbers, "00-1" and so on.
type scribe struct {
	mu     sync.Mutex
	spans  int
	runs   []string // "one:1+two:1" for a run of two messages in their first attempt
	events []string // "failed 00-1"
	panics string   // the method that does
}

type scribeKey struct{}

func spanOf(ctx context.Context) string {
	span, _ := ctx.Value(scribeKey{}).(string)
	return span
}

func (s *scribe) Start(ctx context.Context, run []brokers.Item) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, item := range run {
		names = append(names, fmt.Sprintf("%s:%d%s", item.Message.Body, item.Meta.Attempt, strings.Replace(item.Meta.Trace, "00-", " after ", 1)))
	}
	s.runs = append(s.runs, strings.Join(names, "+"))
	if s.panics == "Start" {
		panic("no spans today")
	}
	s.spans++
	return context.WithValue(ctx, scribeKey{}, fmt.Sprintf("00-%d", s.spans))
}

func (s *scribe) Traceparent(ctx context.Context) string {
	if s.panics == "Traceparent" {
		panic("no headers today")
	}
	return spanOf(ctx)
}

func (s *scribe) Observe(ctx context.Context, e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, strings.TrimSpace(string(kindOf(e))+" "+spanOf(ctx)))
	if cause := ctx.Err(); cause != nil && e.Kind != consumer.EventSucceeded && e.Kind != consumer.EventFailed {
		s.events = append(s.events, "after the end")
	}
}

// Each run has a span, which the handler, the log and the events have in their
// context, and the next delivery and the dead letter in their Meta.
func TestTracer(t *testing.T) {
	for name, delay := range map[string]time.Duration{"held": time.Second, "by the broker": time.Minute} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			tracer := &scribe{}
			var log bytes.Buffer
			cfg := quiet()
			cfg.Tracer, cfg.Retry, cfg.Logger = tracer, every(delay, 2), slog.New(spanLog{slog.NewTextHandler(&log, nil)})
			var handled []string
			publish(t, broker, "orders", "one")
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				handled = append(handled, spanOf(ctx))
				return classify.Transient(errBusy)
			}))
			time.Sleep(time.Hour)
			w.mustShutdown()
			if want := []string{"one:1", "one:2 after 1"}; !slices.Equal(tracer.runs, want) {
				t.Errorf("runs %q, want %q", tracer.runs, want)
			}
			if want := []string{"00-1", "00-2"}; !slices.Equal(handled, want) {
				t.Errorf("handled in spans %q, want %q", handled, want)
			}
			want := []string{"received", "started 00-1", "failed 00-1", "held 00-1", "started 00-2", "failed 00-2", "dead-lettered 00-2", "ack 00-2"}
			if delay == time.Minute {
				want = slices.Replace(want, 3, 4, "retry 00-1", "received")
			}
			if !slices.Equal(tracer.events, want) {
				t.Errorf("events\n%q, want\n%q", tracer.events, want)
			}
			if letter := oneDeadLetter(t, broker, "orders"); letter.Meta.Trace != "00-2" {
				t.Errorf("the dead letter has the trace %q, want that of the last run", letter.Meta.Trace)
			}
			for _, line := range []string{`msg="handler failed" span=00-1`, `msg="message dead-lettered" span=00-2`} {
				if !strings.Contains(log.String(), line) {
					t.Errorf("the log lacks %s:\n%s", line, &log)
				}
			}
		})
	}
}

// spanLog adds the span of the context to what it logs.
type spanLog struct{ slog.Handler }

func (l spanLog) Handle(ctx context.Context, r slog.Record) error {
	with := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	with.AddAttrs(slog.String("span", spanOf(ctx)))
	return l.Handler.Handle(ctx, with)
}

// A batch has one span, and its messages know it in their next run: also when they
// run again at once, since one may have failed the others.
func TestTracerOfBatches(t *testing.T) {
	for name, fail := range map[string]func(body string) error{
		"one fails": func(body string) error {
			if body == "two" {
				return errBusy
			}
			return nil
		},
		"all fail": func(string) error { return errBusy },
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			tracer := &scribe{}
			cfg := quiet()
			cfg.Tracer, cfg.Retry = tracer, every(time.Second, 5)
			publish(t, broker, "orders", "one", "two")
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
					results := make([]error, len(batch))
					for i, item := range batch {
						if spanOf(ctx) == "00-1" { // of the first run
							results[i] = fail(string(item.Message.Body))
						}
					}
					return results
				}, consumer.TopicConfig{BatchSize: 2})
			})
			time.Sleep(time.Minute)
			w.mustShutdown()
			want := []string{"one:1+two:1", "two:2 after 1"}
			if name == "all fail" {
				want = []string{"one:1+two:1", "one:1 after 1", "two:1 after 1"}
			}
			slices.Sort(tracer.runs)
			slices.Sort(want)
			if !slices.Equal(tracer.runs, want) {
				t.Errorf("runs %q, want %q", tracer.runs, want)
			}
			empty(t, broker, "orders", "orders.dead")
		})
	}
}

// A Tracer that panics is the user's fault, not the message's.
func TestTracerThatPanics(t *testing.T) {
	for _, method := range []string{"Start", "Traceparent"} {
		bubble(t, method, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			var log bytes.Buffer
			cfg := quiet()
			cfg.Tracer, cfg.Retry, cfg.Logger = &scribe{panics: method}, every(time.Second, 2), slog.New(slog.NewTextHandler(&log, nil))
			publish(t, broker, "orders", "one")
			var attempts []int
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				attempts = append(attempts, consumer.MetaFrom(ctx).Attempt)
				if len(attempts) == 1 {
					return classify.Transient(errors.New("busy"))
				}
				return nil
			}))
			time.Sleep(time.Minute)
			w.mustShutdown()
			empty(t, broker, "orders", "orders.dead")
			if !slices.Equal(attempts, []int{1, 2}) || !strings.Contains(log.String(), "observer panicked") {
				t.Errorf("attempts %v, want two, and a panic in the log:\n%s", attempts, &log)
			}
		})
	}
}

// A worker without a Tracer carries the trace of another on, and one with a Tracer
// replaces it when a run fails.
func TestTraceIsCarriedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.deliver = func(d *brokers.Delivery) {
			m := d.Meta()
			m.Trace = "00-9"
			d.Carried = &m
		}
		cfg := quiet()
		cfg.Retry = every(time.Minute, 2)
		publish(t, broker.Broker, "orders", "one")
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Transient(errBusy) }))
		time.Sleep(time.Hour)
		w.mustShutdown()
		retries := broker.of("retry")
		if letter := oneDeadLetter(t, broker.Broker, "orders"); len(retries) != 1 || retries[0].meta.Trace != "00-9" || letter.Meta.Trace != "00-9" {
			t.Errorf("the trace of another worker is lost in %+v or %+v", retries, letter.Meta)
		}
	})
}
