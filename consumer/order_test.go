package consumer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// publishKeyed publishes one message for each name: its key is what stands
// before the hyphen, and its body and ID are the name.
func publishKeyed(t *testing.T, broker brokers.Broker, names ...string) {
	t.Helper()
	for _, name := range names {
		key, _, _ := strings.Cut(name, "-")
		send(t, broker, "orders", brokers.Message{ID: name, Key: key, Body: []byte(name)})
	}
}

// failingOnce takes a second for each message, and fails the first run of
// those that begin with the names given.
func failingOnce(d *diary, names ...string) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
			d.write("%s", m.Body)
			time.Sleep(time.Second)
			if consumer.MetaFrom(ctx).Attempt == 1 && slices.Contains(names, string(m.Body)) {
				return errBusy
			}
			return nil
		})
	}
}

// sorted makes the order of what happens at one time certain.
func (d *diary) sorted() *diary {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortStableFunc(d.lines, func(a, b string) int {
		at, textA, _ := strings.Cut(a, " ")
		bt, textB, _ := strings.Cut(b, " ")
		x, _ := time.ParseDuration(at)
		y, _ := time.ParseDuration(bt)
		if x != y {
			return int(x - y)
		}
		return strings.Compare(textA, textB)
	})
	return d
}

// Each message takes a second. The first run of "a-1" fails where it is retried, after
// ten seconds.
func TestByKeyRunsOneOfAKeyAtATime(t *testing.T) {
	for name, tt := range map[string]struct {
		names  string
		config func(*consumer.Config)
		want   string
	}{
		"one of a key": {"a-1 a-2 b-1 a-3 b-2", func(c *consumer.Config) { c.OrderByKey = true },
			"0s a-1, 0s b-1, 1s a-2, 1s b-2, 2s a-3"},
		"without an order": {"a-1 a-2 a-3", func(*consumer.Config) {}, "0s a-1, 0s a-2, 0s a-3"},
		"without keys":     {"-1 -2 -3", func(c *consumer.Config) { c.OrderByKey = true }, "0s -1, 0s -2, 0s -3"},
		"a held retry holds its key alone": {"a-1 a-2 b-1 b-2", func(c *consumer.Config) {
			c.OrderByKey, c.HoldLimit, c.Retry = true, time.Minute, every(10*time.Second, 3)
		}, "0s a-1, 0s b-1, 1s b-2, 11s a-1, 12s a-2"},
		"later ones overtake a retry through the broker": {"a-1 a-2 a-3", func(c *consumer.Config) {
			c.OrderByKey, c.Retry = true, every(10*time.Second, 3)
		}, "0s a-1, 1s a-2, 2s a-3, 11s a-1"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			publishKeyed(t, broker, strings.Fields(tt.names)...)
			cfg := quiet()
			tt.config(&cfg)
			var failing []string
			if cfg.Retry.MaxAttempts > 0 {
				failing = []string{"a-1"}
			}
			d := newDiary()
			w := start(t, broker, cfg, failingOnce(d, failing...))
			w.stopAfter(time.Minute)
			d.sorted().expect(t, strings.Split(tt.want, ", ")...)
			empty(t, broker, "orders")
		})
	}
}

func TestOrderedSourceKeepsTheOrderOverRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Ordered: true})
		publishKeyed(t, broker.Broker, "a-1", "a-2", "b-1", "a-3", "-1")
		cfg := quiet()
		cfg.Retry = every(10*time.Second, 3)
		d := newDiary()
		w := start(t, broker, cfg, failingOnce(d, "a-1"))
		time.Sleep(2 * time.Second)
		if got, want := broker.did("release"), []string{"release a-2", "release a-3"}; !slices.Equal(got, want) {
			t.Errorf("released %q, want %q in this order", got, want)
		}
		w.stopAfter(time.Minute)
		d.sorted().expect(t, "0s -1", "0s a-1", "0s b-1", "11s a-1", "12s a-2", "13s a-3")
		for _, c := range broker.of("ack") {
			if c.failed {
				t.Errorf("ack of %s failed", c.id)
			}
		}
		empty(t, broker.Broker, "orders")
	})
}

// The head of a key is held when its lease is lost.
func TestOrderedSourceKeepsTheOrderOverALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Ordered: true, Lease: 10 * time.Second, Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Extend && op.ID == "a-1" && op.Nth == 1 {
				return memory.Fault{Lost: true}
			}
			return memory.Fault{}
		}})
		publishKeyed(t, broker.Broker, "a-1", "a-2", "a-3")
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = time.Hour, every(10*time.Minute, 3)
		var runs atomic.Int32
		d := &diary{}
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			d.write("%s", m.Body)
			if runs.Add(1) == 1 {
				return errBusy
			}
			return nil
		}))
		w.stopAfter(time.Hour)
		var got []string
		for _, line := range d.lines {
			_, name, _ := strings.Cut(line, " ")
			got = append(got, name)
		}
		if want := []string{"a-1", "a-1", "a-2", "a-3"}; !slices.Equal(got, want) {
			t.Errorf("runs %q, want %q", got, want)
		}
		empty(t, broker.Broker, "orders")
	})
}

func TestDeadLetterLetsItsKeyGoOn(t *testing.T) {
	for _, options := range []memory.Options{{}, {Ordered: true}} {
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(options)
			publishKeyed(t, broker, "a-1", "a-2")
			cfg := quiet()
			cfg.OrderByKey = true
			d := newDiary()
			w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
				d.write("%s", m.Body)
				if m.ID == "a-1" {
					return classify.Permanent(errBusy)
				}
				return nil
			}))
			w.stopAfter(time.Second)
			d.expect(t, "0s a-1", "0s a-2")
			empty(t, broker, "orders")
		})
	}
}

// The head of a key that is drained takes the others with it, in order.
func TestDrainGivesBackAKeyInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		publishKeyed(t, broker.Broker, "a-1", "a-2", "a-3", "b-1", "b-2")
		cfg := quiet()
		cfg.OrderByKey, cfg.Concurrency, cfg.Prefetch = true, 1, 9
		d := newDiary()
		w := start(t, broker, cfg, failingOnce(d))
		w.stopAfter(0)
		if got, want := broker.did("release"), []string{"release b-1", "release b-2", "release a-2", "release a-3"}; !slices.Equal(got, want) {
			t.Errorf("released %q, want %q", got, want)
		}
		d.expect(t, "0s a-1")
	})
}

// guard fails when two messages of a key run at once, or out of order.
type guard struct {
	mu      sync.Mutex
	running map[string]bool
	done    map[string][]string
	faults  []string
}

func (g *guard) enter(m *brokers.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[m.Key] {
		g.faults = append(g.faults, m.ID+" began while another of its key ran")
	}
	g.running[m.Key] = true
}

func (g *guard) leave(m *brokers.Message, handled bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[m.Key] = false
	if handled {
		g.done[m.Key] = append(g.done[m.Key], m.ID)
	}
}

// Random failures, held or through an ordered broker, never change the order
// of a key.
func TestRandomFailuresKeepTheOrder(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			dice := &dice{source: rand.New(rand.NewPCG(seed, 6))}
			broker := memory.New(memory.Options{Ordered: true})
			want := map[string][]string{}
			for i := range 200 {
				key := string(rune('a' + int(dice.float()*5)))
				id := fmt.Sprintf("%s-%03d", key, i)
				publishKeyed(t, broker, id)
				want[key] = append(want[key], id)
			}
			g := &guard{running: map[string]bool{}, done: map[string][]string{}}
			cfg := quiet()
			cfg.Random, cfg.Concurrency = dice.float, 4
			cfg.Retry.MaxAttempts = 1000
			cfg.Retry.Backoff.Cap = 5 * time.Second
			w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
				g.enter(m)
				time.Sleep(dice.upTo(time.Second))
				failed := dice.chance(0.3)
				g.leave(m, !failed)
				if failed {
					return classify.Transient(errBusy)
				}
				return nil
			}))
			w.stopAfter(time.Hour)
			for key := range want {
				if !slices.Equal(g.done[key], want[key]) {
					t.Errorf("seed %d: %s was handled as %q", seed, key, g.done[key])
				}
			}
			if len(g.faults) > 0 {
				t.Errorf("seed %d: %q", seed, g.faults)
			}
			empty(t, broker, "orders", "orders.dead")
		})
	}
}
