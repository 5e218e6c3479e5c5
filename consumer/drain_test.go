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
		holds(t, broker, "orders", memory.Stats{Ready: 2, InFlight: 1})
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
		holds(t, broker, "orders", memory.Stats{Ready: 3})
	})
}

// A held retry, and a message that arrived early and was never run, go back with the
// rest of their delay.
func TestDrainGivesHeldRetriesToTheBroker(t *testing.T) {
	for name, early := range map[string]bool{"a failure": false, "an early arrival": true} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			due, attempt, runs := time.Now().Add(time.Minute), 1, int32(1)
			if early {
				attempt, runs = 2, 0
				broker.deliver = func(d *brokers.Delivery) { d.Carried = &brokers.Meta{DueAt: due, Attempt: attempt} }
			}
			publish(t, broker.Broker, "orders", "one")
			cfg := quiet()
			cfg.HoldLimit, cfg.Retry = time.Hour, every(time.Minute, 3)
			var ran atomic.Int32
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				ran.Add(1)
				return errBusy
			}))
			w.stopAfter(20 * time.Second)
			if took := time.Until(due); took != 40*time.Second {
				t.Errorf("the drain took %v, want no time", 40*time.Second-took)
			}
			if ran.Load() != runs {
				t.Errorf("%d runs, want %d", ran.Load(), runs)
			}
			broker.settled(t, "retry one")
			for _, back := range broker.of("retry") {
				if back.delay != 40*time.Second || back.meta.Attempt != attempt || !back.meta.DueAt.Equal(due) {
					t.Errorf("given back as %+v, want it with the remaining 40s", back)
				}
			}
		})
	}
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
			broker.settled(t, "release one")
			if at := broker.of("release")[0].at; at != time.Minute+max(timeout, 0) {
				t.Errorf("DrainTimeout %v: released after %v, want at once", timeout, at)
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

// No fault of the broker keeps a drain for longer than its time, and no message is lost.
func TestDrainOnAFaultyBroker(t *testing.T) {
	permanent := classify.Permanent(errors.New("no such article"))
	retrying := func(op memory.Op) bool { return op.Operation == memory.Settle && op.Action == brokers.Retry }
	settling := func(op memory.Op) bool { return op.Operation == memory.Settle }
	for name, tt := range map[string]struct {
		options memory.Options
		result  error
		err     string // of Run
		left    int    // in the topic
		dead    int
	}{
		"dead letters are refused": {with(memory.Fault{Err: errors.New("connection refused")}, deadLettering), permanent, "", 2, 0},
		"dead letters hang":        {with(memory.Fault{Latency: time.Hour}, deadLettering), permanent, "2 settlements", 2, 0},
		"settlements fail":         {with(memory.Fault{Err: errors.New("i/o timeout")}, settling), nil, "2 settlements", 2, 0},
		"retries are refused":      {with(memory.Fault{Err: brokers.ErrRefused}, retrying), errBusy, "", 0, 2},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(tt.options)
			publish(t, broker.Broker, "orders", "one", "two")
			cfg := quiet()
			cfg.DrainTimeout, cfg.HoldLimit, cfg.Retry = 10*time.Second, time.Hour, every(time.Minute, 3)
			var runs atomic.Int32
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				runs.Add(1)
				return tt.result
			}))
			time.Sleep(30 * time.Second)
			began := time.Now()
			err := w.shutdown()
			if took := time.Since(began); took > 11*time.Second {
				t.Errorf("the drain took %v, want 11s at most", took)
			}
			if errors.Is(err, consumer.ErrUnclean) != (tt.err != "") || !strings.Contains(fmt.Sprint(err), tt.err) {
				t.Errorf("Run = %v, want ErrUnclean that tells of %q", err, tt.err)
			}
			if runs.Load() != 2 {
				t.Errorf("%d runs, want no second one", runs.Load())
			}
			holds(t, broker, "orders", memory.Stats{Ready: tt.left})
			if n := broker.Len("orders.dead"); n != tt.dead {
				t.Errorf("%d dead letters, want %d", n, tt.dead)
			}
			for _, r := range broker.Records("orders") {
				if name == "dead letters are refused" && (r.Abandoned != 0 || r.Meta.Death == nil || r.Meta.Death.Attempt != 1 || r.Meta.Death.ErrorText != "no such article") {
					t.Errorf("given back as %+v, want its attempt counted, and its Death", r)
				}
			}
		})
	}
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
		send(t, broker, "orders", m)
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
