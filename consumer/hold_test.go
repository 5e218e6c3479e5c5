package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

func TestShortDelayIsHeldWithoutASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "bad", "good")
		cfg := quiet()
		cfg.Concurrency, cfg.Retry = 1, every(time.Second, 3)
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			d.write("run %s, attempt %d", m.Body, consumer.MetaFrom(ctx).Attempt)
			if string(m.Body) == "bad" && consumer.MetaFrom(ctx).Attempt == 1 {
				return errBusy
			}
			return nil
		}))
		synctest.Wait()
		holds(t, broker, "orders", memory.Stats{InFlight: 1})
		w.stopAfter(time.Minute)
		d.expect(t, "0s run bad, attempt 1", "0s run good, attempt 1", "1s run bad, attempt 2")
		if calls := broker.of("retry"); len(calls) > 0 {
			t.Errorf("the broker was asked for a retry: %+v", calls)
		}
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// What is due within a millisecond is resumed together, and nothing early. That
// is seen only where no budget spreads retries.
func TestHeldRunsAreResumedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "1", "2", "3", "4")
		cfg := quiet()
		cfg.Concurrency, cfg.Retry, cfg.Guard.Off = 1, every(time.Second, 3), true
		pauses := map[string]time.Duration{"2": 200 * time.Microsecond, "3": 200 * time.Microsecond, "4": 5 * time.Millisecond}
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if consumer.MetaFrom(ctx).Attempt > 1 {
				d.write("run %s", m.Body)
				return nil
			}
			time.Sleep(pauses[string(m.Body)])
			return errBusy
		}))
		w.stopAfter(time.Minute)
		d.expect(t, "1s run 1", "1.001s run 2", "1.001s run 3", "1.0054s run 4")
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// A run that is held later may be due earlier.
func TestHeldRunsAreResumedInTheOrderOfTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "twice")
		cfg := quiet()
		cfg.Retry = every(time.Second, 5)
		cfg.Retry.Backoff.Multiplier = 2
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			d.write("run %s", m.Body)
			if attempt := consumer.MetaFrom(ctx).Attempt; attempt == 1 || attempt == 2 && string(m.Body) == "twice" {
				return errBusy
			}
			return nil
		}))
		time.Sleep(1500 * time.Millisecond)
		publish(t, broker, "orders", "once")
		w.stopAfter(time.Minute)
		d.expect(t, "0s run twice", "1s run twice", "1.5s run once", "2.5s run once", "3s run twice")
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestHeldLeaseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 2 * time.Second})
		publish(t, broker, "orders", "one")
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = 10*time.Minute, every(5*time.Minute, 3)
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			d.write("attempt %d", consumer.MetaFrom(ctx).Attempt)
			if consumer.MetaFrom(ctx).Attempt == 1 {
				return errBusy
			}
			return nil
		}))
		time.Sleep(4 * time.Minute)
		if got := broker.Records("orders")[0].Abandoned; got != 0 {
			t.Errorf("the lease ran out %d times", got)
		}
		w.stopAfter(6 * time.Minute)
		d.expect(t, "0s attempt 1", "5m0s attempt 2")
		empty(t, broker.Broker, "orders")
		if n := len(broker.of("extend")); n < 150 || n > 600 {
			t.Errorf("%d extensions of a lease of 2 s in 5 min, want about 300", n)
		}
	})
}

func TestFullHoldSendsRetriesToTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "1", "2", "3", "4", "5")
		cfg := quiet()
		cfg.MaxHeld, cfg.Retry = 2, every(time.Second, 3)
		began := time.Now()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if consumer.MetaFrom(ctx).Attempt == 1 {
				return errBusy
			}
			if got := time.Since(began); got < time.Second || got > 2*time.Second {
				t.Errorf("message %s was retried after %v, want 1s, and a little more for what finds no token", m.Body, got)
			}
			return nil
		}))
		synctest.Wait()
		holds(t, broker, "orders", memory.Stats{InFlight: 2, Delayed: 3})
		w.stopAfter(time.Minute)
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestLongDelayGoesToTheBrokerWithItsMeta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		cfg := quiet()
		cfg.Retry = every(10*time.Second, 3)
		began := time.Now()
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Transient(errBusy) }))
		time.Sleep(15 * time.Second) // the second run failed at 10 s
		synctest.Wait()
		records := broker.Records("orders")
		if len(records) != 1 {
			t.Fatalf("%d messages stored, want 1", len(records))
		}
		second, due := began.Add(10*time.Second), began.Add(20*time.Second)
		m := records[0].Meta
		if !records[0].DueAt.Equal(due) || !m.DueAt.Equal(due) || m.Attempt != 2 || m.Delay != 10*time.Second ||
			!m.FirstFailedAt.Equal(began) || !m.LastFailedAt.Equal(second) || m.Class != "transient" || m.Throttles != 0 {
			t.Errorf("stored until %v with %+v", records[0].DueAt, m)
		}
		if len(m.History) != 2 {
			t.Fatalf("History = %+v, want two failures", m.History)
		}
		for i, f := range m.History {
			at := began.Add(time.Duration(i) * 10 * time.Second)
			if f.Attempt != i+1 || !f.At.Equal(at) || f.Class != "transient" || f.Fingerprint == "" || f.Delay != 10*time.Second {
				t.Errorf("History[%d] = %+v", i, f)
			}
		}
		w.mustShutdown()
	})
}

// Where holding is dear, a first delivery goes to the broker after all, unless
// its key waits for it; what has been there for a retry is held as ever.
func TestHoldingThatIsDear(t *testing.T) {
	for _, tt := range []struct {
		name    string
		delay   time.Duration
		byKey   bool
		hold    time.Duration
		retries int // through the broker, of three
	}{
		{"shorter than what is dear", 20 * time.Millisecond, false, 0, 0},
		{"longer", 21 * time.Millisecond, false, 0, 1},
		{"holding is off", 10 * time.Millisecond, false, -1, 3},
		{"by key", time.Second, true, 0, 0},
		{"by key, longer than the limit", 3 * time.Second, true, 0, 3},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			broker.maxHold = 20 * time.Millisecond
			send(t, broker, "orders", brokers.Message{Key: "k", Body: []byte("one")})
			cfg := quiet()
			cfg.OrderByKey, cfg.HoldLimit, cfg.Retry = tt.byKey, tt.hold, every(tt.delay, 5)
			began, runs := time.Now(), 0
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				if got, want := time.Since(began), time.Duration(runs)*tt.delay; got != want {
					t.Errorf("run %d at %v, want %v", runs+1, got, want)
				}
				if runs++; runs <= 3 {
					return classify.Transient(errBusy)
				}
				return nil
			}))
			w.stopAfter(time.Minute)
			if got := len(broker.of("retry")); got != tt.retries || runs != 4 {
				t.Errorf("%d runs, and %d retries through the broker; want 4 and %d", runs, got, tt.retries)
			}
			empty(t, broker.Broker, "orders", "orders.dead")
		})
	}
}

// What comes early by little is held even where nothing else is: a broker that
// came that close would bring it back as early again and again.
func TestEarlyArrivalIsNeverRunEarly(t *testing.T) {
	for _, tt := range []struct {
		early, hold time.Duration
		retries     int
	}{{time.Second, 0, 0}, {time.Second, -1, 0}, {time.Minute, 0, 1}, {time.Minute, -1, 1}} {
		early, retries := tt.early, tt.retries
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{})
			due := time.Now().Add(early)
			broker.deliver = func(delivery *brokers.Delivery) {
				delivery.Carried = &brokers.Meta{DueAt: due, Attempt: 3}
			}
			publish(t, broker, "orders", "one")
			cfg := quiet()
			seen := record(&cfg)
			cfg.HoldLimit = tt.hold
			var ran []time.Time
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				ran = append(ran, time.Now())
				if got := consumer.MetaFrom(ctx).Attempt; got != 4 {
					t.Errorf("attempt %d, want 4: arriving early is no attempt", got)
				}
				return nil
			}))
			w.stopAfter(time.Hour)
			if len(ran) != 1 || !ran[0].Equal(due) {
				t.Errorf("%v early: ran at %v, want once at %v", early, ran, due)
			}
			calls := broker.of("retry")
			if len(calls) != retries {
				t.Errorf("%v early: %d retries in the broker, want %d", early, len(calls), retries)
			}
			for _, c := range calls {
				if c.delay != early || !c.meta.DueAt.Equal(due) || c.meta.Attempt != 3 {
					t.Errorf("rescheduled by %v with %+v, want the rest of the delay and an unchanged Meta", c.delay, c.meta)
				}
			}
			if n := len(seen.of(consumer.EventFailed)); n != 0 {
				t.Errorf("%d failures reported", n)
			}
		})
	}
}

func TestHeldRunWhoseLeaseIsLostIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 2 * time.Second, Fault: on(memory.Extend, 1, memory.Fault{Lost: true})})
		publish(t, broker, "orders", "one")
		cfg := quiet()
		seen := record(&cfg)
		cfg.HoldLimit, cfg.Retry = 10*time.Minute, every(5*time.Minute, 3)
		var runs atomic.Int32
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			if runs.Add(1) == 1 {
				return errBusy
			}
			return nil
		}))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if runs.Load() != 2 {
			t.Errorf("%d runs, want 2: the second from the delivery after the lost one", runs.Load())
		}
		w.stopAfter(time.Hour)
		if runs.Load() != 2 {
			t.Errorf("%d runs, want 2: the lost one must not run when it would have been due", runs.Load())
		}
		lost := seen.of(consumer.EventLeaseLost)
		if len(lost) != 1 || !errors.Is(lost[0].Err, brokers.ErrLeaseLost) {
			t.Errorf("lease-lost events %+v, want one with ErrLeaseLost", lost)
		}
		broker.settled(t, "ack one")
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

func TestRetryThatTheLeaseCannotOutlastGoesToTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 2 * time.Second, MaxLease: 10 * time.Second})
		publish(t, broker, "orders", "one")
		cfg := quiet()
		seen := record(&cfg)
		cfg.HandlerTimeout = 3 * time.Second
		cfg.Retry = every(1900*time.Millisecond, 20)
		var runs atomic.Int32
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			runs.Add(1)
			if consumer.MetaFrom(ctx).Attempt == 20 {
				return nil
			}
			return classify.Transient(errBusy)
		}))
		w.stopAfter(time.Minute)
		if lost := seen.of(consumer.EventLeaseLost); len(lost) != 0 || runs.Load() != 20 {
			t.Errorf("%d runs and %d leases lost, want 20 and 0", runs.Load(), len(lost))
		}
		if got := len(broker.of("retry")); got < 4 {
			t.Errorf("%d retries through the broker, want one for each lease that was used up", got)
		}
	})
}
