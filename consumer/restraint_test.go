package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// protected is quiet with the default restraint.
func protected() consumer.Config {
	cfg := quiet()
	cfg.Restraint = consumer.Restraint{}
	return cfg
}

// dependency is what handlers call. It is down from one time to another.
type dependency struct {
	mu     sync.Mutex
	down   func() error // nil while it is up
	calls  []time.Time
	served map[string]int // by body
}

func (d *dependency) set(down func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

func (d *dependency) handle(_ context.Context, m *brokers.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, time.Now())
	if d.down != nil {
		return d.down()
	}
	if d.served == nil {
		d.served = map[string]int{}
	}
	d.served[string(m.Body)]++
	return nil
}

// since returns how many calls there were from a time on.
func (d *dependency) since(t time.Time) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range d.calls {
		if !at.Before(t) {
			n++
		}
	}
	return n
}

func flood(t *testing.T, broker brokers.Broker, topic string, n int) {
	t.Helper()
	bodies := make([]string, n)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i)
	}
	publish(t, broker, topic, bodies...)
}

func unavailable() error { return classify.Transient(errBusy) }

func TestOutageIsNotChargedToMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", n)
		d := &dependency{down: unavailable}
		var seen recorder
		cfg := protected()
		cfg.Retry.MaxAttempts = 3
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		time.Sleep(10 * time.Minute)
		// Twenty runs trip it; ten more were under way. Then there are probes, at
		// least 5 s apart, and each failure makes the pause longer.
		if got := d.since(time.Time{}); got < 20 || got > 30+15 {
			t.Errorf("%d runs in an outage of 10 minutes, want the 20 to 30 that trip the breaker and a few probes", got)
		}
		if left := broker.Len("orders"); left != n {
			t.Errorf("%d of %d messages are left in the outage", left, n)
		}
		for _, e := range seen.of(consumer.EventFailed) {
			if e.Meta.Attempt > 1 {
				t.Errorf("a message has used %d attempts up in the outage", e.Meta.Attempt)
			}
		}
		d.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		if len(d.served) != n || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of %d messages served, %d dead", len(d.served), n, broker.Len("orders.dead"))
		}
		if len(seen.of(consumer.EventPaused)) != 1 || len(seen.of(consumer.EventResumed)) != 1 {
			t.Errorf("paused %d times and resumed %d times, want once each", len(seen.of(consumer.EventPaused)), len(seen.of(consumer.EventResumed)))
		}
	})
}

func TestEnvironmentTripsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		d := &dependency{down: func() error { return errDisk }}
		cfg := protected()
		cfg.Concurrency, cfg.Rules = 1, []classify.Rule{verdicts}
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		time.Sleep(4 * time.Second)
		if got := d.since(time.Time{}); got != 1 {
			t.Errorf("%d runs before the first probe, want 1", got)
		}
		w.mustShutdown()
	})
}

func TestThrottleMovesTheWholeSource(t *testing.T) {
	for _, tt := range []struct {
		name         string
		hint         time.Duration
		least, after time.Duration // how long nothing runs, at least and at most
	}{
		{"a while", 30 * time.Second, 30 * time.Second, 33 * time.Second},
		{"longer than the policy allows", 1000 * time.Hour, 15 * time.Minute, 15*time.Minute + 5*time.Second},
		{"no time at all", 0, 0, 0},
		{"a negative time", -time.Hour, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := memory.New(memory.Options{})
				flood(t, broker, "orders", 100)
				d := &dependency{}
				began := time.Now()
				d.set(func() error { return classify.Throttled(errBusy, tt.hint) })
				var seen recorder
				cfg := protected()
				cfg.Concurrency, cfg.Observers = 1, []consumer.Observer{&seen}
				w := start(t, broker, cfg, func(c *consumer.Consumer) {
					c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
						err := d.handle(ctx, m)
						if err != nil {
							d.set(nil)
						}
						return err
					})
				})
				time.Sleep(max(tt.least-1, 0))
				if got := d.since(began); tt.least > 0 && got != 1 {
					t.Errorf("%d runs before the time that the dependency asked for, want 1", got)
				}
				time.Sleep(tt.after - tt.least + 1)
				synctest.Wait()
				if got := d.since(began); got < 50 {
					t.Errorf("%d runs within %v, want it to be over", got, tt.after)
				}
				time.Sleep(time.Hour)
				w.mustShutdown()
				if len(d.served) != 100 {
					t.Errorf("%d of 100 served in the end", len(d.served))
				}
				paused, resumed, want := seen.of(consumer.EventPaused), seen.of(consumer.EventResumed), min(int(tt.least), 1)
				if len(paused) != want || len(resumed) != want {
					t.Errorf("paused %d times and resumed %d times, want %d", len(paused), len(resumed), want)
				}
				for _, e := range paused {
					if until := e.Until.Sub(began); until < tt.least || until > tt.after || !strings.Contains(e.Err.Error(), "throttling") {
						t.Errorf("paused until %v: %v, want %v to %v and why", until, e.Err, tt.least, tt.after)
					}
				}
			})
		})
	}
}

func TestThrottleOfOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		d := &dependency{}
		cfg := protected()
		cfg.Restraint.NoThrottle, cfg.Concurrency = true, 1
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				if string(m.Body) == "7" && consumer.MetaFrom(ctx).LastFailedAt.IsZero() {
					return classify.Throttled(errBusy, 30*time.Second)
				}
				return d.handle(ctx, m)
			})
		})
		time.Sleep(time.Second)
		d.mu.Lock()
		if len(d.served) != 99 {
			t.Errorf("%d of the 99 others served at once", len(d.served))
		}
		d.mu.Unlock()
		time.Sleep(time.Minute)
		w.mustShutdown()
		if len(d.served) != 100 {
			t.Errorf("%d of 100 served in the end", len(d.served))
		}
	})
}

func TestMassPoisonStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 1000)
		d := &dependency{down: func() error { return classify.Permanent(errBusy) }}
		var seen recorder
		cfg := protected()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		time.Sleep(59 * time.Second)
		dead := broker.Len("orders.dead")
		if dead < 20 || dead > 30 {
			t.Errorf("%d dead letters in the first minute of a faulty deployment, want 20 to 30", dead)
		}
		if paused := seen.of(consumer.EventPaused); len(paused) != 1 || !strings.Contains(paused[0].Err.Error(), "most messages are poison") || paused[0].Until.Before(time.Now()) {
			t.Errorf("paused: %+v, want once, with why and until when", paused)
		}
		time.Sleep(5 * time.Minute)
		if probes := broker.Len("orders.dead") - dead; probes < 1 || probes > 3 {
			t.Errorf("%d messages tried in the next five minutes, want one now and then", probes)
		}
		d.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		if dead := broker.Len("orders.dead"); len(d.served)+dead != 1000 || dead > 40 {
			t.Errorf("%d served and %d dead, want all but a few of 1000 served", len(d.served), dead)
		}
	})
}

// Poison says nothing against what handlers depend on.
func TestPoisonDoesNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 1000)
		cfg := protected()
		cfg.Restraint.NoPoisonStop = true
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(context.Context, *brokers.Message) error { return classify.Permanent(errBusy) })
		})
		time.Sleep(time.Second)
		w.mustShutdown()
		if dead := broker.Len("orders.dead"); dead != 1000 {
			t.Errorf("%d of 1000 dead letters in a second, want no pause", dead)
		}
	})
}

func TestBudgetPacesRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := &dependency{down: unavailable}
		var seen recorder
		cfg := protected()
		cfg.Restraint.NoBreaker = true
		cfg.Retry = every(time.Second, 100)
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		began := time.Now()
		for range 600 { // 10/s for a minute, all of which fail
			flood(t, broker, "orders", 1)
			time.Sleep(100 * time.Millisecond)
		}
		runs := d.since(began)
		// The share of 10 % and the floor of 1/s are 2 retries a second; the
		// budget takes a window of 10 s to learn of the load.
		if runs > 600+2*60+20 || runs < 600+60 {
			t.Errorf("%d runs of 600 messages in a minute, want some 100 to 140 retries", runs)
		}
		stretched := 0
		for _, e := range seen.of(consumer.EventFailed) {
			if e.Stretched > 0 {
				stretched++
			}
			if due := e.Time.Add(e.Decision.Delay); !e.Meta.DueAt.Equal(due) {
				t.Fatalf("due at %v, want %v", e.Meta.DueAt, due)
			}
		}
		if stretched < 300 {
			t.Errorf("%d retries were moved, want most", stretched)
		}
		w.mustShutdown()
	})
}

// A slot may lie further off than the broker was told to expect: the message
// then comes back before it, and is sent on without a run.
func TestBudgetReachesBeyondTheLongestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longest = 5 * time.Second
		broker := newTap(memory.Options{})
		flood(t, broker.Broker, "orders", 100)
		var seen recorder
		cfg := protected()
		cfg.Restraint.NoBreaker, cfg.HoldLimit = true, -1
		cfg.Retry = retry.Policy{
			MaxRetryAfter: longest, EnvironmentDelay: longest,
			Backoff: retry.Backoff{Base: time.Second, Cap: longest, Growth: retry.Fixed, Jitter: retry.NoJitter},
		}
		cfg.Observers = []consumer.Observer{&seen}
		var mu sync.Mutex
		runs, early := 0, 0
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				meta := consumer.MetaFrom(ctx)
				mu.Lock()
				defer mu.Unlock()
				runs++
				if time.Now().Before(meta.DueAt) {
					early++
				}
				if meta.LastFailedAt.IsZero() {
					return errBusy
				}
				return nil
			})
		})
		time.Sleep(5 * time.Minute)
		w.mustShutdown()
		if runs != 200 || early != 0 {
			t.Errorf("%d runs, %d before their time, want 200 and none", runs, early)
		}
		far := slices.ContainsFunc(seen.of(consumer.EventFailed), func(e consumer.Event) bool { return e.Decision.Delay > 2*longest })
		sent := broker.of("retry")
		if !far || len(sent) < 200 {
			t.Errorf("sent to the broker %d times, want far slots to take several legs", len(sent))
		}
		for _, c := range sent {
			if c.delay > longest {
				t.Fatalf("sent for %v, and the broker was told of %v at most", c.delay, longest)
			}
		}
	})
}

func TestDeadLetterBeyondTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		d := &dependency{down: unavailable}
		cfg := protected()
		cfg.Restraint.NoBreaker = true
		cfg.Restraint.DeadLetterBeyond = 10 * time.Second
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		time.Sleep(time.Second)
		d.set(nil)
		time.Sleep(time.Minute)
		w.mustShutdown()
		letters := broker.Messages("orders.dead")
		if len(letters) < 50 || len(letters)+len(d.served) != 100 {
			t.Errorf("%d dead letters, %d served, want most of 100 dead and none lost", len(letters), len(d.served))
		}
		for _, m := range letters {
			if entry := must(dlq.Decode(m)); entry.Reason != "budget" {
				t.Fatalf("reason %q, want budget", entry.Reason)
			}
		}
	})
}

func TestAmbiguousFailureGetsOneMoreRun(t *testing.T) {
	for _, tt := range []struct {
		name       string
		idempotent bool
		fails      []error
		runs       int
		reason     string
	}{
		{"twice", false, []error{context.DeadlineExceeded, context.DeadlineExceeded, nil}, 2, "ambiguous"},
		{"once", false, []error{context.DeadlineExceeded, nil}, 2, ""},
		{"with others between", false, []error{errBusy, context.DeadlineExceeded, errBusy, context.DeadlineExceeded, nil}, 4, "ambiguous"},
		{"declared idempotent", true, []error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded, nil}, 4, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, hold := range []time.Duration{-1, time.Hour} {
				synctest.Test(t, func(t *testing.T) {
					broker := memory.New(memory.Options{})
					publish(t, broker, "orders", "one")
					cfg := quiet()
					cfg.Idempotent, cfg.HoldLimit = false, hold
					cfg.Retry = every(time.Second, 9)
					runs := 0
					w := start(t, broker, cfg, func(c *consumer.Consumer) {
						c.Handle("orders", func(context.Context, *brokers.Message) error {
							runs++
							return tt.fails[runs-1]
						}, consumer.Topic{Idempotent: tt.idempotent})
					})
					time.Sleep(time.Hour)
					w.mustShutdown()
					reason := ""
					if broker.Len("orders.dead") > 0 {
						reason = oneDeadLetter(t, broker, "orders").Reason
					}
					if runs != tt.runs || reason != tt.reason {
						t.Errorf("hold limit %v: %d runs, reason %q, want %d and %q", hold, runs, reason, tt.runs, tt.reason)
					}
				})
			}
		})
	}
}

func TestDrainGivesBackWhatWaitsAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		b := must(breaker.New(breaker.Config{}))
		flood(t, broker.Broker, "orders", 10)
		release := make(chan struct{})
		var seen recorder
		cfg := protected()
		cfg.Restraint.Breaker, cfg.Concurrency, cfg.Prefetch = b, 1, 9
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(context.Context, *brokers.Message) error { <-release; return nil })
		})
		time.Sleep(time.Second)
		b.Isolate(time.Now(), "by hand")
		close(release)
		time.Sleep(time.Second)
		w.mustShutdown()
		if acked, released := len(broker.of("ack")), len(broker.of("release")); acked != 1 || released != 9 {
			t.Errorf("%d acked and %d released, want the one that ran and the 9 that waited", acked, released)
		}
		if held := len(seen.of(consumer.EventHeld)); held != 9 {
			t.Errorf("%d held, want the 9 that waited", held)
		}
		for _, m := range broker.of("release") {
			if m.meta.Attempt != 0 {
				t.Errorf("%s was counted", m.body)
			}
		}
	})
}

// While a probe may still be running, and be it for longer than breakers
// usually wait, no other one starts.
func TestProbeMayTakeAsLongAsAHandler(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Minute} { // of the others
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			flood(t, broker, "orders", 200)
			var mu sync.Mutex
			slow, under, most := false, 0, 0
			cfg := protected()
			cfg.HandlerTimeout = timeout
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.Handle("orders", func(ctx context.Context, _ *brokers.Message) error {
					mu.Lock()
					wait := slow
					if under++; wait {
						most = max(most, under)
					}
					mu.Unlock()
					if wait {
						select {
						case <-ctx.Done():
						case <-time.After(4 * time.Minute):
						}
					}
					mu.Lock()
					under--
					mu.Unlock()
					return unavailable()
				}, consumer.Topic{HandlerTimeout: 5 * time.Minute})
			})
			time.Sleep(time.Second)
			mu.Lock()
			slow = true
			mu.Unlock()
			time.Sleep(20 * time.Minute)
			mu.Lock()
			if most != 1 {
				t.Errorf("%d probes at once, want 1", most)
			}
			mu.Unlock()
			w.mustShutdown()
		})
	}
}

func TestConsumersShareABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 50)
		shared := must(breaker.New(breaker.Config{}))
		cfg := protected()
		cfg.Restraint.Breaker = shared
		orders, refunds := &dependency{down: unavailable}, &dependency{}
		a := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", orders.handle) })
		b := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("refunds", refunds.handle) })
		time.Sleep(time.Second)
		if s := shared.Snapshot(time.Now()); s.State != breaker.Open {
			t.Fatalf("the breaker is %s", s.State)
		}
		flood(t, broker, "refunds", 50)
		time.Sleep(3 * time.Second)
		if got := refunds.since(time.Time{}); got != 0 {
			t.Errorf("the other consumer ran %d messages", got)
		}
		orders.set(nil)
		time.Sleep(time.Hour)
		a.mustShutdown()
		b.mustShutdown()
		if len(orders.served) != 50 || len(refunds.served) != 50 {
			t.Errorf("%d and %d of 50 served in the end", len(orders.served), len(refunds.served))
		}
	})
}

// A breaker may be opened and closed by somebody else, while a Consumer waits
// for messages.
func TestBreakerThatOthersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		shared := must(breaker.New(breaker.Config{}))
		d := &dependency{}
		var seen recorder
		cfg := protected()
		cfg.Restraint.Breaker, cfg.Observers = shared, []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) { c.Handle("orders", d.handle) })
		time.Sleep(time.Minute)
		shared.Isolate(time.Now(), "the provider migrates")
		time.Sleep(time.Second + time.Millisecond)
		flood(t, broker, "orders", 50)
		time.Sleep(time.Hour)
		if stats := broker.Stats("orders"); stats != (memory.Stats{Ready: 50}) {
			t.Errorf("topic %+v, want nothing received", stats)
		}
		if paused := seen.of(consumer.EventPaused); len(paused) != 1 || !strings.Contains(paused[0].Err.Error(), "the provider migrates") || !paused[0].Until.IsZero() {
			t.Errorf("paused: %+v, want once, with the reason and no end", paused)
		}
		shared.Restore(time.Now())
		time.Sleep(time.Minute)
		w.mustShutdown()
		if len(d.served) != 50 || len(seen.of(consumer.EventResumed)) != 1 {
			t.Errorf("%d of 50 served, resumed %d times, want all and once", len(d.served), len(seen.of(consumer.EventResumed)))
		}
	})
}

func TestGateSendsBackWhatItsLeaseCannotOutlast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{MaxLease: 2 * time.Minute})
		b := must(breaker.New(breaker.Config{}))
		flood(t, broker.Broker, "orders", 5)
		release := make(chan struct{})
		d := &dependency{}
		cfg := protected()
		cfg.Restraint.Breaker, cfg.Concurrency, cfg.Prefetch = b, 1, 4
		cfg.HandlerTimeout, cfg.Lease = time.Minute, 20*time.Second
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				<-release
				return d.handle(ctx, m)
			})
		})
		time.Sleep(time.Second)
		b.Isolate(time.Now(), "by hand")
		close(release)
		time.Sleep(90 * time.Second)
		if retried := broker.of("retry"); len(retried) != 4 {
			t.Errorf("%d were sent back to the broker, want 4", len(retried))
		}
		b.Restore(time.Now())
		time.Sleep(time.Hour)
		w.mustShutdown()
		if len(d.served) != 5 {
			t.Errorf("%d of 5 served in the end", len(d.served))
		}
		for _, c := range broker.of("retry") {
			if c.meta.Attempt != 0 {
				t.Errorf("%s was counted", c.body)
			}
		}
	})
}

func TestGateHoldsPartOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		b := must(breaker.New(breaker.Config{MinOpen: time.Second, MaxOpen: 2 * time.Second, Probes: 1}))
		b.Trip(time.Now(), breaker.Permit{}, "test", 0)
		flood(t, broker, "orders", 30)
		var sizes []int
		cfg := protected()
		cfg.Restraint.Breaker, cfg.Concurrency = b, 1
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(_ context.Context, batch []*brokers.Message) []error {
				sizes = append(sizes, len(batch))
				return nil
			}, consumer.Batch{Size: 10, Wait: 10 * time.Millisecond})
		})
		time.Sleep(time.Minute)
		w.mustShutdown()
		sum := 0
		for _, n := range sizes {
			sum += n
		}
		if sum != 30 || sizes[0] != 1 {
			t.Errorf("batches of %v, want a probe first and 30 in all", sizes)
		}
	})
}

func TestAdaptiveConcurrency(t *testing.T) {
	for _, slow := range []bool{false, true} { // else it throttles
		t.Run(fmt.Sprintf("slow=%v", slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := memory.New(memory.Options{})
				cfg := protected()
				cfg.Restraint = consumer.Restraint{NoBudget: true, NoBreaker: true, Adaptive: true}
				cfg.Concurrency, cfg.Retry = 50, every(time.Millisecond, 1000)
				cfg.Retry.FreeThrottles = 1 << 20
				var mu sync.Mutex
				under, most, limit := 0, 0, 5
				w := start(t, broker, cfg, func(c *consumer.Consumer) {
					c.Handle("orders", func(context.Context, *brokers.Message) error {
						mu.Lock()
						under++
						most = max(most, under)
						over := under > limit
						mu.Unlock()
						if time.Sleep(20 * time.Millisecond); over && slow {
							time.Sleep(80 * time.Millisecond)
						}
						mu.Lock()
						under--
						mu.Unlock()
						if over && !slow {
							return throttledError{}
						}
						return nil
					})
				})
				flood(t, broker, "orders", 4000)
				time.Sleep(10 * time.Second)
				mu.Lock()
				most = 0
				mu.Unlock()
				time.Sleep(3 * time.Second)
				mu.Lock()
				if most < 2 || most > 3*limit {
					t.Errorf("up to %d run at once where %d may, want about as many", most, limit)
				}
				limit, most = 1000, 0
				mu.Unlock()
				flood(t, broker, "orders", 30000)
				time.Sleep(10 * time.Second)
				mu.Lock()
				if most < 45 {
					t.Errorf("up to %d run at once when nothing throttles any more, want 50", most)
				}
				mu.Unlock()
				w.mustShutdown()
			})
		})
	}
}

// A failure says nothing about what the dependency can bear, however soon it
// comes.
func TestFailuresDoNotRaiseTheAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 2000)
		cfg := protected()
		cfg.Restraint = consumer.Restraint{NoBudget: true, NoBreaker: true, Adaptive: true}
		cfg.Concurrency, cfg.Retry = 50, every(time.Hour, 9)
		var mu sync.Mutex
		runs, under, most := 0, 0, 0
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(context.Context, *brokers.Message) error {
				mu.Lock()
				runs++
				early, last := runs <= 500, runs > 1000
				if under++; last {
					most = max(most, under)
				}
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
				mu.Lock()
				under--
				mu.Unlock()
				if early {
					return throttledError{}
				}
				return errBusy
			})
		})
		time.Sleep(10 * time.Minute)
		w.mustShutdown()
		if runs != 2000 || most > 2 {
			t.Errorf("%d runs, up to %d at once after the throttles, want 2000 and 1 or 2", runs, most)
		}
	})
}

// throttledError is an answer that asks to slow down, and not until when.
type throttledError struct{}

func (throttledError) Error() string       { return "too many requests" }
func (throttledError) HTTPStatusCode() int { return 429 }

// The room of a retry that will not run is for another one. What has no room of
// its own, or has used it, gives none back.
func TestBudgetIsSharedAndRefunded(t *testing.T) {
	unknown, deferred := errors.New("unknown"), classify.Defer(errBusy, time.Minute)
	lost := func(errs []error) []error { return []error{brokers.ErrLeaseLost} }
	fails := func(action brokers.Action, err error) func([]brokers.Settlement, []error) []error {
		return func(batch []brokers.Settlement, errs []error) []error {
			if batch[0].Action == action {
				return []error{err}
			}
			return errs
		}
	}
	for _, tt := range []struct {
		name               string
		delay              time.Duration // of the retry
		hold               time.Duration
		fail               error // of the first run
		extend             func([]error) []error
		settle             func([]brokers.Settlement, []error) []error
		reserved, refunded int
	}{
		{"held, and lost", time.Minute, time.Hour, unknown, lost, nil, 1, 1},
		{"lost on its way to the broker", time.Minute, -1, unknown, nil, fails(brokers.Retry, brokers.ErrLeaseLost), 1, 1},
		{"refused by the broker", time.Minute, -1, unknown, nil, fails(brokers.Retry, brokers.ErrRefused), 1, 1},
		{"in the broker", time.Minute, -1, unknown, nil, nil, 1, 0},
		{"deferred, held and lost", time.Minute, time.Hour, deferred, lost, nil, 0, 0},
		{"run, and lost with its ack", time.Second, time.Hour, unknown, nil, fails(brokers.Ack, brokers.ErrLeaseLost), 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := newTap(memory.Options{})
				publish(t, broker.Broker, "orders", "one")
				broker.extend, broker.settle = tt.extend, tt.settle
				counted := &countingBudget{Budget: must(budget.New(budget.Queue()))}
				cfg := protected()
				cfg.Restraint.Budget = counted
				cfg.Lease, cfg.HoldLimit, cfg.Retry = 20*time.Second, tt.hold, every(tt.delay, 9)
				w := start(t, broker, cfg, func(c *consumer.Consumer) {
					c.Handle("orders", func(ctx context.Context, _ *brokers.Message) error {
						if consumer.MetaFrom(ctx).LastFailedAt.IsZero() {
							return tt.fail
						}
						return nil
					})
				})
				time.Sleep(15 * time.Second)
				w.mustShutdown()
				if counted.delivered != 1 || counted.reserved != tt.reserved || counted.refunded != tt.refunded {
					t.Errorf("%d delivered, %d reserved and %d refunded, want 1, %d and %d",
						counted.delivered, counted.reserved, counted.refunded, tt.reserved, tt.refunded)
				}
			})
		})
	}
}

type countingBudget struct {
	*budget.Budget
	delivered, reserved, refunded int
}

func (b *countingBudget) Delivered(now time.Time, n int) {
	b.delivered += n
	b.Budget.Delivered(now, n)
}

func (b *countingBudget) Reserve(now, due time.Time) time.Time {
	b.reserved++
	return b.Budget.Reserve(now, due)
}

func (b *countingBudget) Refund(now, slot time.Time) {
	b.refunded++
	b.Budget.Refund(now, slot)
}

// A deferred run says nothing: not against the message, nor about the
// dependency. It holds up nobody else, and nobody holds it up: 3,000 of them
// take no room of the budget.
func TestDeferredRunsAreNeverCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		runs := map[string]int{}
		var mu sync.Mutex
		var seen recorder
		cfg := protected()
		cfg.Retry.MaxAttempts = 1
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if got := consumer.MetaFrom(ctx).Attempt; got != 1 {
					t.Errorf("run %d of %s is attempt %d, want 1", runs[string(m.Body)]+1, m.Body, got)
				}
				if runs[string(m.Body)]++; runs[string(m.Body)] <= 30 {
					return classify.Defer(errBusy, 5*time.Second)
				}
				return nil
			})
		})
		time.Sleep(5 * time.Minute)
		w.mustShutdown()
		if paused := seen.of(consumer.EventPaused); len(paused) != 0 {
			t.Errorf("paused: %v", paused[0].Err)
		}
		for body, n := range runs {
			if n != 31 {
				t.Fatalf("%s ran %d times, want 31", body, n)
			}
		}
		for _, e := range seen.of(consumer.EventFailed) {
			if e.Stretched != 0 {
				t.Fatalf("a deferred run was put off by another %v", e.Stretched)
			}
		}
		if len(runs) != 100 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 100 ran, %d are dead", len(runs), broker.Len("orders.dead"))
		}
	})
}

func TestProducersIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		headers := brokers.Headers{{Name: "idempotency-key", Value: "order-17"}}
		if err := broker.Publish(t.Context(), "orders", brokers.Message{ID: "a", Headers: headers}, brokers.Message{ID: "b"}); err != nil {
			t.Fatal(err)
		}
		keys := map[string]string{}
		cfg := quiet()
		cfg.Concurrency = 1
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				keys[m.ID] = consumer.MetaFrom(ctx).IdempotencyKey
				return nil
			}, consumer.Topic{})
		})
		time.Sleep(time.Second)
		w.mustShutdown()
		if keys["a"] != "order-17" || keys["b"] != "b" {
			t.Errorf("keys %v, want that of the header, and else the ID", keys)
		}
	})
}
