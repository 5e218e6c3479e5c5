package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// killing is a broker with a worker that is killed from time to time.
type killing struct {
	*mortal
	cfg      consumer.Config
	register func(*consumer.Consumer)
	w        *worker
}

func startKilling(t *testing.T, broker *mortal, cfg consumer.Config, register func(*consumer.Consumer)) *killing {
	return &killing{broker, cfg, register, start(t, broker, cfg, register)}
}

// kill kills the worker and starts another.
func (k *killing) kill(t *testing.T) {
	synctest.Wait() // the worker has opened its source
	k.Crash(k.source)
	k.w.shutdown()
	k.w = start(t, k, k.cfg, k.register)
}

// A message that kills each worker that runs it is dead after CrashLimit such runs,
// from when it is suspect on. Others are not.
func TestCrashLoop(t *testing.T) {
	for _, test := range []struct{ limit, kills int }{{0, 2 + 3}, {1, 1 + 1}, {2, 1 + 2}, {5, 4 + 5}} {
		bubble(t, fmt.Sprint("limit ", test.limit), func(t *testing.T) {
			broker := &mortal{tap: newTap(memory.Options{})}
			cfg := quiet()
			cfg.CrashLimit = test.limit
			var mu sync.Mutex
			runs := map[string]int{}
			dies := make(chan struct{}, 1)
			k := startKilling(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				mu.Lock()
				runs[string(m.Body)]++
				mu.Unlock()
				if string(m.Body) == "killer" {
					dies <- struct{}{}
					<-ctx.Done()
				}
				return nil
			}))
			publish(t, broker.Broker, "orders", "one", "killer", "two")
			for range test.kills {
				<-dies
				time.Sleep(time.Second)
				k.kill(t)
			}
			k.w.stopAfter(time.Minute)
			letter := oneDeadLetter(t, broker.Broker, "orders")
			if letter.Reason != "crash-loop" || string(letter.Message.Body) != "killer" || runs["killer"] != test.kills || runs["one"] != 1 || runs["two"] != 1 {
				t.Errorf("%q is dead by %q after runs %v, want the killer after %d", letter.Message.Body, letter.Reason, runs, test.kills)
			}
		})
	}
}

// Messages that waited in workers that were killed are not to blame.
func TestWaitingIsNoCrashLoop(t *testing.T) {
	for name, takes := range map[string]time.Duration{"refused": 0, "slow": 10 * time.Second} {
		bubble(t, name, func(t *testing.T) {
			broker := &mortal{tap: newTap(memory.Options{})}
			var mu sync.Mutex
			up, served := false, 0
			cfg := guarded()
			k := startKilling(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if up {
					served++
					return nil
				}
				mu.Unlock()
				time.Sleep(takes)
				mu.Lock()
				return classify.Transient(errBusy)
			}))
			flood(t, broker.Broker, "orders", 40)
			for range 24 {
				time.Sleep(10 * time.Minute)
				k.kill(t)
			}
			mu.Lock()
			up = true
			mu.Unlock()
			k.w.stopAfter(time.Hour)
			if dead := deadLetters(t, broker.Broker, "orders"); len(dead) != 0 || served != 40 {
				t.Errorf("%d of 40 served, %d dead, want 0", served, len(dead))
			}
		})
	}
}

// While leases cannot be extended, or many are lost together, messages are lost
// that kill nobody.
func TestLostLeasesAreNoCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		broker := newTap(memory.Options{Lease: 30 * time.Second, Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Extend && time.Since(began) < 20*time.Minute {
				return memory.Fault{Err: errors.New("connection refused")}
			}
			return memory.Fault{}
		}})
		cfg := guarded()
		served := map[string]bool{}
		var mu sync.Mutex
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Minute):
			}
			mu.Lock()
			defer mu.Unlock()
			served[string(m.Body)] = true
			return nil
		}))
		flood(t, broker.Broker, "orders", 300)
		w.stopAfter(4 * time.Hour)
		if dead := deadLetters(t, broker.Broker, "orders"); len(dead) != 0 || len(served) != 300 {
			t.Errorf("%d of 300 served, %d dead, want 0", len(served), len(dead))
		}
	})
}

// One of many keys hangs. Its messages wait outside the window, so that the other
// keys go on, and they stay in order.
func TestHangingKeyStopsNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		cfg := guarded()
		cfg.OrderByKey = true
		var mu sync.Mutex
		var longest time.Duration
		var order []string
		hung := false
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if m.Key == "bad" {
				if !hung {
					hung = true
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					return ctx.Err()
				}
				order = append(order, m.ID)
				return nil
			}
			longest = max(longest, time.Since(m.PublishedAt))
			return nil
		}))
		var want []string
		for i := range 3000 { // 5 min
			m := brokers.Message{ID: fmt.Sprint(i), Key: fmt.Sprint("key-", i%100), PublishedAt: time.Now()}
			if i%10 == 0 {
				m.Key = "bad"
				want = append(want, m.ID)
			}
			send(t, broker, "orders", m)
			time.Sleep(100 * time.Millisecond)
		}
		w.stopAfter(10 * time.Minute)
		if longest > 2*time.Second {
			t.Errorf("a message of another key waited for %v", longest)
		}
		if !slices.Equal(order, want) {
			t.Errorf("%d of %d messages of the key that hung, in order: %v", len(order), len(want), slices.IsSorted(order))
		}
	})
}

// A message that waits for a slot, on trial or not, is not to blame for workers that
// end meanwhile.
func TestWaitingForASlotIsNoCrashLoop(t *testing.T) {
	bubble(t, "one slot", func(t *testing.T) {
		broker := &mortal{tap: newTap(memory.Options{})}
		cfg := quiet()
		cfg.Concurrency, cfg.Prefetch = 1, 100
		var mu sync.Mutex
		runs := map[string]int{}
		k := startKilling(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			mu.Lock()
			runs[m.ID]++
			mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			return context.Cause(ctx)
		}))
		flood(t, broker.Broker, "orders", 60)
		for range 40 {
			time.Sleep(30 * time.Second)
			k.kill(t)
		}
		k.w.stopAfter(2 * time.Hour)
		for _, letter := range deadLetters(t, broker.Broker, "orders") {
			if n := runs[letter.Message.ID]; n < 3 {
				t.Errorf("%s is dead by %q after %d runs, want 3 or more", letter.Message.ID, letter.Reason, n)
			}
		}
		if len(runs) != 60 {
			t.Errorf("%d of 60 messages have run", len(runs))
		}
	})
}

// A message that comes again beside one that kills, each time, is not taken for another.
func TestKillerBesideItsNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &mortal{tap: newTap(memory.Options{})}
		cfg := quiet()
		cfg.Concurrency, cfg.Random = 2, func() float64 { return 0 } // nothing parts the two
		dies := make(chan struct{}, 1)
		k := startKilling(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "killer" {
				dies <- struct{}{}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			return context.Cause(ctx)
		}))
		publish(t, broker.Broker, "orders", "killer", "neighbour")
		for range 2 + 3 {
			<-dies
			time.Sleep(time.Second)
			k.kill(t)
		}
		k.w.stopAfter(time.Hour)
		if letter := oneDeadLetter(t, broker.Broker, "orders"); string(letter.Message.Body) != "killer" || letter.Reason != "crash-loop" {
			t.Errorf("%q is dead by %q, want the killer by crash-loop", letter.Message.Body, letter.Reason)
		}
	})
}

// A message that is lost beside one that kills waits before its trial for a time of its
// own. So the two run apart before the last loss, and the killer costs its neighbour no
// further run.
func TestTrialsPartKillerAndNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &mortal{tap: newTap(memory.Options{})}
		cfg := quiet()
		var draws, runs atomic.Int32
		cfg.Concurrency, cfg.Random = 2, func() float64 { return float64(draws.Add(1)%4) / 4 } // waits differ by 15 s or more
		dies := make(chan struct{}, 1)
		k := startKilling(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "killer" {
				dies <- struct{}{}
			} else {
				runs.Add(1)
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			return context.Cause(ctx)
		}))
		publish(t, broker.Broker, "orders", "killer", "neighbour")
		for range 2 + 3 {
			<-dies
			time.Sleep(time.Second)
			k.kill(t)
		}
		k.w.stopAfter(time.Hour)
		if letter := oneDeadLetter(t, broker.Broker, "orders"); string(letter.Message.Body) != "killer" {
			t.Errorf("%q is dead, want the killer", letter.Message.Body)
		}
		if n := runs.Load(); n != 2+1 {
			t.Errorf("the neighbour ran %d times, want 2 runs beside the killer before their trials, and 1 on its trial", n)
		}
	})
}

// What a message has killed on its trial is not forgotten when it goes back because no
// slot is free.
func TestKillerBehindBusySlots(t *testing.T) {
	bubble(t, "two slots", func(t *testing.T) {
		broker := &mortal{tap: newTap(memory.Options{})}
		cfg := quiet()
		cfg.Concurrency, cfg.Prefetch = 2, 100
		dies := make(chan struct{}, 1)
		k := startKilling(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "killer" {
				dies <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			return context.Cause(ctx)
		}))
		publish(t, broker.Broker, "orders", "killer")
		flood(t, broker.Broker, "orders", 500)
		kills := 0
		for ended := time.After(3 * time.Hour); ; {
			select {
			case <-dies:
				time.Sleep(time.Second)
				kills++
				k.kill(t)
				continue
			case <-ended:
			}
			break
		}
		k.w.stopAfter(0)
		if letter := oneDeadLetter(t, broker.Broker, "orders"); kills != 2+3 || letter.Reason != "crash-loop" {
			t.Errorf("%d workers are killed, and %q is dead by %q; want 5", kills, letter.Message.Body, letter.Reason)
		}
	})
}
