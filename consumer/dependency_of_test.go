package consumer_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/breaker"
)

// customer is the first part of a body such as "acme-17".
func customer(m *brokers.Message) string {
	name, _, _ := strings.Cut(string(m.Body), "-")
	return name
}

// customers is what handlers depend on: each has a dependency of its own.
type customers struct {
	mu    sync.Mutex
	each  map[string]*dependency
	takes map[string]time.Duration
}

func (c *customers) of(name string) *dependency {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.each == nil {
		c.each = map[string]*dependency{}
	}
	if c.each[name] == nil {
		c.each[name] = &dependency{takes: c.takes[name]}
	}
	return c.each[name]
}

func (c *customers) handle(ctx context.Context, m *brokers.Message) error {
	return c.of(customer(m)).handle(ctx, m)
}

func TestOneCustomersOutageIsItsOwn(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := newTap(memory.Options{})
		var all customers
		acme := all.of("c7")
		acme.set(unavailable)
		sent := map[string]time.Time{}
		var seen recorder
		cfg := quiet()
		cfg.HoldLimit, cfg.Observers = hold, []consumer.Observer{&seen}
		w := start(t, broker, cfg, orders(all.handle, consumer.Topic{DependencyOf: customer}))
		for i := range 20 * 120 { // two minutes
			body := fmt.Sprintf("c%d-%d", i%20, i)
			sent[body] = time.Now()
			publish(t, broker.Broker, "orders", body)
			time.Sleep(50 * time.Millisecond)
		}
		closed := time.Now()
		time.Sleep(10 * time.Minute)
		if n := len(acme.since(closed)); n < 2 || n > 100 {
			t.Errorf("%d runs for the customer in ten minutes of its outage, want a probe at a time", n)
		}
		for _, e := range seen.of(consumer.EventPaused) {
			if e.Dependency != "c7" || e.Topic != "orders" {
				t.Errorf("%s of %q paused: %v", e.Dependency, e.Topic, e.Err)
			}
		}
		uncounted(t, &seen, 8) // until 20 runs had failed in a row, at random times
		acme.set(nil)
		time.Sleep(20 * time.Minute)
		w.mustShutdown()
		for body, at := range sent {
			d := all.of(customer(&brokers.Message{Body: []byte(body)}))
			switch wait := d.served[body].Sub(at); {
			case wait < 0:
				t.Errorf("%s was not served", body)
			case d != acme && wait > 5*time.Second:
				t.Errorf("%s of another customer waited for %v", body, wait)
			}
		}
		broker.mu.Lock()
		defer broker.mu.Unlock()
		if slices.Contains(broker.pauses, "orders") {
			t.Error("the source was told to pause")
		}
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestOneCustomerHasHalfOfTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		all := customers{takes: map[string]time.Duration{"slow": time.Minute}}
		for i := range 100 {
			publish(t, broker, "orders", fmt.Sprint("slow-", i))
		}
		w := start(t, broker, quiet(), orders(all.handle, consumer.Topic{DependencyOf: customer}))
		time.Sleep(10 * time.Second)
		for i := range 100 {
			publish(t, broker, "orders", fmt.Sprint("quick-", i))
		}
		time.Sleep(10 * time.Second)
		if n := all.of("quick").done(); n != 100 {
			t.Errorf("%d of 100 messages of another customer served beside a slow one", n)
		}
		time.Sleep(40 * time.Minute)
		w.mustShutdown()
		if slow := all.of("slow"); slow.most != 5 || slow.done() != 100 {
			t.Errorf("up to %d slots used, %d of 100 served, want 5 of the 10 slots and all", slow.most, slow.done())
		}
	})
}

// So it has where each of its messages is a batch alone, and takes a slot.
func TestOneCustomerHasHalfOfTheSlotsOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		all := customers{takes: map[string]time.Duration{"slow": time.Minute}}
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(ctx context.Context, batch []consumer.Item) []error {
				return []error{all.handle(ctx, batch[0].Message)}
			}, consumer.Topic{BatchSize: 10, BatchWait: time.Millisecond, DependencyOf: customer})
		})
		for i := range 20 {
			publish(t, broker, "orders", fmt.Sprint("slow-", i))
			time.Sleep(100 * time.Millisecond)
		}
		publish(t, broker, "orders", "quick-0")
		time.Sleep(time.Second)
		if all.of("quick").done() != 1 {
			t.Error("another customer waits for a slow one")
		}
		time.Sleep(20 * time.Minute)
		w.mustShutdown()
		if n := all.of("slow").most; n != 5 {
			t.Errorf("up to %d slots used, want 5 of the 10", n)
		}
		empty(t, broker, "orders", "orders.dead")
	})
}

// A batch of which only a part may start takes a whole slot all the same.
func TestPartsOfBatchesHaveHalfOfTheSlots(t *testing.T) {
	type group struct {
		at time.Duration
		n  int
	}
	for name, groups := range map[string][]group{
		"of a customer":  {{0, 3}, {10 * time.Second, 3}, {20 * time.Second, 3}, {30 * time.Second, 3}, {40 * time.Second, 8}, {61 * time.Second, 8}},
		"that came back": {{0, 3}, {10 * time.Second, 3}, {20 * time.Second, 3}, {30 * time.Second, 2}, {61 * time.Second, 2}, {71 * time.Second, 2}},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			slow := dependency{takes: time.Minute}
			var served atomic.Int64
			w := start(t, broker, quiet(), func(c *consumer.Consumer) {
				c.HandleBatch("orders", func(ctx context.Context, batch []consumer.Item) []error {
					if customer(batch[0].Message) == "good" {
						served.Add(1)
						return nil
					}
					_ = slow.handle(ctx, batch[0].Message)
					return nil
				}, consumer.Topic{BatchSize: 10, BatchWait: time.Millisecond, DependencyOf: customer})
			})
			begun := time.Now()
			for i, g := range groups {
				time.Sleep(time.Until(begun.Add(g.at)))
				if name == "of a customer" {
					publish(t, broker, "orders", slices.Repeat([]string{"slow-1"}, g.n)...)
				} else {
					sendBack(t, broker, "orders", numbered(fmt.Sprint("back-", i), g.n)...)
				}
			}
			publish(t, broker, "orders", "good-1")
			time.Sleep(time.Second)
			if served.Load() != 1 {
				t.Error("a message of another customer waits for them")
			}
			time.Sleep(20 * time.Minute)
			w.mustShutdown()
			if slow.most > 5 {
				t.Errorf("up to %d slots used, want 5 of the 10", slow.most)
			}
			empty(t, broker, "orders", "orders.dead")
		})
	}
}

func TestTopicPausesWhenMostCustomersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		down := &dependency{down: unavailable}
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, down.register("orders", consumer.Topic{DependencyOf: customer}))
		for i := range 300 {
			publish(t, broker.Broker, "orders", fmt.Sprintf("c%d-%d", i%100, i))
		}
		time.Sleep(10 * time.Minute)
		if n := down.runs(); n < 20 || n > 150 || broker.paused() != "orders" {
			t.Errorf("%d runs in ten minutes, told to pause %q, want probes of the topic alone", n, broker.paused())
		}
		uncounted(t, &seen, 1)
		down.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		empty(t, broker.Broker, "orders", "orders.dead")
		if down.done() != 300 {
			t.Errorf("%d of 300 served", down.done())
		}
	})
}

// A probe of the topic that the guard of its message does not let start is for
// another one.
func TestProbeOfTheTopicIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		topic, acme := must(breaker.New(breaker.Config{Lease: time.Hour})), must(breaker.New(breaker.Config{}))
		cfg := quiet()
		cfg.Guards = map[string]consumer.Guard{"orders": {Breaker: topic}, "acme": {Breaker: acme}}
		cfg.Concurrency, cfg.Prefetch = 1, 6
		release := make(chan struct{})
		var all customers
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			<-release
			return all.handle(ctx, m)
		}, consumer.Topic{DependencyOf: customer}))
		publish(t, broker, "orders", "first-1", "acme-1", "acme-2", "acme-3", "emca-1", "emca-2", "emca-3")
		time.Sleep(time.Second)
		topic.Isolate(time.Now(), "by hand")
		close(release)
		time.Sleep(time.Second) // the others wait for the guard of the topic
		acme.Isolate(time.Now(), "by hand")
		topic.Restore(time.Now())
		time.Sleep(5 * time.Second)
		if n := all.of("emca").done(); n != 3 {
			t.Errorf("%d of 3 served, want none to wait for a customer that is closed", n)
		}
		acme.Restore(time.Now())
		time.Sleep(time.Minute)
		w.mustShutdown()
		if n := all.of("acme").done(); n != 3 {
			t.Errorf("%d of 3 served in the end", n)
		}
	})
}

// Whatever DependencyOf does, messages run, and memory is bounded.
func TestFaultyDependencyOf(t *testing.T) {
	long := strings.Repeat("x", 256<<10)
	for _, tt := range []struct {
		name         string
		n, size      int // of messages
		dependencyOf func(m *brokers.Message) string
	}{
		{"panics", 100, 0, func(*brokers.Message) string { panic("no customer") }},
		{"nothing", 100, 0, func(*brokers.Message) string { return "" }},
		{"another for each message", 5_000, 0, func(m *brokers.Message) string { return m.ID }},
		{"a long name", 80, 0, func(m *brokers.Message) string { return m.ID + long }},
		{"a long name that differs at the end", 80, 0, func(m *brokers.Message) string { return long + m.ID }},
		{"a part of the body", 24, 1 << 20, func(m *brokers.Message) string { return string(m.Body)[:len(m.ID)] }},
		{"no text", 100, 0, func(m *brokers.Message) string { return "\xff\x00\n" + m.ID }},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			before := heap()
			broker := memory.New(memory.Options{})
			for i := range tt.n {
				id := fmt.Sprintf("%08d", i)
				if err := broker.Publish(t.Context(), "orders", brokers.Message{ID: id, Body: []byte(id + strings.Repeat("x", tt.size))}); err != nil {
					t.Fatal(err)
				}
			}
			var faults recorder
			cfg := quiet()
			cfg.Observers = []consumer.Observer{only{consumer.EventError, &faults}}
			var mu sync.Mutex
			served := 0
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				mu.Lock()
				served++
				mu.Unlock()
				return nil
			}, consumer.Topic{DependencyOf: tt.dependencyOf}))
			time.Sleep(time.Minute)
			if after := heap(); after > before+16<<20 {
				t.Errorf("the heap has grown by %d MiB", (after-before)>>20)
			}
			w.mustShutdown()
			if served != tt.n {
				t.Errorf("%d of %d served", served, tt.n)
			}
			if n := len(faults.events); (n > 0) != (tt.name == "panics") {
				t.Errorf("%d faults reported", n)
			}
		})
	}
}

// A pause ends for observers, too, when the guard that paused is forgotten.
func TestForgottenDependencyResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		var all customers
		all.of("acme").set(unavailable)
		var paused, resumed recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{only{consumer.EventPaused, &paused}, only{consumer.EventResumed, &resumed}}
		cfg.Guard.NoBudget = true
		w := start(t, broker, cfg, orders(all.handle, consumer.Topic{DependencyOf: customer}))
		publish(t, broker, "orders", "good-0")
		time.Sleep(time.Second) // until a success is known: without one, a row of failures is the topic's
		for i := range 30 {
			publish(t, broker, "orders", fmt.Sprint("acme-", i), fmt.Sprint("good-", i))
		}
		time.Sleep(2 * time.Second)
		for i := range 1000 {
			publish(t, broker, "orders", fmt.Sprintf("c%d-1", i))
		}
		time.Sleep(100 * time.Millisecond)
		w.mustShutdown()
		if len(paused.events) == 0 || len(resumed.events) != len(paused.events) || resumed.events[0].Dependency != "acme" || resumed.events[0].Topic != "orders" {
			t.Errorf("paused: %+v, resumed: %+v, want acme, each as often as the other", paused.events, resumed.events)
		}
	})
}

// Names that differ are told apart, however long they are.
func TestLongNamesOfDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		long := strings.Repeat("x", 1000)
		bad := &dependency{down: unavailable}
		good := &dependency{}
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if customer(m) == "bad" {
				return bad.handle(ctx, m)
			}
			return good.handle(ctx, m)
		}, consumer.Topic{DependencyOf: func(m *brokers.Message) string { return long + customer(m) }}))
		for i := range 100 {
			publish(t, broker, "orders", fmt.Sprint("good-", i), fmt.Sprint("bad-", i))
			time.Sleep(time.Second)
		}
		w.mustShutdown()
		paused := seen.of(consumer.EventPaused)
		if good.done() != 100 || len(paused) != 1 || len(paused[0].Dependency) > 300 {
			t.Errorf("%d of 100 good ones served, paused: %+v, want one under a bounded name", good.done(), paused)
		}
	})
}

// heap returns the bytes in use.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// only passes on events of one kind.
type only struct {
	kind consumer.EventKind
	to   consumer.Observer
}

func (o only) Observe(ctx context.Context, e consumer.Event) {
	if e.Kind == o.kind {
		o.to.Observe(ctx, e)
	}
}
