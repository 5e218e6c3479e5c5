package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func TestDrainStopsReceivingAndGivesBackWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "running", "queued", "in the broker")
		cfg := quiet()
		cfg.Concurrency = 1
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			time.Sleep(10 * time.Second)
			d.write("finished %s with %v", m.Body, ctx.Err())
			return nil
		}))
		time.Sleep(time.Second)
		w.stop()
		synctest.Wait()
		if got, want := broker.Stats("orders"), (memory.Stats{Ready: 2, InFlight: 1}); got != want {
			t.Errorf("at once after the stop: %+v, want %+v", got, want)
		}
		publish(t, broker.Broker, "orders", "later")
		if err := <-w.done; err != nil {
			t.Errorf("Run = %v", err)
		}
		d.expect(t, "10s finished running with <nil>")
		for _, r := range broker.Records("orders") {
			if r.Meta.Attempt != 0 || !r.Meta.DueAt.IsZero() || r.Abandoned != 0 || r.DueAt != (time.Time{}) {
				t.Errorf("%s was given back as %+v, want it unchanged", r.Message.Body, r)
			}
		}
		if got, want := broker.Stats("orders"), (memory.Stats{Ready: 3}); got != want {
			t.Errorf("after Run: %+v, want %+v", got, want)
		}
	})
}

func TestDrainGivesHeldRetriesToTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		began := time.Now()
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = time.Minute, every(time.Minute, 3)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return errBusy }))
		w.stopAfter(20 * time.Second)
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("the drain took %v, want no time", took-20*time.Second)
		}
		calls := broker.of("retry")
		if len(calls) != 1 || calls[0].delay != 40*time.Second || calls[0].meta.Attempt != 1 || !calls[0].meta.DueAt.Equal(began.Add(time.Minute)) {
			t.Errorf("retries %+v, want one with the remaining 40s", calls)
		}
	})
}

// What arrived early and was never run goes back with the rest of its delay.
func TestDrainReschedulesEarlyArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		due := time.Now().Add(time.Minute)
		broker.deliver = func(d *brokers.Delivery) { d.Carried = &brokers.Meta{DueAt: due, Attempt: 2} }
		publish(t, broker.Broker, "orders", "one")
		cfg := quiet()
		cfg.HoldLimit = time.Hour
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		w.stopAfter(20 * time.Second)
		calls := broker.of("ack", "retry", "release")
		if len(calls) != 1 || calls[0].what != "retry" || calls[0].delay != 40*time.Second || calls[0].meta.Attempt != 2 || runs.Load() != 0 {
			t.Errorf("%d runs and the settlements %+v, want one retry with the remaining 40s", runs.Load(), calls)
		}
	})
}

// An attempt that failed in this process stays counted when the next one is
// given back.
func TestDrainKeepsTheAttemptsOfAnInterruptedRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		cfg := quiet()
		cfg.DrainTimeout, cfg.Retry = time.Second, every(time.Second, 5)
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			if consumer.MetaFrom(ctx).Attempt < 3 {
				return errBusy
			}
			<-ctx.Done()
			return ctx.Err()
		}))
		w.stopAfter(time.Minute)
		records := broker.Records("orders")
		if len(records) != 1 || records[0].Meta.Attempt != 2 || len(records[0].Meta.History) != 2 || broker.Stats("orders").Ready != 1 {
			t.Errorf("given back as %+v, want it ready with the two attempts that failed", records)
		}
	})
}

func TestInterruptedHandlerIsReleasedUncounted(t *testing.T) {
	for _, timeout := range []time.Duration{-1, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			broker := tapWith("orders", "one")
			cfg := quiet()
			cfg.DrainTimeout = timeout
			seen := record(&cfg)
			began := time.Now()
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				<-ctx.Done()
				if got, want := time.Since(began), time.Minute+max(timeout, 0); got != want {
					t.Errorf("interrupted after %v, want %v", got, want)
				}
				if cause := context.Cause(ctx); !errors.Is(cause, consumer.ErrShutdown) {
					t.Errorf("cause %v, want ErrShutdown", cause)
				}
				return fmt.Errorf("charge: %w", ctx.Err())
			}))
			w.stopAfter(time.Minute)
			calls := broker.of("ack", "retry", "release")
			if len(calls) != 1 || calls[0].what != "release" || calls[0].at != time.Minute+max(timeout, 0) {
				t.Errorf("DrainTimeout %v: settlements %+v, want a release at once", timeout, calls)
			}
			failed := seen.of(consumer.EventFailed)
			if len(failed) != 1 || failed[0].Verdict.Class != classify.ClassShutdown || failed[0].Decision.Counted {
				t.Errorf("failures %+v, want one by shutdown, not counted", failed)
			}
			if r := broker.Records("orders"); len(r) != 1 || r[0].Meta.Attempt != 0 {
				t.Errorf("given back as %+v", r)
			}
		})
	}
}

// Two handlers find poison while the worker drains, one after the other.
func TestPoisonFoundDuringTheDrainIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "1s", "2s", "3s")
		w := start(t, broker, quiet(), orders(func(_ context.Context, m *brokers.Message) error {
			wait, _ := time.ParseDuration(string(m.Body))
			time.Sleep(wait)
			return classify.Permanent(errors.New("no such article"))
		}))
		w.stopAfter(0)
		if n := broker.Len("orders.dead"); n != 3 {
			t.Errorf("%d dead letters, want 3", n)
		}
		empty(t, broker.Broker, "orders")
	})
}

func TestDeadLettersThatCannotBePublishedAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Publish && op.Topic == "orders.dead" {
				return memory.Fault{Err: errors.New("connection refused")}
			}
			return memory.Fault{}
		}})
		publish(t, broker.Broker, "orders", "one", "two")
		cfg := quiet()
		cfg.DrainTimeout = 10 * time.Second
		var runs atomic.Int32
		w := start(t, broker, cfg, poisonous(&runs))
		time.Sleep(time.Minute)
		began := time.Now()
		w.mustShutdown()
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the drain took %v, want 11s at most", took)
		}
		if got, want := broker.Stats("orders"), (memory.Stats{Ready: 2}); got != want || runs.Load() != 2 {
			t.Errorf("after Run: %+v after %d runs, want %+v and no second run", got, runs.Load(), want)
		}
		for _, r := range broker.Records("orders") {
			if r.Abandoned != 0 || r.Meta.Death == nil || r.Meta.Death.Attempt != 1 || r.Meta.Death.Reason != "poison" || r.Meta.Death.ErrorText != "no such article" {
				t.Errorf("given back as %+v, want its attempt counted, and its Death", r)
			}
		}
	})
}

// A publish that gets no answer must not keep Run.
func TestDrainWhileADeadLetterHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Publish && op.Topic == "orders.dead" {
				return memory.Fault{Latency: time.Hour}
			}
			return memory.Fault{}
		}})
		publish(t, broker.Broker, "orders", "one")
		cfg := quiet()
		cfg.DrainTimeout = 10 * time.Second
		var runs atomic.Int32
		w := start(t, broker, cfg, poisonous(&runs))
		synctest.Wait()
		began := time.Now()
		err := w.shutdown()
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the drain took %v, want 11s at most", took)
		}
		if !errors.Is(err, consumer.ErrUnclean) {
			t.Errorf("Run = %v, want ErrUnclean: the dead letter is not confirmed", err)
		}
		if got, want := broker.Stats("orders"), (memory.Stats{Ready: 1}); got != want {
			t.Errorf("after Run: %+v, want %+v", got, want)
		}
	})
}

func TestDrainReportsUnconfirmedSettlements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: on(memory.Settle, 1000, memory.Fault{Err: errors.New("i/o timeout")})})
		publish(t, broker.Broker, "orders", "one", "two")
		cfg := quiet()
		cfg.DrainTimeout = 10 * time.Second
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		synctest.Wait()
		began := time.Now()
		err := w.shutdown()
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the drain took %v, want 11s at most", took)
		}
		if !errors.Is(err, consumer.ErrUnclean) || !strings.Contains(err.Error(), "2 settlements") {
			t.Errorf("Run = %v, want ErrUnclean that counts 2 settlements", err)
		}
	})
}

// A retry that the broker refuses while the worker drains is dead-lettered.
func TestRetryRefusedDuringTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Settle && op.Action == brokers.Retry {
				return memory.Fault{Err: brokers.ErrRefused}
			}
			return memory.Fault{}
		}})
		publish(t, broker.Broker, "orders", "one", "two")
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = time.Hour, every(time.Minute, 3)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return errBusy }))
		w.stopAfter(0)
		if n := broker.Len("orders.dead"); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
		empty(t, broker.Broker, "orders")
	})
}

func TestRandomDrains(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			randomDrain(t, seed)
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// dice is a random source for several goroutines.
type dice struct {
	mu     sync.Mutex
	source *rand.Rand
}

func (d *dice) float() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.source.Float64()
}

func (d *dice) upTo(limit time.Duration) time.Duration {
	return time.Duration(d.float() * float64(limit))
}

func (d *dice) chance(p float64) bool { return d.float() < p }

// randomDrain stops a worker at a random time, in the middle of random work on
// a broker with random faults, and looks for every message.
func randomDrain(t *testing.T, seed uint64) {
	const messages = 40
	dice := &dice{source: rand.New(rand.NewPCG(seed, 5))}
	broker := memory.New(memory.Options{Lease: 5 * time.Second, Ordered: dice.chance(0.3), Fault: func(op memory.Op) memory.Fault {
		switch {
		case op.Operation == memory.Publish && op.Topic == "orders":
			return memory.Fault{}
		case dice.chance(0.1):
			return memory.Fault{Err: errors.New("connection reset")}
		case dice.chance(0.1):
			return memory.Fault{Latency: dice.upTo(500 * time.Millisecond)}
		}
		return memory.Fault{}
	}})
	for i := range messages {
		m := brokers.Message{ID: fmt.Sprint(i)}
		if dice.chance(0.5) {
			m.Key = fmt.Sprint(i % 5)
		}
		if err := broker.Publish(t.Context(), "orders", m); err != nil {
			t.Fatal(err)
		}
	}
	cfg := quiet()
	cfg.Concurrency = 1 + int(dice.upTo(5))
	cfg.DrainTimeout = []time.Duration{-1, 100 * time.Millisecond, time.Second, 5 * time.Second}[int(dice.upTo(4))]
	cfg.HoldLimit = []time.Duration{-1, 2 * time.Second}[int(dice.upTo(2))]
	cfg.OrderByKey = dice.chance(0.5)
	cfg.Random = dice.float
	var handled sync.Map
	w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
		if dice.chance(0.02) {
			time.Sleep(20 * time.Second) // stuck
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(dice.upTo(2 * time.Second)):
		}
		switch {
		case dice.chance(0.3):
			return errBusy
		case dice.chance(0.1):
			return classify.Permanent(errBusy)
		case dice.chance(0.05):
			panic("random")
		}
		handled.Store(m.ID, true)
		return nil
	}))
	time.Sleep(dice.upTo(10 * time.Second))
	began := time.Now()
	if err := w.shutdown(); err != nil && !errors.Is(err, consumer.ErrUnclean) {
		t.Errorf("Run = %v", err)
	}
	if took, limit := time.Since(began), max(cfg.DrainTimeout, 0)+time.Second; took > limit {
		t.Errorf("the drain took %v, want %v at most", took, limit)
	}
	time.Sleep(time.Minute) // stuck handlers return
	if n := broker.Stats("orders").InFlight; n != 0 {
		t.Errorf("%d messages are still held", n)
	}
	left := map[string]bool{}
	for _, topic := range []string{"orders", "orders.dead"} {
		for _, m := range broker.Messages(topic) {
			left[m.ID] = true
		}
	}
	for i := range messages {
		id := fmt.Sprint(i)
		if _, done := handled.Load(id); !done && !left[id] {
			t.Errorf("message %s is lost", id)
		}
	}
}
