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
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// dependency is what handlers call. It is down from one time to another.
type dependency struct {
	takes time.Duration // for each call

	mu     sync.Mutex
	down   func() error // nil while it is up
	calls  []visit
	served map[string]time.Time // by body
	under  int                  // calls under way
	most   int                  // of them
}

// visit is one call.
type visit struct {
	at   time.Time
	body string
}

func (d *dependency) set(down func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

func (d *dependency) handle(_ context.Context, m *brokers.Message) error {
	d.mu.Lock()
	d.calls = append(d.calls, visit{time.Now(), string(m.Body)})
	d.under++
	d.most = max(d.most, d.under)
	down := d.down
	d.mu.Unlock()
	if d.takes > 0 {
		time.Sleep(d.takes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.under--
	if down != nil {
		return down()
	}
	if d.served == nil {
		d.served = map[string]time.Time{}
	}
	d.served[string(m.Body)] = time.Now()
	return nil
}

// since returns the bodies of the calls from a time on.
func (d *dependency) since(t time.Time) (bodies []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if !c.at.Before(t) {
			bodies = append(bodies, c.body)
		}
	}
	return bodies
}

// runs returns how many calls there were.
func (d *dependency) runs() int { return len(d.since(time.Time{})) }

// done returns how many messages were served.
func (d *dependency) done() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.served)
}

func (d *dependency) register(topic string, settings ...consumer.Topic) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) { c.Handle(topic, d.handle, settings...) }
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

// uncounted fails the test if a message has used more attempts than most.
func uncounted(t *testing.T, seen *recorder, most int) {
	t.Helper()
	for _, e := range seen.of(consumer.EventFailed) {
		if e.Meta.Attempt > most {
			t.Errorf("message %s of %s has used %d attempts up, want %d at most", e.Message.Body, e.Topic, e.Meta.Attempt, most)
			return
		}
	}
}

func TestTopicsHaveGuardsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		var mu sync.Mutex
		received := 0 // mails
		broker.deliver = func(d *brokers.Delivery) {
			if d.Message.Topic == "mails" {
				mu.Lock()
				received++
				mu.Unlock()
			}
		}
		flood(t, broker.Broker, "mails", 500)
		mails, orders := &dependency{down: unavailable}, &dependency{takes: 100 * time.Millisecond}
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			mails.register("mails")(c)
			orders.register("orders")(c)
		})
		time.Sleep(time.Minute) // until the guard of mails is closed
		if broker.paused() != "mails" {
			t.Errorf("the source was told to pause %q, want mails", broker.paused())
		}
		closed := time.Now()
		mu.Lock()
		before := received
		mu.Unlock()
		flood(t, broker.Broker, "orders", 10_000) // 100 s for ten handlers
		time.Sleep(101 * time.Second)
		if orders.done() != 10_000 {
			t.Errorf("%d of 10,000 orders served beside the outage of mails, in a time that is enough for all", orders.done())
		}
		time.Sleep(10 * time.Minute)
		mu.Lock()
		probes := len(mails.since(closed))
		if more := received - before; probes < 10 || probes > 120 || more > probes+20 {
			t.Errorf("%d mails received and %d runs in 12 minutes of outage, want a probe at a time", more, probes)
		}
		mu.Unlock()
		uncounted(t, &seen, 1)
		mails.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		if mails.done() != 500 || broker.Len("mails.dead") != 0 {
			t.Errorf("%d of 500 mails served, %d dead", mails.done(), broker.Len("mails.dead"))
		}
		paused, resumed := seen.of(consumer.EventPaused), seen.of(consumer.EventResumed)
		if len(paused) != 1 || len(resumed) != 1 || paused[0].Dependency != "mails" || resumed[0].Dependency != "mails" {
			t.Errorf("paused: %+v, resumed: %+v, want once each, of mails", paused, resumed)
		}
	})
}

func TestTopicsShareTheGuardOfADependency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		flood(t, broker.Broker, "orders", 50)
		payments, mails := &dependency{down: unavailable}, &dependency{}
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			payments.register("orders", consumer.Topic{Dependency: "payments"})(c)
			payments.register("refunds", consumer.Topic{Dependency: "payments"})(c)
			mails.register("mails")(c)
		})
		time.Sleep(time.Second)
		if broker.paused() != "orders+refunds" {
			t.Errorf("the source was told to pause %q, want both topics of the dependency", broker.paused())
		}
		flood(t, broker.Broker, "refunds", 50)
		flood(t, broker.Broker, "mails", 50)
		closed := time.Now()
		time.Sleep(5 * time.Minute)
		if n := len(payments.since(closed)); n < 5 || n > 60 || mails.done() != 50 {
			t.Errorf("%d runs in 5 minutes of outage, want probes alone; %d of 50 mails", n, mails.done())
		}
		if paused := seen.of(consumer.EventPaused); len(paused) != 1 || paused[0].Dependency != "payments" || paused[0].Topic != "" {
			t.Errorf("paused: %+v, want payments once", paused)
		}
		payments.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		empty(t, broker.Broker, "orders", "refunds", "orders.dead", "refunds.dead")
	})
}

func TestGuardsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		payments, acme := must(breaker.New(breaker.Config{})), must(breaker.New(breaker.Config{}))
		payments.Isolate(time.Now(), "by hand")
		acme.Isolate(time.Now(), "by hand")
		cfg := quiet()
		cfg.Guards = map[string]consumer.Guard{"payments": {Breaker: payments}, "acme": {Breaker: acme}}
		orders, refunds, mails := &dependency{}, &dependency{}, &dependency{}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			orders.register("orders", consumer.Topic{Dependency: "payments"})(c)
			refunds.register("payments")(c) // a topic's own name
			mails.register("mails", consumer.Topic{DependencyOf: func(m *brokers.Message) string { return string(m.Body) }})(c)
		})
		flood(t, broker, "orders", 5)
		flood(t, broker, "payments", 5)
		publish(t, broker, "mails", "acme", "emca")
		time.Sleep(time.Minute)
		if orders.done() != 0 || refunds.done() != 0 || mails.done() != 1 {
			t.Errorf("%d orders, %d refunds and %d mails, want none, none and that of the other customer", orders.done(), refunds.done(), mails.done())
		}
		payments.Restore(time.Now())
		acme.Restore(time.Now())
		time.Sleep(time.Minute)
		w.mustShutdown()
		if orders.done() != 5 || refunds.done() != 5 || mails.done() != 2 {
			t.Errorf("%d orders, %d refunds and %d mails in the end, want 5, 5 and 2", orders.done(), refunds.done(), mails.done())
		}
	})
}

func TestConsumersShareABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 50)
		shared := must(breaker.New(breaker.Config{}))
		cfg := quiet()
		cfg.Guard.Breaker = shared
		orders, refunds := &dependency{down: unavailable}, &dependency{}
		a := start(t, broker, cfg, orders.register("orders"))
		cfg.Concurrency, cfg.HandlerTimeout, cfg.Guard.NoBudget = 1, time.Hour, true // another opinion on the rest
		b := start(t, broker, cfg, refunds.register("refunds"))
		time.Sleep(2 * time.Second)
		if s := shared.Snapshot(time.Now()); s.State != breaker.Open {
			t.Fatalf("the breaker is %s", s.State)
		}
		flood(t, broker, "refunds", 50)
		time.Sleep(2 * time.Second)
		if got := refunds.runs(); got != 0 {
			t.Errorf("the other consumer ran %d messages", got)
		}
		orders.set(nil)
		time.Sleep(time.Hour)
		a.mustShutdown()
		b.mustShutdown()
		if orders.done() != 50 || refunds.done() != 50 {
			t.Errorf("%d and %d of 50 served in the end", orders.done(), refunds.done())
		}
	})
}

// A breaker may be opened and closed by somebody else, while a Consumer waits
// for messages.
func TestBreakerThatOthersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		shared := must(breaker.New(breaker.Config{}))
		d := &dependency{}
		var seen recorder
		cfg := quiet()
		cfg.Guard.Breaker, cfg.Observers = shared, []consumer.Observer{&seen}
		w := start(t, broker, cfg, d.register("orders"))
		time.Sleep(time.Minute)
		shared.Isolate(time.Now(), "the provider migrates")
		time.Sleep(time.Second + time.Millisecond)
		flood(t, broker.Broker, "orders", 50)
		time.Sleep(time.Hour)
		if stats := broker.Stats("orders"); stats != (memory.Stats{Ready: 50}) || broker.paused() != "orders" {
			t.Errorf("topic %+v, told to pause %q, want nothing received", stats, broker.paused())
		}
		if paused := seen.of(consumer.EventPaused); len(paused) != 1 || !strings.Contains(paused[0].Err.Error(), "the provider migrates") || !paused[0].Until.IsZero() {
			t.Errorf("paused: %+v, want once, with the reason and no end", paused)
		}
		shared.Restore(time.Now())
		time.Sleep(time.Second + time.Millisecond)
		if d.done() != 50 || len(seen.of(consumer.EventResumed)) != 1 {
			t.Errorf("%d of 50 served within a second, resumed %d times, want all and once", d.done(), len(seen.of(consumer.EventResumed)))
		}
		w.mustShutdown()
	})
}

// To look whether somebody has changed a breaker costs the broker nothing.
func TestIdleConsumerAsksOnce(t *testing.T) {
	for name, isolated := range map[string]bool{"closed": false, "isolated": true} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			shared := must(breaker.New(breaker.Config{}))
			if isolated {
				shared.Isolate(time.Now(), "by hand")
			}
			cfg := quiet()
			cfg.Guards = map[string]consumer.Guard{"orders": {Breaker: shared}}
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.Handle("orders", func(context.Context, *brokers.Message) error { return nil })
				c.Handle("mails", func(context.Context, *brokers.Message) error { return nil })
			})
			time.Sleep(time.Hour)
			w.mustShutdown()
			if n := len(broker.askedIn); n > 2 {
				t.Errorf("the source was asked %d times in an hour without messages", n)
			}
		})
	}
}

// A budget and a breaker are shared by two Consumers whose other settings
// contradict each other: one may take longer than the breaker lets a probe.
func TestContradictoryConsumersShareAGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		shared := consumer.Guard{Breaker: must(breaker.New(breaker.Config{Lease: time.Second})), Budget: must(budget.New(budget.Queue()))}
		down := &dependency{down: unavailable, takes: 10 * time.Second}
		a, b := quiet(), quiet()
		a.Guard, a.HandlerTimeout, a.Concurrency, a.Retry.MaxAttempts = shared, 20*time.Second, 1, 2
		b.Guard, b.HandlerTimeout, b.Concurrency, b.Guard.NoPoisonStop = shared, time.Hour, 100, true
		first := start(t, broker, a, down.register("orders"))
		second := start(t, broker, b, down.register("refunds"))
		flood(t, broker, "orders", 50)
		flood(t, broker, "refunds", 50)
		time.Sleep(20 * time.Minute)
		down.set(nil)
		time.Sleep(2 * time.Hour)
		first.mustShutdown()
		second.mustShutdown()
		left := broker.Len("orders") + broker.Len("refunds")
		if dead := broker.Len("orders.dead") + broker.Len("refunds.dead"); left != 0 || dead > 5 {
			t.Errorf("%d left and %d dead, want none lost, none stuck and next to none dead", left, dead)
		}
	})
}

// A message whose last failure is yet to come, since a clock was set back, is
// tried as any other, and ends.
func TestFailureThatIsYetToCome(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := newTap(memory.Options{})
		future := time.Now().Add(100 * time.Hour)
		broker.deliver = func(d *brokers.Delivery) {
			if d.Meta.Attempt == 0 {
				d.Meta.Attempt, d.Meta.FirstFailedAt, d.Meta.LastFailedAt = 1, future, future
			}
		}
		publish(t, broker, "orders", "one")
		cfg := quiet()
		cfg.HoldLimit = hold
		runs := 0
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { runs++; return errors.New("no such column") }))
		time.Sleep(time.Hour)
		w.mustShutdown()
		if entry := oneDeadLetter(t, broker.Broker, "orders"); runs != 5 || entry.Meta.Attempt != 6 {
			t.Errorf("%d runs to attempt %d, want the 5 that were left", runs, entry.Meta.Attempt)
		}
	})
}
