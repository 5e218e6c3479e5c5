package consumer_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
)

// One bad row fails its whole batch. It ends by itself, after its attempts, and
// nobody else with it.
func TestBadRowOfABatchEndsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		for i := range 2000 {
			body := fmt.Sprint("good-", i)
			if i%500 == 250 {
				body = fmt.Sprint("bad-", i)
			}
			publish(t, broker, "rows", body)
		}
		var mu sync.Mutex
		runs, inserted := map[string]int{}, map[string]int{}
		calls := 0
		isBad := func(item brokers.Item) bool { return strings.HasPrefix(string(item.Message.Body), "bad") }
		cfg := quiet()
		seen := record(&cfg)
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleBatch("rows", func(_ context.Context, batch []brokers.Item) []error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				for _, item := range batch {
					runs[string(item.Message.Body)]++
				}
				if slices.ContainsFunc(batch, isBad) {
					return slices.Repeat([]error{errors.New("a row violates a constraint")}, len(batch))
				}
				for _, item := range batch {
					inserted[string(item.Message.Body)]++
				}
				return nil
			}, consumer.TopicConfig{BatchSize: 100})
		})
		w.stopAfter(time.Hour)
		for body, n := range inserted {
			if n != 1 {
				t.Errorf("%s was inserted %d times", body, n)
			}
		}
		letters := deadLetters(t, broker, "rows")
		for _, letter := range letters {
			if !isBad(brokers.Item{Message: &letter.Message}) || letter.Meta.Attempt != 6 || len(letter.Meta.History) != 6 {
				t.Errorf("%s is dead after %d attempts of %d failures, want a bad one after the 6 of class unknown", letter.Message.Body, letter.Meta.Attempt, len(letter.Meta.History))
			}
		}
		if len(inserted) != 1996 || len(letters) != 4 || calls > 20+4*20+4*6 {
			t.Errorf("%d of 1996 inserted, %d of 4 dead after %d calls", len(inserted), len(letters), calls)
		}
		for _, e := range seen.of(consumer.EventFailed) {
			if e.Decision.Reason == "batch" && e.Decision.Counted {
				t.Fatalf("the failure of a whole batch counts: %+v", e.Decision)
			}
		}
		empty(t, broker, "rows")
	})
}

// A dead-letter topic that refuses is no obstacle for others: what finds no
// place goes back to its queue, and is dead-lettered without another run.
func TestDeadLettersThatFindNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		broker := newTap(with(memory.Fault{Err: errors.New("connection refused")}, func(op memory.Op) bool {
			return op.Operation == memory.Publish && op.Topic == "orders.dead" && time.Since(began) < time.Hour
		}))
		var mu sync.Mutex
		poison, good := 0, 0
		cfg := quiet()
		cfg.MaxHeld = 30
		sent := map[string]time.Time{}
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(string(m.Body), "bad") {
				poison++
				return classify.Permanent(errBusy)
			}
			if wait := time.Since(sent[string(m.Body)]); wait > time.Second {
				t.Errorf("%s waited for %v", m.Body, wait)
			}
			good++
			return nil
		}))
		for i := range 3600 {
			body := fmt.Sprint("good-", i)
			if i%20 == 0 {
				body = fmt.Sprint("bad-", i)
			}
			mu.Lock()
			sent[body] = time.Now()
			mu.Unlock()
			publish(t, broker.Broker, "orders", body)
			time.Sleep(time.Second)
		}
		if n := broker.Stats("orders"); n.InFlight > 30+20 || n.Delayed < 100 {
			t.Errorf("%+v, want few in the process, and the others back in their queue", n)
		}
		w.stopAfter(10 * time.Minute)
		letters := deadLetters(t, broker, "orders")
		if poison != 180 || len(letters) != 180 || good != 3420 {
			t.Errorf("%d runs of 180 poisonous messages, %d dead; %d of 3420 good ones", poison, len(letters), good)
		}
		for _, letter := range letters {
			if letter.Reason != "poison" || len(letter.Meta.History) != 1 {
				t.Errorf("%s is dead by %q after %d failures", letter.Message.Body, letter.Reason, len(letter.Meta.History))
			}
		}
		empty(t, broker.Broker, "orders")
	})
}

// What waits is bounded in bytes, each topic having its part.
func TestMaxHeldBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		for i := range 10 {
			publish(t, broker.Broker, "orders", fmt.Sprint(i, strings.Repeat("x", 1<<20)))
		}
		cfg := quiet()
		cfg.MaxHeldBytes = 7 << 20 // 3.5 MiB for each topic
		cfg.HoldLimit, cfg.Retry = time.Hour, every(time.Minute, 3)
		runs := 0
		var mu sync.Mutex
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, _ *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if runs++; consumer.MetaFrom(ctx).Attempt == 1 {
					return errBusy
				}
				return nil
			})
			c.Handle("mails", func(context.Context, *brokers.Message) error { return nil })
		})
		time.Sleep(time.Second)
		holds(t, broker, "orders", memory.Stats{InFlight: 3, Delayed: 7})
		w.stopAfter(10 * time.Minute)
		if runs != 20 {
			t.Errorf("%d runs, want 20", runs)
		}
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// In a ramp messages are held that wait for the limit.
const ramp = 4 * time.Second

// Quick handlers take what a broker is to bring next from a longer row. It is as long as
// they work through in a moment, within a half of what may be held.
func TestPrefetchOfQuickHandlers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		takes  time.Duration
		body   int
		config func(*consumer.Config)
		most   int // in the process at once
	}{
		{"200 ms", 200 * time.Millisecond, 100, nil, 10 + 10},
		{"20 ms", 20 * time.Millisecond, 100, nil, 10 + 10},
		{"5 ms", 5 * time.Millisecond, 100, nil, 10 + 40},
		{"1 ms", time.Millisecond, 100, nil, 10 + 200},
		{"0.3 ms", 300 * time.Microsecond, 100, nil, 10 + 10 + 500},
		{"1 ms, large bodies", time.Millisecond, 1000, func(c *consumer.Config) { c.MaxHeldBytes = 64_000 }, 10 + 10 + 32},
		{"1 ms, little may be held", time.Millisecond, 100, func(c *consumer.Config) { c.MaxHeld = 40 }, 10 + 10 + 20},
		{"1 ms, a prefetch that is set", time.Millisecond, 100, func(c *consumer.Config) { c.Prefetch = 30 }, 10 + 30},
		{"1 ms, two handlers", time.Millisecond, 100, func(c *consumer.Config) { c.Concurrency = 2 }, 2 + 40},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			cfg := guarded()
			if tt.config != nil {
				tt.config(&cfg)
			}
			var mu sync.Mutex
			most, began := 0, time.Now()
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.Handle("orders", func(context.Context, *brokers.Message) error {
					mu.Lock()
					if time.Since(began) > ramp {
						most = max(most, c.Status().Topics[0].InFlight)
					}
					mu.Unlock()
					time.Sleep(tt.takes)
					return nil
				})
			})
			publish(t, broker, "orders", slices.Repeat([]string{strings.Repeat("x", tt.body)}, int(50*time.Second/max(tt.takes, time.Millisecond/3)))...)
			w.stopAfter(10 * time.Second)
			if most < tt.most*9/10 || most > tt.most {
				t.Errorf("%d messages were in the process at once, want nearly %d", most, tt.most)
			}
		})
	}
}

// A topic of slow handlers takes nothing ahead because quick ones share its dependency.
func TestPrefetchIsOfTheTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		var mu sync.Mutex
		most, began := 0, time.Now()
		w := start(t, broker, guarded(), func(c *consumer.Consumer) {
			c.Handle("orders", func(context.Context, *brokers.Message) error {
				time.Sleep(time.Millisecond)
				return nil
			})
			c.HandleWith("refunds", func(context.Context, *brokers.Message) error {
				mu.Lock()
				if time.Since(began) > ramp {
					most = max(most, c.Status().Topics[1].InFlight)
				}
				mu.Unlock()
				time.Sleep(time.Second)
				return nil
			}, consumer.TopicConfig{Dependency: "orders"})
		})
		publish(t, broker, "orders", slices.Repeat([]string{"quick"}, 60_000)...)
		publish(t, broker, "refunds", slices.Repeat([]string{"slow"}, 200)...)
		w.stopAfter(15 * time.Second)
		if most != 10+10 {
			t.Errorf("%d slow messages were in the process at once, want 20", most)
		}
	})
}

// What quick handlers take ahead, and what waits for its retry, stay within MaxHeld.
func TestPrefetchLeavesWhatMayBeHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		cfg := guarded()
		cfg.MaxHeld = 40
		cfg.Guard.Budget = must(budget.New(budget.Config{Share: 1, Floor: 1000}))
		cfg.Retry.Backoff = retry.Backoff{Base: time.Second, Jitter: retry.NoJitter}
		var mu sync.Mutex
		most := 0
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, _ *brokers.Message) error {
				mu.Lock()
				most = max(most, c.Status().Topics[0].InFlight)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				if consumer.MetaFrom(ctx).Attempt == 1 && broker.Len("orders")%3 == 0 {
					return errBusy
				}
				return nil
			})
		})
		publish(t, broker, "orders", slices.Repeat([]string{"a"}, 60_000)...)
		w.stopAfter(10 * time.Second)
		if most <= 10+10+20 || most > 10+10+40 {
			t.Errorf("%d messages were in the process at once, want more than 40 and 60 at most", most)
		}
	})
}
