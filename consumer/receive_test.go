package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

func TestReceiveErrorsBackOffAndRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls atomic.Int32
		broker := memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Receive && time.Since(began) < 10*time.Minute {
				calls.Add(1)
				return memory.Fault{Err: errors.New("no route to host")}
			}
			return memory.Fault{}
		}})
		publish(t, broker, "orders", "one")
		var runs atomic.Int32
		cfg := quiet()
		seen := record(&cfg)
		cfg.Random = rand.New(rand.NewPCG(1, 2)).Float64
		w := start(t, broker, cfg, counting(&runs))
		time.Sleep(10*time.Minute + 2*time.Second)
		if n := calls.Load(); n < 300 || n > 1200 {
			t.Errorf("%d calls in 10 min without a broker, want about one a second", n)
		}
		if runs.Load() != 1 {
			t.Errorf("%d runs within 2s of the recovery, want 1", runs.Load())
		}
		for _, e := range seen.of(consumer.EventError) {
			if e.Message != nil || e.Operation != "receive" || !strings.Contains(e.Err.Error(), "no route to host") {
				t.Fatalf("event %+v, want that of the receipt, without a message", e)
			}
		}
		w.mustShutdown()
	})
}

func TestFatalReceiveErrorsEndTheRun(t *testing.T) {
	for _, fatal := range []error{brokers.ErrMisconfigured, brokers.ErrClosed} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			broker := memory.New(with(memory.Fault{Err: fatal, Latency: time.Second}, func(op memory.Op) bool { return op.Operation == memory.Receive && calls.Add(1) == 2 }))
			publish(t, broker, "orders", "one")
			finished := false
			w := start(t, broker, quiet(), orders(func(ctx context.Context, _ *brokers.Message) error {
				time.Sleep(20 * time.Second)
				finished = true
				return nil
			}))
			if err := <-w.done; !errors.Is(err, fatal) || errors.Is(err, consumer.ErrUnclean) {
				t.Errorf("Run = %v, want %v after a clean drain", err, fatal)
			}
			if !finished {
				t.Error("the running handler was not waited for")
			}
			empty(t, broker, "orders")
		})
	}
}

// An operator deletes one of two queues in use, and then the only queue of another
// worker.
func TestDeletedTopicEndsNoRun(t *testing.T) {
	for _, topics := range [][]string{{"orders", "refunds"}, {"orders"}} {
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			var logged bytes.Buffer
			cfg := quiet()
			seen := record(&cfg)
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			handled := make(map[string]int)
			var mu sync.Mutex
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				for _, topic := range topics {
					c.Handle(topic, func(_ context.Context, m *brokers.Message) error {
						mu.Lock()
						defer mu.Unlock()
						handled[topic]++
						return nil
					})
				}
			})
			for i := range 30 {
				for _, topic := range topics {
					if i == 10 && topic == "orders" {
						broker.Delete(topic)
					}
					if topic != "orders" || i < 10 || i >= 20 {
						publish(t, broker, topic, fmt.Sprint(i))
					}
				}
				time.Sleep(time.Second)
			}
			failed := seen.of(consumer.EventError)
			if len(failed) != 1 || failed[0].Topic != "orders" || failed[0].Operation != "receive" {
				t.Errorf("errors %+v, want one, of the topic that was deleted", failed)
			}
			if text := logged.String(); !strings.Contains(text, "topic=orders") || !strings.Contains(text, "was deleted with all its messages") {
				t.Errorf("the log does not report the lost messages: %s", text)
			}
			for _, topic := range topics {
				want := 30
				if topic == "orders" {
					want = 20
				}
				if handled[topic] != want {
					t.Errorf("%d messages of %q were handled, want %d", handled[topic], topic, want)
				}
			}
			w.mustShutdown()
		})
	}
}

// census counts the deliveries that the pipeline has and has not settled.
type census struct {
	mu      sync.Mutex
	now     int
	highest int
}

func (c *census) change(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += by
	c.highest = max(c.highest, c.now)
}

func TestUnfinishedDeliveriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const concurrency, prefetch, held = 3, 2, 4
		var unfinished census
		var running, most atomic.Int32
		broker := newTap(memory.Options{})
		broker.deliver = func(*brokers.Delivery) { unfinished.change(1) }
		broker.settle = func(batch []brokers.Settlement, errs []error) []error {
			unfinished.change(-len(batch))
			return errs
		}
		for i := range 500 {
			publish(t, broker.Broker, "orders", fmt.Sprint(i))
		}
		random := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		draw := func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return random.Float64()
		}
		cfg := quiet()
		cfg.Concurrency, cfg.Prefetch, cfg.MaxHeld, cfg.Random = concurrency, prefetch, held, draw
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			time.Sleep(time.Duration(draw() * float64(time.Second)))
			if draw() < 0.4 {
				return errBusy
			}
			return nil
		}))
		w.stopAfter(time.Hour)
		empty(t, broker.Broker, "orders")
		if got, limit := unfinished.highest, concurrency+prefetch+held; got > limit || got < concurrency+prefetch {
			t.Errorf("%d unfinished deliveries at once, want %d to %d", got, concurrency+prefetch, limit)
		}
		if most.Load() != concurrency {
			t.Errorf("%d handlers ran at once, want %d", most.Load(), concurrency)
		}
		for _, n := range broker.askedIn {
			if n < 1 || n > concurrency+prefetch {
				t.Fatalf("Receive was asked for %d deliveries, want 1 to %d", n, concurrency+prefetch)
			}
		}
	})
}

func TestMessageOfAnUnknownTopicIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.deliver = func(d *brokers.Delivery) { d.Message.Topic = "strange" }
		publish(t, broker.Broker, "orders", "one")
		var runs atomic.Int32
		w := start(t, broker, quiet(), counting(&runs))
		w.stopAfter(0)
		empty(t, broker.Broker, "orders", "orders.dead")
		dead := deadLetters(t, broker.Broker, "strange")
		if len(dead) != 1 || dead[0].Reason != "unroutable" || string(dead[0].Message.Body) != "one" || runs.Load() != 0 {
			t.Errorf("%d runs, dead letters %+v; want one that is unroutable", runs.Load(), dead)
		}
	})
}

func TestUnreadableMessageIsDeadLetteredWithoutARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.deliver = func(d *brokers.Delivery) {
			if string(d.Message.Body) == "bad" {
				d.Unreadable, d.Abandoned = errors.New("its headers are torn"), 5
			}
		}
		publish(t, broker.Broker, "orders", "bad", "good")
		var runs atomic.Int32
		w := start(t, broker, quiet(), counting(&runs))
		w.stopAfter(0)
		empty(t, broker.Broker, "orders")
		dead := deadLetters(t, broker.Broker, "orders")
		if len(dead) != 1 || dead[0].Reason != "unreadable" || string(dead[0].Message.Body) != "bad" ||
			!strings.Contains(dead[0].ErrorText, "its headers are torn") || runs.Load() != 1 {
			t.Errorf("%d runs, dead letters %+v; want one run, and one that is unreadable", runs.Load(), dead)
		}
	})
}

func TestOversizeBodyIsDeadLetteredWithoutARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "", "1234567890", "12345678901")
		cfg := quiet()
		cfg.MaxBody = 10
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		w.stopAfter(0)
		entry := oneDeadLetter(t, broker, "orders")
		if runs.Load() != 2 || entry.Reason != "oversize" || string(entry.Message.Body) != "12345678901" || !strings.Contains(entry.ErrorText, "limit of 10 bytes") {
			t.Errorf("%d runs, entry %+v; want the long body dead and unchanged, and the others to run", runs.Load(), entry)
		}
	})
}
