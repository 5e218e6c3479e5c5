package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/budget"
)

// ledgered is a budget that notes what is asked of it.
type ledgered struct {
	budget.Pacer
	mu                        sync.Mutex
	deposited, granted, given int
	longest                   time.Duration // most, at the latest
	withdraw                  func(most time.Duration) (time.Duration, bool)
	panics                    bool
	takes                     time.Duration
}

func newLedgered() *ledgered { return &ledgered{Pacer: must(budget.New(budget.Queue()))} }

func (b *ledgered) enter() {
	if b.takes > 0 {
		time.Sleep(b.takes)
	}
	if b.panics {
		panic("the store is down")
	}
	b.mu.Lock()
}

func (b *ledgered) Deposit(now time.Time, n int) {
	b.enter()
	defer b.mu.Unlock()
	b.deposited += n
	b.Pacer.Deposit(now, n)
}

func (b *ledgered) Withdraw(now time.Time, most time.Duration, random float64) (time.Duration, bool) {
	b.enter()
	defer b.mu.Unlock()
	b.longest = most
	var wait time.Duration
	var ok bool
	if b.withdraw != nil {
		wait, ok = b.withdraw(most)
	} else {
		wait, ok = b.Pacer.Withdraw(now, most, random)
	}
	if ok {
		b.granted++
	}
	return wait, ok
}

func (b *ledgered) Refund(now time.Time) {
	b.enter()
	defer b.mu.Unlock()
	b.given++
	b.Pacer.Refund(now)
}

// A token is spent when a retry starts, and given back if that succeeds or says
// nothing.
func TestTokenIsSpentWhenARetryStarts(t *testing.T) {
	lost := func([]error) []error { return []error{brokers.ErrLeaseLost} }
	for _, tt := range []struct {
		name           string
		delay, hold    time.Duration
		fails          []error
		extend         func([]error) []error
		granted, given int
	}{
		{"no retry", time.Second, 0, []error{nil}, nil, 0, 0},
		{"success", time.Second, 0, []error{errBusy, nil}, nil, 1, 1},
		{"success through the broker", time.Second, -1, []error{errBusy, nil}, nil, 1, 1},
		{"failure", time.Second, 0, []error{errBusy, errBusy, nil}, nil, 2, 1},
		{"poison in the end", time.Second, 0, []error{errBusy, classify.Permanent(errBusy)}, nil, 1, 0},
		{"throttled", time.Second, 0, []error{errBusy, classify.Throttled(errBusy, time.Second), nil}, nil, 2, 1},
		{"deferred", time.Second, 0, []error{errBusy, classify.Defer(errBusy, time.Second), nil}, nil, 2, 2},
		{"not due yet", time.Hour, 0, []error{errBusy, nil}, nil, 0, 0},
		{"lost before", 12 * time.Second, time.Hour, []error{errBusy, nil}, lost, 0, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := tapWith("orders", "one")
			broker.extend = tt.extend
			b := newLedgered()
			cfg := quiet()
			cfg.Guard.Budget, cfg.Lease = b, 20*time.Second
			cfg.HoldLimit, cfg.Retry = tt.hold, every(tt.delay, 9)
			runs := 0
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				runs++
				return tt.fails[runs-1]
			}))
			w.stopAfter(11 * time.Second)
			if b.deposited != 1 || b.granted != tt.granted || b.given != tt.given {
				t.Errorf("%d delivered, %d granted and %d given back, want 1, %d and %d", b.deposited, b.granted, b.given, tt.granted, tt.given)
			}
		})
	}
}

// A retry of a batch that fails as a whole spends one token for all its parts.
func TestPartsOfABatchShareTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 8)
		b := newLedgered()
		b.withdraw = func(time.Duration) (time.Duration, bool) { return 0, true }
		cfg := quiet()
		cfg.Guard.Budget, cfg.Retry = b, every(time.Second, 9)
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(_ context.Context, batch []brokers.Item) []error {
				results := make([]error, len(batch))
				for i, item := range batch {
					switch {
					case item.Meta.Attempt == 1:
						results[i] = fmt.Errorf("not yet: %s", item.Message.Body) // each its own failure
					case len(batch) > 1:
						results[i] = errBusy
					}
				}
				return results
			}, consumer.TopicConfig{BatchSize: 8})
		})
		w.stopAfter(time.Minute)
		if b.granted != 8 || b.given != 8 {
			t.Errorf("%d granted and %d given back, want one for each of 8 retries", b.granted, b.given)
		}
		empty(t, broker, "orders", "orders.dead")
	})
}

// What finds no token waits, uncounted, and no retry starts before its time.
func TestRetryWithoutATokenWaits(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := newTap(memory.Options{})
		flood(t, broker.Broker, "orders", 200)
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = hold, every(5*time.Second, 9)
		cfg.Guard.Budget = must(budget.New(budget.Queue()))
		var mu sync.Mutex
		runs, early, attempts := 0, 0, 0
		began := time.Now()
		var last time.Time
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			meta := consumer.MetaFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			runs++
			attempts = max(attempts, meta.Attempt)
			if now := time.Now(); now.Before(meta.DueAt) || meta.Attempt > 1 && now.Before(began.Add(5*time.Second)) {
				early++
			}
			last = time.Now()
			if meta.Attempt == 1 && m.Body[len(m.Body)-1]%2 == 0 {
				return errBusy
			}
			return nil
		}))
		w.stopAfter(time.Hour)
		if runs != 300 || early != 0 || attempts != 2 {
			t.Errorf("%d runs, %d before their time, up to attempt %d, want 300, none and 2", runs, early, attempts)
		}
		if took := last.Sub(began); took < 7*time.Second || took > 2*time.Minute {
			t.Errorf("the last retry started after %v, want the 100 spread, and not for long as they succeed", took)
		}
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// In an outage, retries are what the budget says, however many messages failed.
// This is about the budget, so nothing else stops them.
func TestBudgetBoundsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := &dependency{down: unavailable}
		cfg := quiet()
		cfg.Retry = every(time.Second, 100)
		cfg.Guard.Budget = must(budget.New(budget.Queue()))
		w := start(t, broker, cfg, d.register("orders"))
		for i := range 600 { // 10/s for a minute, all of which fail
			publish(t, broker, "orders", fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		// The share of 10 % and the floor of 1/s are 2 retries a second, and what
		// was saved up.
		if runs := d.runs(); runs > 600+2*60+30 || runs < 600+60 {
			t.Errorf("%d runs of 600 messages in a minute, want some 120 to 150 retries", runs)
		}
		d.set(nil)
		time.Sleep(5 * time.Minute)
		if d.done() != 600 {
			t.Errorf("%d of 600 served five minutes after the outage", d.done())
		}
		w.mustShutdown()
	})
}

// No wait for a token is longer than the longest delay of the topic's own policy.
func TestWaitForATokenIsWithinThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		b := newLedgered()
		cfg := quiet()
		cfg.Guards = map[string]consumer.Guard{"orders": {Budget: b}}
		policy := every(time.Second, 3)
		policy.Backoff.Cap, policy.MaxRetryAfter, policy.EnvironmentDelay = 10*time.Second, 7*time.Second, 5*time.Second
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleWith("orders", func(context.Context, *brokers.Message) error { return errBusy }, consumer.TopicConfig{Retry: &policy})
			c.Handle("mails", func(context.Context, *brokers.Message) error { return nil })
		})
		w.stopAfter(time.Minute)
		if b.longest != 10*time.Second {
			t.Errorf("a retry may be told to wait for %v, want 10s", b.longest)
		}
	})
}

// A deferred run says nothing: not against the message, nor about the
// dependency. It holds up nobody else, and nobody holds it up.
func TestDeferredRunsAreNeverCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		runs := map[string]int{}
		var mu sync.Mutex
		cfg := quiet()
		cfg.Retry.MaxAttempts = 1
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if got := consumer.MetaFrom(ctx).Attempt; got != 1 {
				t.Errorf("run %d of %s is attempt %d, want 1", runs[string(m.Body)]+1, m.Body, got)
			}
			if runs[string(m.Body)]++; runs[string(m.Body)] <= 30 {
				return classify.Defer(errBusy, 5*time.Second)
			}
			return nil
		}))
		w.stopAfter(15 * time.Minute)
		if paused := seen.of(consumer.EventPaused); len(paused) != 0 {
			t.Errorf("paused: %v", paused[0].Err)
		}
		for body, n := range runs {
			if n != 31 {
				t.Fatalf("%s ran %d times, want 31", body, n)
			}
		}
		if len(runs) != 100 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 100 ran, %d are dead", len(runs), broker.Len("orders.dead"))
		}
	})
}

// Whatever a budget of the user's does, messages are neither lost nor stuck, and
// the worker does not spin.
func TestFaultyBudgets(t *testing.T) {
	for name, change := range map[string]func(*ledgered){
		"panics":           func(b *ledgered) { b.panics = true },
		"slow":             func(b *ledgered) { b.takes = time.Second },
		"waits 0":          func(b *ledgered) { b.withdraw = everyTenth(0) },
		"waits less":       func(b *ledgered) { b.withdraw = everyTenth(-time.Hour) },
		"waits too long":   func(b *ledgered) { b.withdraw = everyTenth(1 << 62) },
		"grants with wait": func(b *ledgered) { b.withdraw = func(time.Duration) (time.Duration, bool) { return time.Hour, true } },
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			flood(t, broker, "orders", 50)
			b := newLedgered()
			change(b)
			cfg := quiet()
			cfg.Guard.Budget, cfg.Retry = b, every(time.Second, 9)
			seen := record(&cfg)
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if consumer.MetaFrom(ctx).Attempt == 1 && m.Body[len(m.Body)-1]%2 == 0 {
					return errBusy
				}
				return nil
			}))
			w.stopAfter(10 * time.Hour)
			if n := len(seen.of(consumer.EventSucceeded)); n != 50 || len(seen.of(consumer.EventFailed)) != 25 {
				t.Errorf("%d successes and %d failures, want 50 and 25", n, len(seen.of(consumer.EventFailed)))
			}
			empty(t, broker, "orders", "orders.dead")
			faults := seen.of(consumer.EventError)
			for _, e := range faults {
				if e.Operation != "budget" || e.Dependency != "orders" || !strings.Contains(e.Err.Error(), "the store is down") {
					t.Fatalf("error event %+v, want the budget's", e)
				}
			}
			if (len(faults) > 0) != b.panics {
				t.Errorf("%d faults reported", len(faults))
			}
		})
	}
}

// everyTenth grants every tenth retry, and lets the others wait.
func everyTenth(wait time.Duration) func(time.Duration) (time.Duration, bool) {
	asked := 0
	return func(time.Duration) (time.Duration, bool) {
		asked++
		return wait, asked%10 == 0
	}
}

// A budget that grants nothing keeps retries waiting for ever, uncounted; the
// worker can be stopped all the same, and what is new flows.
func TestBudgetThatGrantsNothing(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := newTap(memory.Options{})
		flood(t, broker.Broker, "orders", 20)
		b := newLedgered()
		b.withdraw = func(most time.Duration) (time.Duration, bool) { return most, false }
		d := &dependency{}
		cfg := quiet()
		cfg.Guard.Budget, cfg.HoldLimit, cfg.Retry = b, hold, every(time.Second, 9)
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if n := consumer.MetaFrom(ctx).Attempt; n > 1 || m.Body[0] == '1' {
				if n > 1 {
					t.Errorf("message %s was retried", m.Body)
				}
				return errors.New("no such column")
			}
			return d.handle(ctx, m)
		}))
		w.stopAfter(10 * time.Hour)
		if d.done() != 9 || broker.Len("orders") != 11 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 9 good ones served, %d of 11 others left", d.done(), broker.Len("orders"))
		}
		for _, record := range broker.Records("orders") {
			if record.Meta.Attempt != 1 {
				t.Errorf("%s has %d attempts, want 1", record.Message.Body, record.Meta.Attempt)
			}
		}
	})
}
