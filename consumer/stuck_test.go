package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// ignoring is a handler that ignores its context for d, if the message says so.
func ignoring(d time.Duration, result error) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.Handle("orders", func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "deaf" {
				time.Sleep(d)
				return result
			}
			return nil
		})
	}
}

func TestStuckHandlerIsReportedAndKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "deaf", "deaf")
		cfg := quiet()
		seen := record(&cfg)
		cfg.Concurrency, cfg.HandlerTimeout = 3, time.Minute
		w := start(t, broker, cfg, ignoring(5*time.Minute, nil))
		time.Sleep(2 * time.Minute)
		publish(t, broker.Broker, "orders", "well")
		w.stopAfter(10 * time.Minute)
		seen.expect(t, consumer.EventStuck, "1m10s deaf", "1m10s deaf")
		seen.expect(t, consumer.EventUnstuck, "5m0s deaf", "5m0s deaf")
		seen.expect(t, acked, "2m0s well", "5m0s deaf", "5m0s deaf")
		for _, e := range seen.of(consumer.EventStuck) {
			if e.Attempt != 1 || e.Duration != 70*time.Second || e.Err == nil {
				t.Errorf("stuck event %+v", e)
			}
		}
		for _, e := range seen.of(consumer.EventUnstuck) {
			if e.Attempt != 1 || e.Duration != 5*time.Minute {
				t.Errorf("unstuck event %+v", e)
			}
		}
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestOnlySlotIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "deaf", "well")
		cfg := quiet()
		seen := record(&cfg)
		cfg.Concurrency, cfg.HandlerTimeout = 1, time.Minute
		w := start(t, broker, cfg, ignoring(5*time.Minute, nil))
		w.stopAfter(10 * time.Minute)
		seen.expect(t, consumer.EventStarted, "0s deaf", "5m0s well")
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestDrainWithAStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "deaf")
		cfg := quiet()
		seen := record(&cfg)
		cfg.DrainTimeout = 10 * time.Second
		w := start(t, broker, cfg, ignoring(time.Hour, nil))
		time.Sleep(time.Minute)
		began := time.Now()
		err := w.shutdown()
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the drain took %v, want 10s to 11s", took)
		}
		if !errors.Is(err, consumer.ErrUnclean) || !strings.Contains(err.Error(), `the handler of "orders" ignores its context`) {
			t.Errorf("Run = %v, want ErrUnclean that names the topic", err)
		}
		holds(t, broker, "orders", memory.Stats{Ready: 1})
		if n := broker.Records("orders")[0].Abandoned; n != 0 {
			t.Errorf("given back as abandoned %d times", n)
		}
		seen.expect(t, consumer.EventStuck, "1m10.5s deaf")
		if e := seen.of(consumer.EventStuck)[0]; e.Err == nil || e.Duration != 70500*time.Millisecond {
			t.Errorf("stuck event %+v", e)
		}
		time.Sleep(2 * time.Hour) // the handler returns meanwhile
		broker.settled(t, "release deaf")
		holds(t, broker, "orders", memory.Stats{Ready: 1})
	})
}

// Both happen at one time, on two goroutines.
func TestHandlerReturnsAsItIsReportedStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "deaf")
		cfg := quiet()
		cfg.HandlerTimeout, cfg.Retry = time.Minute, every(time.Hour, 2)
		w := start(t, broker, cfg, ignoring(70*time.Second, errBusy))
		w.stopAfter(2 * time.Minute)
		if got := broker.Records("orders"); len(got) != 1 || got[0].Meta.Attempt != 1 {
			t.Errorf("stored %+v, want the message with one attempt", got)
		}
	})
}

// The handler returns as its message is given back, or after that, but before
// Run does, because another settlement cannot be confirmed.
func TestStuckHandlerReturnsDuringTheDrain(t *testing.T) {
	for name, result := range map[string]error{
		"success": nil, "retry": errBusy, "poison": classify.Permanent(errBusy), "interrupted": context.Canceled,
	} {
		for _, late := range []time.Duration{500 * time.Millisecond, 750 * time.Millisecond} {
			bubble(t, fmt.Sprint(name, late), func(t *testing.T) { returnsLate(t, 10*time.Second+late, result) })
		}
	}
}

func returnsLate(t *testing.T, after time.Duration, result error) {
	broker := newTap(with(memory.Fault{Err: errors.New("i/o timeout")}, func(op memory.Op) bool { return op.Operation == memory.Settle && op.ID == "well" }))
	for _, id := range []string{"deaf", "well"} {
		send(t, broker.Broker, "orders", brokers.Message{ID: id, Key: id, Body: []byte(id)})
	}
	cfg := quiet()
	cfg.DrainTimeout, cfg.OrderByKey = 10*time.Second, true
	cfg.Retry = every(time.Hour, 2)
	given := after > 10*time.Second+500*time.Millisecond
	seen := new(recorder)
	if given { // otherwise its lock would hide a race
		seen = record(&cfg)
	}
	w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
		if m.ID == "well" {
			return errBusy
		}
		time.Sleep(after)
		return result
	}))
	synctest.Wait()
	began := time.Now()
	if err := w.shutdown(); !errors.Is(err, consumer.ErrUnclean) {
		t.Errorf("Run = %v, want ErrUnclean", err)
	}
	if took := time.Since(began); took != 11*time.Second {
		t.Errorf("the drain took %v, want 11s", took)
	}
	var settled []string
	for _, c := range broker.of("ack", "retry", "release") {
		if c.id == "deaf" {
			settled = append(settled, c.what)
		}
	}
	if len(settled) > 1 {
		t.Errorf("the message was settled by %q, want one settlement at most", settled)
	}
	if given && !slices.Equal(settled, []string{"release"}) {
		t.Errorf("the message was settled by %q, want it given back", settled)
	}
	for _, e := range append(seen.of(consumer.EventSucceeded), seen.of(consumer.EventFailed)...) {
		if e.Message.ID == "deaf" {
			t.Errorf("%s is reported of a message that was given back", e.Kind)
		}
	}
	if n := broker.Len("orders"); n != 2 && !slices.Contains(settled, "ack") || broker.Stats("orders").InFlight != 0 {
		t.Errorf("the message was settled by %q, and after Run: %+v", settled, broker.Stats("orders"))
	}
}
