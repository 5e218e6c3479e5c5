package idempotency_test

import (
	"context"
	"crypto/sha256"
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
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/idempotency"
)

// start runs a worker for orders. Stop ends it, and returns how often what happened.
func start(t *testing.T, broker brokers.Broker, h consumer.Handler, topic ...consumer.TopicConfig) (stop func() map[string]int) {
	t.Helper()
	seen := &events{kinds: map[string]int{}}
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*.dead",
		Logger:     slog.New(slog.DiscardHandler),
		Observers:  []consumer.Observer{seen},
	})
	ok(t, err)
	c.HandleWith("orders", h, append(topic, consumer.TopicConfig{})[0])
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() map[string]int {
		cancel()
		ok(t, <-done)
		return seen.kinds
	}
}

type events struct {
	mu    sync.Mutex
	kinds map[string]int
}

func (e *events) Observe(_ context.Context, event consumer.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kind := event.Kind
	if kind == consumer.EventSettled {
		kind = event.Action.String()
	}
	e.kinds[kind]++
}

// TestClaimOfADeadWorker meets a key whose worker died between effect and
// record: the message waits for the end of the lease, without using up
// attempts, and is then handled again.
func TestClaimOfADeadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, s := memory.New(memory.Options{}), idempotency.NewMemory(0)
		hold(t, s, "orders:order-7", "dead worker", 30*time.Second)
		began := time.Now()
		ran := make(chan brokers.Meta, 1)
		handle, _ := wrap(t, s, func(ctx context.Context, _ *brokers.Message) error {
			ran <- consumer.MetaFrom(ctx)
			return nil
		}, nil)
		ok(t, broker.Publish(t.Context(), "orders", brokers.Message{ID: "order-7"}))
		stop := start(t, broker, handle)
		meta := <-ran
		if waited := time.Since(began); waited < 30*time.Second || waited > 2*time.Minute {
			t.Errorf("the handler ran after %s, want it soon after 30s", waited)
		}
		if meta.Attempt != 1 || len(meta.History) != 1 {
			t.Errorf("the run is attempt %d after %d waits, want attempt 1 after one", meta.Attempt, len(meta.History))
		}
		stop()
	})
}

// TestRunThatMayHaveHadItsEffect fails so once: the handler runs again, or where
// it must not, when the dead letter has been sent back.
func TestRunThatMayHaveHadItsEffect(t *testing.T) {
	for _, noRepeat := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			h := &counted{then: first(func() error {
				return classify.With(errBusy, classify.Verdict{Class: classify.ClassTransient, Ambiguous: true})
			})}
			handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, nil)
			stop := start(t, broker, handle, consumer.TopicConfig{NoRepeat: noRepeat})
			ok(t, broker.Publish(t.Context(), "orders", brokers.Message{ID: "order-7"}))
			time.Sleep(time.Hour)
			letters := broker.Messages("orders.dead")
			if (len(letters) == 1) != noRepeat {
				t.Fatalf("NoRepeat %t: %d dead letters", noRepeat, len(letters))
			}
			for _, letter := range letters {
				h.want(t, "order-7", 1)
				entry, err := dlq.Decode(letter)
				if err != nil || entry.Reason != "ambiguous" {
					t.Fatalf("the dead letter is %+v, error %v, want one that is ambiguous", entry, err)
				}
				ok(t, broker.Publish(t.Context(), "orders", entry.Message))
				time.Sleep(time.Hour)
			}
			h.want(t, "order-7", 2)
			stop()
		})
	}
}

// TestShutdownWhileWaiting stops a worker whose handler waits for another run.
func TestShutdownWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, s := memory.New(memory.Options{}), idempotency.NewMemory(0)
		hold(t, s, "orders:order-7", "somebody", time.Hour)
		handle, _ := wrap(t, s, (&counted{}).handle, func(o *idempotency.Options) { o.Wait = time.Hour })
		ok(t, broker.Publish(t.Context(), "orders", brokers.Message{ID: "order-7"}))
		stop := start(t, broker, handle)
		time.Sleep(time.Second)
		if seen := stop(); seen["release"] != 1 || seen["retry"] != 0 {
			t.Errorf("%v, want the message released", seen)
		}
	})
}

// TestKeyIsKept sends messages through retries, to the dead letters and back.
func TestKeyIsKept(t *testing.T) {
	long, odd := strings.Repeat("k", 10_000), "charge-7\r\nX-Admin: 1\x00"
	hashOf := func(key string) string { return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(key))) }
	tests := []struct {
		name    string
		headers brokers.Headers
		want    string
	}{
		{"made from the ID", nil, "order-7"},
		{"given by the producer", brokers.Headers{{Name: "Idempotency-Key", Value: "charge-7"}}, "charge-7"},
		{"given in the words of redrive", brokers.Headers{{Name: "redrive-idempotency-key", Value: "charge-8"}}, "charge-8"},
		{"given with 10 kB", brokers.Headers{{Name: "Idempotency-Key", Value: long}}, hashOf(long)},
		{"given with control characters", brokers.Headers{{Name: "Idempotency-Key", Value: odd}}, hashOf(odd)},
		{"given in the words of redrive with 512 bytes", brokers.Headers{{Name: "redrive-idempotency-key", Value: long[:512]}}, hashOf(long[:512])},
		{"given in the words of redrive with 10 kB", brokers.Headers{{Name: "redrive-idempotency-key", Value: long}}, "order-7"},
		{"given in the words of redrive with control characters", brokers.Headers{{Name: "redrive-idempotency-key", Value: odd}}, "order-7"},
		{"given in both", brokers.Headers{{Name: "Idempotency-Key", Value: "charge-7"}, {Name: "redrive-idempotency-key", Value: "charge-8"}}, "charge-8"},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			var keys []string
			h := func(ctx context.Context, m *brokers.Message) error {
				keys = append(keys, idempotency.Key(m, consumer.MetaFrom(ctx)))
				switch len(keys) {
				case 1:
					return errBusy // comes again over the broker
				case 2:
					return classify.Permanent(errBusy)
				}
				return nil
			}
			stop := start(t, broker, h)
			ok(t, broker.Publish(t.Context(), "orders", brokers.Message{ID: "order-7", Headers: tt.headers}))
			time.Sleep(time.Hour)
			letters := broker.Messages("orders.dead")
			if len(letters) != 1 {
				t.Fatalf("%d dead letters, want 1", len(letters))
			}
			entry, err := dlq.Decode(letters[0])
			ok(t, err)
			back := entry.Message
			if key := entry.Meta.IdempotencyKey; key != "" {
				back.Headers = back.Headers.With("redrive-idempotency-key", key)
			}
			ok(t, broker.Publish(t.Context(), "orders", back))
			time.Sleep(time.Hour)
			stop()
			if want := slices.Repeat([]string{tt.want}, 3); !slices.Equal(keys, want) {
				t.Errorf("the keys of the runs are %q, want %q", keys, want)
			}
		})
	}
}
