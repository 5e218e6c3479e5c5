package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

// counting handles orders without fault and counts the runs.
func counting(runs *atomic.Int32) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.Handle("orders", func(context.Context, *brokers.Message) error {
			runs.Add(1)
			return nil
		})
	}
}

func TestFailedAckIsRepeatedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 20
		broker := newTap(memory.Options{Lease: 5 * time.Second,
			Fault: on(memory.Settle, failures, memory.Fault{Err: errors.New("i/o timeout")})})
		publish(t, broker, "orders", "one")
		cfg := quiet()
		seen := record(&cfg)
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		w.stopAfter(10 * time.Minute)
		acks := broker.of("ack")
		if len(acks) != failures+1 || runs.Load() != 1 {
			t.Fatalf("%d acks and %d runs, want %d and 1", len(acks), runs.Load(), failures+1)
		}
		for i := 1; i < len(acks); i++ {
			if gap := acks[i].at - acks[i-1].at; gap < time.Second || gap > 15*time.Second {
				t.Errorf("acks at %v and %v, want 1 to 15 s between them", acks[i-1].at, acks[i].at)
			}
		}
		if got := len(seen.of(consumer.EventError)); got != failures {
			t.Errorf("%d errors reported, want %d", got, failures)
		}
		for _, e := range seen.of(consumer.EventError) {
			if e.Operation != "ack" {
				t.Fatalf("operation %q failed, want %q", e.Operation, "ack")
			}
		}
		if got := len(seen.of(acked)); got != 1 {
			t.Errorf("%d acks reported, want 1", got)
		}
		empty(t, broker.Broker, "orders")
	})
}

// While settlements fail they are tried ever less often, and after a success
// soon again.
func TestSettlementsBackOffAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		broker := newTap(with(memory.Fault{Err: errors.New("i/o timeout")}, func(op memory.Op) bool { return op.Operation == memory.Settle && down.Load() }))
		var runs atomic.Int32
		w := start(t, broker, quiet(), counting(&runs))
		// outage returns the gaps between the acks of a message in an outage.
		outage := func(d time.Duration) (gaps []time.Duration) {
			before := len(broker.of("ack"))
			down.Store(true)
			publish(t, broker, "orders", "one")
			time.Sleep(d)
			down.Store(false)
			time.Sleep(time.Minute)
			acks := broker.of("ack")[before:]
			for i := 1; i < len(acks); i++ {
				gaps = append(gaps, acks[i].at-acks[i-1].at)
			}
			return gaps
		}
		if longest := slices.Max(outage(time.Hour)); longest <= 8*time.Second || longest > 15*time.Second {
			t.Errorf("in an hour without an ack there are at most %v between two, want up to 15 s", longest)
		}
		for range 10 {
			if gaps := outage(500 * time.Millisecond); len(gaps) != 1 || gaps[0] > 2*time.Second {
				t.Errorf("after the first failure since a success it takes %v, want 2 s at most", gaps)
			}
		}
		w.mustShutdown()
	})
}

func TestErrorsNameTheirOperation(t *testing.T) {
	for want, handle := range map[string]consumer.Handler{
		"ack":     func(context.Context, *brokers.Message) error { return nil },
		"retry":   func(context.Context, *brokers.Message) error { return errBusy },
		"release": func(context.Context, *brokers.Message) error { time.Sleep(time.Minute); return nil }, // while another waits
	} {
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{Lease: time.Hour, Fault: on(memory.Settle, 1, memory.Fault{Err: errors.New("i/o timeout")})})
			publish(t, broker, "orders", "one", "two")
			cfg := quiet()
			seen := record(&cfg)
			cfg.Retry = every(time.Hour, 2)
			cfg.Concurrency, cfg.HoldLimit, cfg.DrainTimeout = 1, -1, time.Minute
			w := start(t, broker, cfg, orders(handle))
			w.stopAfter(30 * time.Second)
			failed := seen.of(consumer.EventError)
			if len(failed) == 0 || failed[0].Operation != want {
				t.Errorf("errors %+v, want the first to be of %q", failed, want)
			}
		})
	}
}

func TestUnknownOutcomeOfAnAck(t *testing.T) {
	for _, done := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{Fault: on(memory.Settle, 1, memory.Fault{Err: brokers.ErrUnknownOutcome, Done: done})})
			publish(t, broker, "orders", "one")
			var runs atomic.Int32
			w := start(t, broker, quiet(), counting(&runs))
			w.stopAfter(time.Minute)
			if acks := broker.of("ack"); len(acks) != 2 || runs.Load() != 1 {
				t.Errorf("done %v: %d acks and %d runs, want a second ack and no second run", done, len(acks), runs.Load())
			}
			empty(t, broker.Broker, "orders")
		})
	}
}

func TestUnknownOutcomeOfARetryLosesNothing(t *testing.T) {
	for _, fault := range []memory.Fault{
		{Err: brokers.ErrUnknownOutcome},
		{Err: brokers.ErrUnknownOutcome, Done: true},
		{Err: brokers.ErrUnknownOutcome, Duplicate: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{Fault: on(memory.Settle, 1, fault)})
			publish(t, broker.Broker, "orders", "one")
			cfg := quiet()
			cfg.Retry = every(time.Minute, 2)
			d := newDiary()
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				d.write("run")
				return errBusy
			}))
			w.stopAfter(10 * time.Minute)
			want := 2
			if fault.Duplicate {
				want = 3
			}
			if late := d.times(); len(late) != want || late[1] < time.Minute {
				t.Errorf("%+v: runs at %v, want %d and none but the first before 1m", fault, late, want)
			}
			if n := len(deadLetters(t, broker, "orders")); n != want-1 {
				t.Errorf("%+v: %d dead letters, want %d", fault, n, want-1)
			}
			empty(t, broker.Broker, "orders")
		})
	}
}

func TestFinalSettleErrorsAreNotRepeated(t *testing.T) {
	for _, final := range []error{brokers.ErrLeaseLost, brokers.ErrSettled, brokers.ErrClosed} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{Lease: time.Hour, Fault: on(memory.Settle, 1, memory.Fault{Err: fmt.Errorf("adapter: %w", final)})})
			publish(t, broker, "orders", "one")
			cfg := quiet()
			seen := record(&cfg)
			var runs atomic.Int32
			w := start(t, broker, cfg, counting(&runs))
			w.stopAfter(10 * time.Minute)
			if acks := broker.of("ack"); len(acks) != 1 || runs.Load() != 1 {
				t.Errorf("%v: %d acks and %d runs, want 1 and 1", final, len(acks), runs.Load())
			}
			lost := seen.of(consumer.EventLeaseLost)
			if final == brokers.ErrSettled { // an earlier settlement stands
				if len(lost) != 0 || len(seen.of(acked)) != 1 {
					t.Errorf("%v: events %v, want one ack and nothing lost", final, seen.kinds())
				}
				return
			}
			if len(lost) != 1 || !errors.Is(lost[0].Err, final) || len(seen.of(acked)) != 0 {
				t.Errorf("%v: events %v, want one lease-lost and no ack", final, seen.kinds())
			}
		})
	}
}

func TestPartlyFailedSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			switch {
			case op.Operation != memory.Settle:
			case op.ID == "first":
				return memory.Fault{Latency: time.Second} // lets the others gather
			case op.ID == "3" && op.Nth == 1:
				return memory.Fault{Err: errBusy}
			}
			return memory.Fault{}
		}})
		for _, id := range []string{"first", "2", "3", "4"} {
			send(t, broker, "orders", brokers.Message{ID: id, Body: []byte(id)})
		}
		cfg := quiet()
		cfg.Concurrency, cfg.Prefetch = 1, 5
		var runs atomic.Int32
		w := start(t, broker, cfg, counting(&runs))
		w.stopAfter(time.Minute)
		settled := map[string]int{}
		for _, c := range broker.of("ack") {
			if !c.failed {
				settled[c.body]++
			}
			if c.body != "3" && c.at != time.Second {
				t.Errorf("ack of %s at %v, want it after 1s whatever happens to others", c.body, c.at)
			}
		}
		if len(settled) != 4 || runs.Load() != 4 {
			t.Errorf("settled %v after %d runs, want each of 4 after one run", settled, runs.Load())
		}
	})
}

func TestWrongNumberOfSettleErrorsIsAnUnknownOutcome(t *testing.T) {
	for _, wrong := range [][]error{{}, {nil, nil, nil, nil, nil}} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{})
			calls := 0
			broker.settle = func(_ []brokers.Settlement, errs []error) []error {
				if calls++; calls == 1 {
					return wrong
				}
				return errs
			}
			publish(t, broker, "orders", "one")
			cfg := quiet()
			seen := record(&cfg)
			var runs atomic.Int32
			w := start(t, broker, cfg, counting(&runs))
			w.stopAfter(time.Minute)
			failed := seen.of(consumer.EventError)
			if calls != 2 || runs.Load() != 1 || len(failed) != 1 || !errors.Is(failed[0].Err, brokers.ErrUnknownOutcome) {
				t.Errorf("%d answers: %d calls, %d runs, errors %+v; want a repeat after an unknown outcome", len(wrong), calls, runs.Load(), failed)
			}
		})
	}
}

// An operator has taken a right away, or deleted the queue where retries wait. The
// messages that need it wait in the worker. The worker handles all other messages
// as before: those of another topic, and the rest of the same topic.
func TestDeniedSettlementsStopNothingElse(t *testing.T) {
	denied := fmt.Errorf("access denied: %w", brokers.ErrMisconfigured)
	for _, action := range []brokers.Action{brokers.Ack, brokers.Retry} {
		bubble(t, action.String(), func(t *testing.T) {
			var cured atomic.Bool
			broker := newTap(memory.Options{Lease: 5 * time.Minute, Fault: func(op memory.Op) memory.Fault {
				if op.Operation == memory.Settle && op.Topic == "orders" && op.Action == action && !cured.Load() {
					return memory.Fault{Err: denied}
				}
				return memory.Fault{}
			}})
			cfg := quiet()
			seen := record(&cfg)
			cfg.Retry = every(time.Minute, 5)
			runs := make(map[string]int) // needs no lock: Concurrency is 1
			cfg.Concurrency, cfg.MaxConcurrency = 1, 1
			h := func(_ context.Context, m *brokers.Message) error {
				body := m.Topic + " " + string(m.Body)
				runs[body]++
				if string(m.Body) == "busy" && runs[body] == 1 {
					return errBusy
				}
				return nil
			}
			publish(t, broker, "orders", "busy")
			w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", h); c.Handle("refunds", h) })
			for n := range 100 {
				time.Sleep(10 * time.Second)
				publish(t, broker, "refunds", fmt.Sprint(n))
				if n == 0 && action == brokers.Retry {
					publish(t, broker, "orders", "good")
				}
			}
			time.Sleep(time.Minute)
			empty(t, broker.Broker, "refunds")
			if n := broker.Len("orders"); n != 1 || runs["orders busy"] > 2 {
				t.Errorf("%d orders are left, the busy one ran %d times; want it alone, without a run for each repeat", n, runs["orders busy"])
			}
			for _, e := range seen.of(consumer.EventError) {
				if e.Topic != "orders" || e.Operation != action.String() || !errors.Is(e.Err, denied) {
					t.Errorf("event %+v, want the topic and the denial", e)
				}
			}
			if n := len(seen.of(consumer.EventError)); n == 0 || n > 600 {
				t.Errorf("%d errors in a quarter of an hour, want some, and not more than one in two seconds", n)
			}
			cured.Store(true)
			time.Sleep(2 * time.Minute)
			empty(t, broker.Broker, "orders")
			w.mustShutdown()
			empty(t, broker.Broker, "orders.dead", "refunds.dead")
		})
	}
}

func TestSlowRetryDoesNotDelayAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(with(memory.Fault{Latency: 20 * time.Second}, func(op memory.Op) bool { return op.Operation == memory.Settle && op.Action == brokers.Retry }))
		publish(t, broker, "orders", "bad", "good")
		cfg := quiet()
		cfg.Concurrency, cfg.Retry = 1, every(time.Hour, 5)
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "bad" {
				return errBusy
			}
			return nil
		}))
		synctest.Wait()
		acks := broker.of("ack")
		if len(acks) != 1 || acks[0].body != "good" || acks[0].at != 0 {
			t.Errorf("acks %+v, want that of the good message at once", acks)
		}
		time.Sleep(2 * time.Minute)
		if retries := broker.of("retry"); len(retries) != 1 || retries[0].at != 20*time.Second {
			t.Errorf("retries %+v, want one after 20s", retries)
		}
		w.mustShutdown()
	})
}

func TestHangingSettlementIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: time.Hour, Fault: on(memory.Settle, 1, memory.Fault{Latency: 24 * time.Hour})})
		publish(t, broker, "orders", "one")
		var runs atomic.Int32
		w := start(t, broker, quiet(), counting(&runs))
		time.Sleep(time.Minute)
		if runs.Load() != 1 {
			t.Errorf("%d runs, want 1", runs.Load())
		}
		empty(t, broker.Broker, "orders")
		w.mustShutdown()
	})
}
