package consumer_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

func TestSlotsAndRoomOfATopic(t *testing.T) {
	for _, tt := range []struct {
		name             string
		config           func(*consumer.Config)
		topic            consumer.TopicConfig
		slots, inFlight  int // of the topic with settings of its own
		others, inOthers int // of the other
	}{
		{"defaults", func(*consumer.Config) {}, consumer.TopicConfig{}, 10, 20, 10, 20},
		{"of all", func(c *consumer.Config) { c.Concurrency = 3 }, consumer.TopicConfig{}, 3, 6, 3, 6},
		{"of its own", func(*consumer.Config) {}, consumer.TopicConfig{Concurrency: 4}, 4, 8, 10, 20},
		{"more than all", func(c *consumer.Config) { c.Concurrency, c.Prefetch = 3, 30 }, consumer.TopicConfig{Concurrency: 4}, 4, 8, 3, 33},
		{"prefetch", func(*consumer.Config) {}, consumer.TopicConfig{Prefetch: 40}, 10, 50, 10, 20},
		{"the least", func(*consumer.Config) {}, consumer.TopicConfig{Concurrency: 1, Prefetch: 1}, 1, 2, 10, 20},
		{"prefetch of all", func(c *consumer.Config) { c.Prefetch = 1 }, consumer.TopicConfig{}, 10, 11, 10, 11},
		{"a limit over all", func(c *consumer.Config) { c.MaxConcurrency = 6 }, consumer.TopicConfig{}, 3, 20, 3, 20},
		{"a limit that one does not need", func(c *consumer.Config) { c.MaxConcurrency = 6 }, consumer.TopicConfig{Concurrency: 1}, 1, 2, 5, 20},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			own, other := &dependency{takes: time.Minute}, &dependency{takes: time.Minute}
			flood(t, broker, "orders", 200)
			flood(t, broker, "mails", 200)
			cfg := guarded()
			tt.config(&cfg)
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				own.register("orders", tt.topic)(c)
				other.register("mails")(c)
			})
			time.Sleep(10*time.Minute + 30*time.Second)
			a, b := broker.Stats("orders").InFlight, broker.Stats("mails").InFlight
			own.mu.Lock()
			other.mu.Lock()
			if cfg.MaxConcurrency == 0 && (own.most != tt.slots || other.most != tt.others) {
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
			_ = w.shutdown()             // handlers that sleep are stuck
			time.Sleep(10 * time.Minute) // until they have returned
		})
	}
}

// A topic whose dependency is slow, or down, takes neither slots nor room from
// another: 5,000 quick messages take the 50 s that ten handlers need.
func TestTopicsTakeNothingFromOthers(t *testing.T) {
	for name, bad := range map[string]*dependency{
		"slow":  {takes: time.Minute},
		"down":  {takes: 10 * time.Millisecond, down: unavailable},
		"hangs": {takes: 31 * time.Second, down: func() error { return context.DeadlineExceeded }},
	} {
		bubble(t, name, func(t *testing.T) {
			broker, quick := newTap(memory.Options{}), &dependency{takes: 100 * time.Millisecond}
			flood(t, broker.Broker, "bad", 500)
			cfg := guarded()
			cfg.HandlerTimeout = time.Hour
			paused := record(&cfg, consumer.EventPaused)
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				bad.register("bad", consumer.TopicConfig{HandlerTimeout: 2 * time.Minute})(c)
				quick.register("quick")(c)
			})
			flood(t, broker.Broker, "quick", 100)
			time.Sleep(2 * time.Minute)
			flood(t, broker.Broker, "quick", 5000)
			time.Sleep(51 * time.Second)
			if n := quick.runs(); n != 5100 {
				t.Errorf("%d of 5,000 served in a time that is enough for all", n-100)
			}
			if n := broker.Stats("bad").InFlight; n > 20 || name != "slow" && n > 6 { // three probes, and three in line
				t.Errorf("%d of the other topic are in the process", n)
			}
			if strings.Contains(broker.paused(), "quick") {
				t.Errorf("the source was told to pause %s", broker.paused())
			}
			for _, e := range paused.of(consumer.EventPaused) {
				if e.Dependency != "bad" {
					t.Errorf("%s pauses: %v", e.Dependency, e.Err)
				}
			}
			bad.set(nil)
			w.stopAfter(2 * time.Hour)
			empty(t, broker.Broker, "bad", "quick", "bad.dead")
		})
	}
}

// Topics that name the same dependency share its limit and its budget.
func TestTopicsShareADependency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		payments, mails := &dependency{down: unavailable}, &dependency{}
		cfg := guarded()
		seen := record(&cfg)
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			payments.register("orders", consumer.TopicConfig{Dependency: "payments"})(c)
			payments.register("refunds", consumer.TopicConfig{Dependency: "payments"})(c)
			mails.register("mails")(c)
		})
		flood(t, broker.Broker, "orders", 50)
		time.Sleep(time.Minute)
		began := time.Now()
		flood(t, broker.Broker, "refunds", 50)
		flood(t, broker.Broker, "mails", 50)
		time.Sleep(5 * time.Minute)
		if n := len(payments.since(began)); n > 310 || mails.done() != 50 {
			t.Errorf("%d calls in 5 minutes of outage, want one a second; %d of 50 mails", n, mails.done())
		}
		broker.mu.Lock()
		if !slices.Contains(broker.pauses, "orders+refunds") {
			t.Errorf("the source was told to pause %q, want both topics together", broker.pauses)
		}
		broker.mu.Unlock()
		payments.set(nil)
		w.stopAfter(20 * time.Minute)
		paused, resumed := seen.of(consumer.EventPaused), seen.of(consumer.EventResumed)
		if len(paused) != 1 || len(resumed) != 1 || paused[0].Dependency != "payments" || paused[0].Topic != "" {
			t.Errorf("paused: %+v, resumed: %+v, want payments once", paused, resumed)
		}
		uncounted(t, seen, 0)
		empty(t, broker.Broker, "orders", "refunds", "mails", "orders.dead", "refunds.dead")
	})
}

// customers is a handler that calls a dependency for each customer, which a body
// such as "acme-17" names first.
type customers map[string]*dependency

func customer(m *brokers.Message) string {
	name, _, _ := strings.Cut(string(m.Body), "-")
	return name
}

func (c customers) handle(ctx context.Context, m *brokers.Message) error {
	return c[customer(m)].handle(ctx, m)
}

// The trouble of some customers is their own: their messages wait, those of others
// do not, none dies, and the topic does not pause.
func TestCustomersInTrouble(t *testing.T) {
	for _, tt := range []struct {
		name    string
		bad     int // of 20
		trouble *dependency
	}{
		{"one is down", 1, &dependency{down: unavailable}},
		{"half are down", 10, &dependency{down: unavailable}},
		{"one hangs", 1, &dependency{takes: 61 * time.Second, down: unavailable}},
		{"four hang", 4, &dependency{takes: 61 * time.Second, down: unavailable}},
		{"one is slow", 1, &dependency{takes: 30 * time.Second}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker, all := newTap(memory.Options{}), customers{}
			for i := range 20 {
				all[fmt.Sprint("c", i)] = &dependency{takes: 10 * time.Millisecond}
			}
			cfg := guarded()
			cfg.HandlerTimeout = time.Minute
			seen := record(&cfg)
			w := start(t, broker, cfg, orders(all.handle, consumer.TopicConfig{DependencyOf: customer}))
			sent := map[string]time.Time{}
			send := func(n int) { // 20 a second
				for i := range n {
					body := fmt.Sprintf("c%d-%d", i%20, len(sent))
					sent[body] = time.Now()
					publish(t, broker.Broker, "orders", body)
					time.Sleep(50 * time.Millisecond)
				}
			}
			send(1200)
			bad := map[*dependency]bool{}
			for i := range tt.bad {
				d := all[fmt.Sprint("c", i)]
				bad[d] = true
				d.mu.Lock()
				d.takes, d.down = tt.trouble.takes, tt.trouble.down
				d.mu.Unlock()
			}
			send(6000)
			for d := range bad {
				d.mu.Lock()
				d.takes, d.down = 10*time.Millisecond, nil
				d.mu.Unlock()
			}
			w.stopAfter(time.Hour)
			late, longest := 0, time.Duration(0)
			for body, at := range sent {
				d := all[customer(&brokers.Message{Body: []byte(body)})]
				switch wait := d.served[body].Sub(at); {
				case wait < 0:
					t.Errorf("%s was not served", body)
				case !bad[d] && wait > 10*time.Second:
					late++
					longest = max(longest, wait)
				}
			}
			if late > 0 {
				t.Errorf("%d messages of other customers waited for up to %v", late, longest)
			}
			if len(seen.of(consumer.EventPaused)) != 0 {
				t.Error("the topic paused")
			}
			uncounted(t, seen, 2)
			empty(t, broker.Broker, "orders", "orders.dead")
		})
	}
}

// Whatever DependencyOf returns, messages run, and memory is bounded.
func TestFaultyDependencyOf(t *testing.T) {
	long := strings.Repeat("x", 256<<10)
	for name, dependencyOf := range map[string]func(m *brokers.Message) string{
		"panics":                     func(*brokers.Message) string { panic("no customer") },
		"empty":                      func(*brokers.Message) string { return "" },
		"another for each message":   func(m *brokers.Message) string { return m.ID },
		"long, differs at the end":   func(m *brokers.Message) string { return long + m.ID },
		"long, differs at the start": func(m *brokers.Message) string { return m.ID + long },
		"no text":                    func(m *brokers.Message) string { return "\xff\x00\n" + m.ID },
	} {
		bubble(t, name, func(t *testing.T) {
			broker, before := memory.New(memory.Options{}), heap()
			var mu sync.Mutex
			served := 0
			cfg := guarded()
			faults := record(&cfg, consumer.EventError)
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				served++
				return nil
			}, consumer.TopicConfig{DependencyOf: dependencyOf}))
			flood(t, broker, "orders", 500)
			time.Sleep(time.Minute)
			if after := heap(); after > before+16<<20 {
				t.Errorf("the heap has grown by %d MiB", (after-before)>>20)
			}
			w.mustShutdown()
			if n := len(faults.events); served != 500 || (n > 0) != (name == "panics") {
				t.Errorf("%d of 500 served, %d faults reported", served, n)
			}
		})
	}
}

// heap returns the bytes in use.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
