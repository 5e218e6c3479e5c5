package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
)

func TestSlotsAndRoomOfATopic(t *testing.T) {
	for _, tt := range []struct {
		name             string
		config           func(*consumer.Config)
		topic            consumer.Topic
		slots, inFlight  int // of the topic with settings of its own
		others, inOthers int // of the other
	}{
		{"defaults", func(*consumer.Config) {}, consumer.Topic{}, 10, 20, 10, 20},
		{"of all", func(c *consumer.Config) { c.Concurrency = 3 }, consumer.Topic{}, 3, 6, 3, 6},
		{"of its own", func(*consumer.Config) {}, consumer.Topic{Concurrency: 4}, 4, 8, 10, 20},
		{"more than all", func(c *consumer.Config) { c.Concurrency, c.Prefetch = 3, 30 }, consumer.Topic{Concurrency: 4}, 4, 8, 3, 33},
		{"prefetch", func(*consumer.Config) {}, consumer.Topic{Prefetch: 40}, 10, 50, 10, 20},
		{"the least", func(*consumer.Config) {}, consumer.Topic{Concurrency: 1, Prefetch: -1}, 1, 2, 10, 20},
		{"prefetch of all", func(c *consumer.Config) { c.Prefetch = -1 }, consumer.Topic{}, 10, 11, 10, 11},
		{"a limit over all", func(c *consumer.Config) { c.MaxConcurrency = 6 }, consumer.Topic{}, 3, 20, 3, 20},
		{"a limit that one does not need", func(c *consumer.Config) { c.MaxConcurrency = 6 }, consumer.Topic{Concurrency: 1}, 1, 2, 5, 20},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			own, other := &dependency{takes: time.Minute}, &dependency{takes: time.Minute}
			flood(t, broker, "orders", 200)
			flood(t, broker, "mails", 200)
			cfg := quiet()
			tt.config(&cfg)
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				own.register("orders", tt.topic)(c)
				other.register("mails")(c)
			})
			time.Sleep(10*time.Minute + 30*time.Second)
			a, b := broker.Stats("orders").InFlight, broker.Stats("mails").InFlight
			own.mu.Lock()
			other.mu.Lock()
			if tt.config(&cfg); cfg.MaxConcurrency == 0 && (own.most != tt.slots || other.most != tt.others) {
				t.Errorf("%d and %d at once, want %d and %d", own.most, other.most, tt.slots, tt.others)
			}
			if own.under != tt.slots || other.under != tt.others {
				t.Errorf("%d and %d under way, want %d and %d", own.under, other.under, tt.slots, tt.others)
			}
			own.mu.Unlock()
			other.mu.Unlock()
			if a > tt.inFlight || a <= tt.slots || b > tt.inOthers || b <= tt.others {
				t.Errorf("%d and %d in flight, want up to %d and %d", a, b, tt.inFlight, tt.inOthers)
			}
			_ = w.shutdown()             // what sleeps is stuck
			time.Sleep(10 * time.Minute) // until it has returned
		})
	}
}

// A slow topic takes neither slots nor room from another: the source is told
// that it is full, and brings only the other.
func TestSlowTopicTakesNothingFromAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		slow, quick := &dependency{takes: time.Minute}, &dependency{takes: 100 * time.Millisecond}
		flood(t, broker.Broker, "slow", 1000)
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			slow.register("slow")(c)
			quick.register("quick")(c)
		})
		time.Sleep(10 * time.Second)
		if broker.paused() != "slow" {
			t.Errorf("the source was told to pause %q, want the slow topic, which is full", broker.paused())
		}
		flood(t, broker.Broker, "quick", 5000) // 50 s for ten handlers
		time.Sleep(51 * time.Second)
		if quick.done() != 5000 {
			t.Errorf("%d of 5000 served beside a slow topic, in a time that is enough for all", quick.done())
		}
		if n := broker.Stats("slow").InFlight; n > 20 {
			t.Errorf("%d of the slow topic are in the process, want 20 at most", n)
		}
		time.Sleep(2 * time.Hour)
		w.mustShutdown()
		empty(t, broker.Broker, "slow", "quick")
	})
}

// throttledError is an answer that asks to slow down, and not until when.
type throttledError struct{}

func (throttledError) Error() string       { return "too many requests" }
func (throttledError) HTTPStatusCode() int { return 429 }

// Adaptive is a matter of one topic. The others have nothing to do with it. It
// takes a flood of throttles, and retries of them, to see it.
func TestAdaptiveConcurrency(t *testing.T) {
	for _, slow := range []bool{false, true} { // else it throttles
		bubble(t, fmt.Sprintf("slow=%v", slow), func(t *testing.T) {
			broker := memory.New(memory.Options{})
			cfg := quiet()
			cfg.Guards = map[string]consumer.Guard{"orders": {NoBudget: true, NoBreaker: true, Adaptive: true}}
			cfg.Concurrency, cfg.Retry = 50, every(time.Millisecond, 1000)
			cfg.Retry.FreeThrottles = 1 << 20
			var mu sync.Mutex
			under, most, limit := 0, 0, 5
			other := &dependency{takes: 20 * time.Millisecond}
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				other.register("mails")(c)
				c.Handle("orders", func(context.Context, *brokers.Message) error {
					mu.Lock()
					under++
					most = max(most, under)
					over := under > limit
					mu.Unlock()
					if time.Sleep(20 * time.Millisecond); over && slow {
						time.Sleep(80 * time.Millisecond)
					}
					mu.Lock()
					under--
					mu.Unlock()
					if over && !slow {
						return throttledError{}
					}
					return nil
				})
			})
			flood(t, broker, "orders", 3000)
			time.Sleep(8 * time.Second)
			mu.Lock()
			most = 0
			mu.Unlock()
			flood(t, broker, "mails", 500)
			time.Sleep(3 * time.Second)
			mu.Lock()
			if most < 2 || most > 3*limit {
				t.Errorf("up to %d run at once where %d may, want about as many", most, limit)
			}
			limit, most = 1000, 0
			mu.Unlock()
			flood(t, broker, "orders", 15000)
			time.Sleep(10 * time.Second)
			mu.Lock()
			if most < 45 {
				t.Errorf("up to %d run at once when nothing throttles any more, want 50", most)
			}
			mu.Unlock()
			w.mustShutdown()
			if other.most != 50 {
				t.Errorf("up to %d of another topic run at once, want 50", other.most)
			}
		})
	}
}

// When the worker stops, everything that waits goes back, uncounted: for a
// guard, a token, its time, its turn, a slot.
func TestDrainWithEverythingWaiting(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{})
			guard := must(breaker.New(breaker.Config{}))
			noTokens := newLedgered()
			noTokens.withdraw = func(time.Duration) (time.Duration, bool) { return time.Second, false }
			release := make(chan struct{})
			cfg := quiet()
			cfg.Concurrency, cfg.Prefetch, cfg.OrderByKey = 1, 9, byKey
			cfg.HoldLimit, cfg.Retry = time.Hour, every(time.Second, 9)
			cfg.Guards = map[string]consumer.Guard{"guard": {Breaker: guard}, "token": {Budget: noTokens}}
			block := func(context.Context, *brokers.Message) error { <-release; return nil }
			fail := func(context.Context, *brokers.Message) error { return errBusy }
			long := retry.Policy{Backoff: retry.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: retry.NoJitter}}
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.Handle("guard", block)
				c.Handle("token", fail)
				c.Handle("time", fail, consumer.Topic{Retry: &long})
				c.Handle("slot", block)
				c.HandleBatch("batch", func(context.Context, []consumer.Item) []error { return nil }, consumer.Topic{BatchSize: 100, BatchWait: time.Hour})
			})
			topics := []string{"guard", "token", "time", "slot", "batch"}
			for _, topic := range topics {
				for i := range 8 {
					if err := broker.Broker.Publish(t.Context(), topic, brokers.Message{Key: fmt.Sprint(i % 4), Body: []byte(fmt.Sprint(topic, i))}); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(time.Second)
			guard.Isolate(time.Now(), "by hand")
			release <- struct{}{} // that of guard or slot
			release <- struct{}{} // then one of slot
			time.Sleep(5 * time.Second)
			w.stop()
			time.Sleep(time.Second)
			close(release)
			if err := <-w.done; err != nil {
				t.Errorf("Run = %v", err)
			}
			left := 0
			for _, topic := range topics {
				stats := broker.Stats(topic)
				left += stats.Ready + stats.Delayed
				if stats.InFlight != 0 {
					t.Errorf("%s: %+v, want nothing in flight", topic, stats)
				}
				for _, record := range broker.Records(topic) {
					if runs := len(record.Meta.History); record.Meta.Attempt != runs || record.Abandoned != 0 {
						t.Errorf("%s has %d attempts after %d runs, and was abandoned %d times", record.Message.Body, record.Meta.Attempt, runs, record.Abandoned)
					}
				}
			}
			if acked := len(broker.of("ack")); acked+left != 40 {
				t.Errorf("%d acked and %d left, want 40", acked, left)
			}
		})
	}
}

// A key keeps its order over a time in which its guard is closed.
func TestKeysWithAClosedGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		guard := must(breaker.New(breaker.Config{}))
		cfg := quiet()
		cfg.OrderByKey, cfg.Guard.Breaker = true, guard
		var mu sync.Mutex
		last, under := map[string]int{}, map[string]int{}
		handled := 0
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			var n int
			_, _ = fmt.Sscan(string(m.Body), &n)
			mu.Lock()
			if n <= last[m.Key] || under[m.Key] > 0 {
				t.Errorf("key %s: %d ran after or beside %d", m.Key, n, last[m.Key])
			}
			last[m.Key] = n
			under[m.Key]++
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			under[m.Key]--
			handled++
			return nil
		}))
		for i := range 600 {
			if err := broker.Publish(t.Context(), "orders", brokers.Message{Key: fmt.Sprint("k", i%7), Body: []byte(fmt.Sprint(i + 1))}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			switch i {
			case 100, 300:
				guard.Isolate(time.Now(), "by hand")
			case 200, 400:
				guard.Restore(time.Now())
			case 500:
				guard.Trip(time.Now(), "by hand", 1)
			}
		}
		time.Sleep(time.Minute)
		w.mustShutdown()
		if handled != 600 {
			t.Errorf("%d of 600 handled", handled)
		}
	})
}

// A failure says nothing about what the dependency can bear, however soon it
// comes. It takes a flood of failures to see it.
func TestFailuresDoNotRaiseTheAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 2000)
		cfg := quiet()
		cfg.Guard = consumer.Guard{NoBudget: true, NoBreaker: true, Adaptive: true}
		cfg.Concurrency, cfg.Retry = 50, every(time.Hour, 9)
		var mu sync.Mutex
		runs, under, most := 0, 0, 0
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			mu.Lock()
			runs++
			early, last := runs <= 500, runs > 1000
			if under++; last {
				most = max(most, under)
			}
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			under--
			mu.Unlock()
			if early {
				return throttledError{}
			}
			return errBusy
		}))
		time.Sleep(time.Minute)
		w.mustShutdown()
		if runs < 2000 || most > 2 {
			t.Errorf("%d runs, up to %d at once after the throttles, want 2000 and 1 or 2", runs, most)
		}
	})
}
