package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
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
	d.under--
	if down == nil {
		if d.served == nil {
			d.served = map[string]time.Time{}
		}
		d.served[string(m.Body)] = time.Now()
	}
	d.mu.Unlock()
	if down != nil {
		return down()
	}
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

// guarded is quiet with the default Guard.
func guarded() consumer.Config {
	cfg := quiet()
	cfg.Guard = consumer.Guard{}
	return cfg
}

func (d *dependency) register(topic string, settings ...consumer.TopicConfig) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) { c.HandleWith(topic, d.handle, append(settings, consumer.TopicConfig{})[0]) }
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

// Which failures of the message "bad" count, once a minute, beside successes at
// certain times.
func TestFailuresThatCount(t *testing.T) {
	named := consumer.TopicConfig{DependencyOf: func(m *brokers.Message) string { return m.Key }}
	for _, tt := range []struct {
		name  string
		first time.Duration // when bad comes
		good  []time.Duration
		key   string // of the good messages; bad has "a"
		topic consumer.TopicConfig
		want  string
	}{
		{"alone", 0, nil, "", consumer.TopicConfig{}, "nnnn"},
		{"before the first failure", time.Minute, []time.Duration{0}, "", consumer.TopicConfig{}, "ynnn"},
		{"long before the first failure", 121 * time.Second, []time.Duration{0}, "", consumer.TopicConfig{}, "nnnn"},
		{"after the first failure", 0, []time.Duration{10 * time.Second}, "", consumer.TopicConfig{}, "nynn"},
		{"before each failure", time.Second, []time.Duration{0, 50 * time.Second, 110 * time.Second, 170 * time.Second}, "", consumer.TopicConfig{}, "yyyy"},
		{"of the same name", time.Second, []time.Duration{0}, "a", named, "ynnn"},
		{"of another name", time.Second, []time.Duration{0}, "b", named, "nnnn"},
		{"of no name", time.Second, []time.Duration{0}, "", named, "nnnn"},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker, began := memory.New(memory.Options{}), time.Now()
			cfg := guarded()
			cfg.Retry = every(time.Minute, 9)
			seen := record(&cfg, consumer.EventFailed)
			w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
				if string(m.Body) == "bad" {
					return errBusy
				}
				return nil
			}, tt.topic))
			send := func(at time.Duration, m brokers.Message) {
				time.Sleep(time.Until(began.Add(at)))
				if err := broker.Publish(t.Context(), "orders", m); err != nil {
					t.Error(err)
				}
			}
			go send(tt.first, brokers.Message{Key: "a", Body: []byte("bad")})
			for _, at := range tt.good {
				send(at, brokers.Message{Key: tt.key})
			}
			w.stopAfter(time.Until(began.Add(tt.first + 190*time.Second)))
			got := ""
			for _, e := range seen.events {
				got += map[bool]string{true: "y", false: "n"}[e.Decision.Counted]
			}
			if got != tt.want {
				t.Errorf("counted: %s, want %s", got, tt.want)
			}
		})
	}
}

// A success that is reported before a failure, and came a moment after it, is one
// beside it.
func TestSuccessAMomentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		cfg := guarded()
		limiter := flow.New(16, cfg.Random)
		cfg.Guard = consumer.Guard{Limiter: limiter}
		cfg.Retry = every(time.Minute, 9)
		seen := record(&cfg, consumer.EventFailed)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			later := time.Now().Add(time.Millisecond)
			limiter.Done(later, flow.End{Began: later, Who: 1, Outcome: flow.Success, More: true})
			return errBusy
		}))
		publish(t, broker, "orders", "bad")
		w.stopAfter(0)
		if e := seen.events[0]; !e.Decision.Counted {
			t.Errorf("the failure does not count: %+v", e.Decision)
		}
	})
}

// An outage of an hour costs no attempt and next to no calls, whatever the
// handler's error; the worker is deployed anew in it.
func TestOutage(t *testing.T) {
	hang := func() error { time.Sleep(31 * time.Second); return classify.Transient(errBusy) }
	for name, fail := range map[string]func() error{
		"refused":     unavailable,
		"environment": func() error { return errDisk },
		"hangs":       hang,
		"throttled":   func() error { return classify.Throttled(errBusy, 10*time.Second) },
		"unknown":     func() error { return errBusy },
		"panic":       func() error { panic("no connection") },
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			d := &dependency{takes: 10 * time.Millisecond}
			cfg := guarded()
			cfg.Rules, cfg.HandlerTimeout, cfg.DrainTimeout = []classify.Rule{verdicts}, 30*time.Second, 2*time.Minute
			seen := record(&cfg)
			begin := func() *worker { return start(t, broker, cfg, d.register("orders")) }
			send := func(from, minutes int) { // one a second
				for i := range 60 * minutes {
					publish(t, broker.Broker, "orders", fmt.Sprint(60*from+i))
					time.Sleep(time.Second)
				}
			}
			w := begin()
			send(0, 10)
			d.set(fail)
			down := time.Now()
			send(10, 30)
			w.mustShutdown()
			w = begin()
			send(40, 30)
			unknown := name == "unknown" || name == "panic" // one run always goes on
			if n := len(d.since(down)); n > 2700 && !unknown {
				t.Errorf("%d calls in an hour of outage, want one a second at first and fewer later", n)
			}
			if n := len(seen.of(consumer.EventPaused)); n != 2 && !unknown {
				t.Errorf("paused %d times, want once for each worker", n)
			}
			uncounted(t, seen, 2) // the first failures came beside successes
			d.set(nil)
			w.stopAfter(20 * time.Minute) // the longest delay of a failure that does not count is 9 minutes
			if d.done() != 70*60 {
				t.Errorf("%d of 4,200 served 20 minutes after the outage", d.done())
			}
			if p, r := len(seen.of(consumer.EventPaused)), len(seen.of(consumer.EventResumed)); r > p || p > r+1 {
				t.Errorf("paused %d times and resumed %d times", p, r) // the first worker stopped in its pause
			}
			empty(t, broker.Broker, "orders", "orders.dead")
		})
	}
}

// A person pauses a dependency, and ends the pause. Nothing is received in it, the
// broker is not asked, and the load comes back in a ramp.
func TestPauseByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
		limiter := flow.New(10, rand.Float64)
		cfg := guarded()
		cfg.Guard.Limiter = limiter
		seen := record(&cfg)
		w := start(t, broker, cfg, d.register("orders"))
		for i := range 600 {
			publish(t, broker.Broker, "orders", fmt.Sprint("before-", i))
			time.Sleep(100 * time.Millisecond)
		}
		limiter.Adjust(time.Now(), flow.Change{Pause: "the provider migrates"})
		time.Sleep(time.Second + time.Millisecond)
		asked := broker.asked()
		flood(t, broker.Broker, "orders", 500)
		time.Sleep(time.Hour)
		if stats := broker.Stats("orders"); stats != (memory.Stats{Ready: 500}) || broker.paused() != "orders" || broker.asked() > asked+1 {
			t.Errorf("topic %+v, paused %q, asked %d times in an hour", stats, broker.paused(), broker.asked()-asked)
		}
		paused := seen.of(consumer.EventPaused)
		if len(paused) != 1 || paused[0].Dependency != "orders" || !paused[0].Until.IsZero() || !strings.Contains(paused[0].Err.Error(), "the provider migrates") {
			t.Errorf("paused: %+v, want once, with the reason and no end", paused)
		}
		limiter.Adjust(time.Now(), flow.Change{Resume: true})
		time.Sleep(3 * time.Second)
		if n := d.done() - 600; n < 3 || n > 60 {
			t.Errorf("%d served in the first 3 s, want twice the normal 10 a second at most", n)
		}
		w.stopAfter(time.Minute)
		if d.done() != 1100 || len(seen.of(consumer.EventResumed)) != 1 {
			t.Errorf("%d of 1,100 served a minute later, resumed %d times", d.done(), len(seen.of(consumer.EventResumed)))
		}
	})
}

// Two Consumers whose other settings contradict each other share a Limiter and a
// Budget: an outage that one of them meets paces the other, which finds its end.
func TestConsumersShareAGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := memory.New(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
		limiter := flow.New(10, rand.Float64)
		a, b := guarded(), guarded()
		a.Guard = consumer.Guard{Limiter: limiter, Budget: must(budget.New(budget.Queue()))}
		b.Guard = a.Guard
		a.Concurrency, a.HandlerTimeout, a.Retry.MaxAttempts = 1, time.Second, 2
		b.Concurrency, b.HandlerTimeout, b.Prefetch = 100, time.Hour, 1
		first, second := start(t, broker, a, d.register("orders")), start(t, broker, b, d.register("refunds"))
		d.set(unavailable)
		flood(t, broker, "orders", 50)
		time.Sleep(5 * time.Minute)
		calls := d.runs()
		flood(t, broker, "refunds", 500)
		time.Sleep(5 * time.Minute)
		if n := d.runs() - calls; n > 310 {
			t.Errorf("%d calls in five minutes, want one a second for both", n)
		}
		if err := first.shutdown(); err != nil { // in the outage
			t.Error(err)
		}
		d.set(nil)
		time.Sleep(15 * time.Minute)
		if n := broker.Len("refunds") + broker.Len("refunds.dead"); n != 0 {
			t.Errorf("%d refunds left 15 minutes after the outage", n)
		}
		first = start(t, broker, a, d.register("orders"))
		first.stopAfter(15 * time.Minute)
		second.mustShutdown()
		empty(t, broker, "orders", "refunds", "orders.dead", "refunds.dead")
		if s := limiter.Adjust(time.Now(), flow.Change{}); s.Running != 0 {
			t.Errorf("%d runs are counted after all have ended", s.Running)
		}
	})
}

// Handlers that never return keep their slots, and nothing else: the limit does not
// wait for them, neither in an outage nor in a Consumer that comes after.
func TestHandlersThatNeverReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := memory.New(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
		release := make(chan struct{})
		limiter := flow.New(10, rand.Float64)
		cfg := guarded()
		cfg.HandlerTimeout, cfg.Guard.Limiter = time.Minute, limiter
		begin := func() *worker {
			return start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if strings.HasPrefix(string(m.Body), "stuck") {
					<-release
				}
				return d.handle(ctx, m)
			}))
		}
		w := begin()
		flood(t, broker, "orders", 1000)
		publish(t, broker, "orders", numbered("stuck", 5)...)
		time.Sleep(5 * time.Minute)
		d.set(func() error { return errBusy }) // the limit falls to one run
		flood(t, broker, "orders", 100)
		time.Sleep(10 * time.Minute)
		if n := d.runs() - 1000; n < 200 {
			t.Errorf("%d runs in ten minutes of errors beside handlers that never return", n)
		}
		d.set(nil)
		time.Sleep(30 * time.Minute)
		if n := broker.Stats("orders"); n.Ready+n.Delayed != 0 || n.InFlight != 5 {
			t.Errorf("%+v left, want the 5 whose handlers never return", n)
		}
		if err := w.shutdown(); !errors.Is(err, consumer.ErrUnclean) {
			t.Errorf("Run = %v", err)
		}
		if s := limiter.Adjust(time.Now(), flow.Change{}); s.Running != 0 {
			t.Errorf("%d runs are counted after the Consumer has stopped", s.Running)
		}
		close(release)
		w = begin()
		w.stopAfter(10 * time.Minute)
		empty(t, broker, "orders", "orders.dead")
	})
}

// Messages that timed out share one slot, until one of them succeeds: they take no
// slots from messages that have not run.
func TestMessagesThatHangShareASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		cfg := guarded()
		cfg.HandlerTimeout = time.Minute
		var mu sync.Mutex
		hung, most, well := 0, 0, false
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if well || !strings.HasPrefix(string(m.Body), "bad") {
				return nil
			}
			again := !consumer.MetaFrom(ctx).FirstFailedAt.IsZero()
			if again {
				hung++
				most = max(most, hung)
			}
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			if again {
				hung--
			}
			return ctx.Err()
		}))
		publish(t, broker, "orders", numbered("bad", 8)...)
		for range 3600 {
			time.Sleep(time.Second)
			publish(t, broker, "orders", "good")
		}
		mu.Lock()
		if most != 1 {
			t.Errorf("%d messages that timed out ran at once, want 1", most)
		}
		well = true
		mu.Unlock()
		w.stopAfter(time.Hour)
		empty(t, broker, "orders")
	})
}

// A topic of batches has an outage as any other: batches probe it, and the load
// comes back with full ones. A batch may be larger than all slots.
func TestBatchesInAnOutage(t *testing.T) {
	for _, tt := range []struct{ size, slots int }{{1, 10}, {100, 10}, {500, 1}} {
		bubble(t, fmt.Sprintf("%d of %d", tt.size, tt.slots), func(t *testing.T) {
			broker, d := memory.New(memory.Options{}), &dependency{takes: 50 * time.Millisecond}
			var mu sync.Mutex
			var sizes []int
			cfg := guarded()
			cfg.Concurrency = tt.slots
			seen := record(&cfg)
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
					mu.Lock()
					sizes = append(sizes, len(batch))
					mu.Unlock()
					if err := d.handle(ctx, batch[0].Message); err != nil {
						return slices.Repeat([]error{err}, len(batch))
					}
					return nil
				}, consumer.TopicConfig{BatchSize: tt.size})
			})
			calls := func(play func()) (int, int) {
				mu.Lock()
				sizes = nil
				mu.Unlock()
				play()
				mu.Lock()
				defer mu.Unlock()
				return len(sizes), slices.Max(sizes)
			}
			load := func(seconds int) { // 50 messages a second
				for range seconds {
					flood(t, broker, "orders", 50)
					time.Sleep(time.Second)
				}
			}
			load(60)
			d.set(unavailable)
			if n, _ := calls(func() { load(20 * 60) }); n > 3300 {
				t.Errorf("%d calls in 20 minutes of outage, want a twentieth of the usual 60,000 and a round", n)
			}
			uncounted(t, seen, 2)
			d.set(nil)
			if _, largest := calls(func() { load(60) }); largest < min(tt.size, 50) {
				t.Errorf("batches of %d at most after the outage", largest)
			}
			w.stopAfter(time.Hour)
			empty(t, broker, "orders", "orders.dead")
		})
	}
}

// Messages that wait for their dependency go back to the broker before their lease
// becomes too short for a run, uncounted, and each runs once.
func TestLeasesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{MaxLease: 2 * time.Minute})
		limiter, release := flow.New(2, rand.Float64), make(chan struct{})
		var mu sync.Mutex
		runs := map[string]int{}
		cfg := guarded()
		cfg.Guard.Limiter, cfg.Concurrency, cfg.Prefetch, cfg.HandlerTimeout = limiter, 2, 4, time.Minute
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			mu.Lock()
			runs[string(m.Body)]++
			mu.Unlock()
			<-release
			return nil
		}))
		flood(t, broker.Broker, "orders", 6)
		time.Sleep(time.Second)
		limiter.Adjust(time.Now(), flow.Change{Pause: "by hand"})
		close(release)
		time.Sleep(10 * time.Minute)
		if n := broker.Stats("orders").InFlight; n != 0 {
			t.Errorf("%d messages are held longer than their leases", n)
		}
		if n := len(seen.of(consumer.EventHeld)); n > 20 {
			t.Errorf("4 messages were held %d times", n)
		}
		limiter.Adjust(time.Now(), flow.Change{Resume: true})
		w.stopAfter(10 * time.Minute)
		for body, n := range runs {
			if n != 1 {
				t.Errorf("%s ran %d times", body, n)
			}
		}
		if len(runs) != 6 || len(seen.of(consumer.EventLeaseLost)) != 0 {
			t.Errorf("%d of 6 ran, %d leases lost", len(runs), len(seen.of(consumer.EventLeaseLost)))
		}
		uncounted(t, seen, 0)
	})
}

// When the worker stops, all messages that wait go back, uncounted: those that wait
// for their dependency, a token, their time, their key, a slot, or their batch.
func TestDrainWithEverythingWaiting(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		bubble(t, fmt.Sprint("by key ", byKey), func(t *testing.T) {
			broker, limiter, release := newTap(memory.Options{}), flow.New(1, rand.Float64), make(chan struct{})
			noTokens := newLedgered()
			noTokens.withdraw = func(time.Duration) (time.Duration, bool) { return time.Second, false }
			cfg := guarded()
			cfg.Concurrency, cfg.Prefetch, cfg.OrderByKey, cfg.HoldLimit = 1, 9, byKey, time.Hour
			cfg.Retry = every(time.Second, 9)
			cfg.Guards = map[string]consumer.Guard{"limit": {Limiter: limiter}, "token": {Budget: noTokens}}
			block := func(context.Context, *brokers.Message) error { <-release; return nil }
			fail := func(context.Context, *brokers.Message) error { return errBusy }
			long := every(time.Hour, 9)
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				c.Handle("limit", block)
				c.Handle("token", fail)
				c.HandleWith("time", fail, consumer.TopicConfig{Retry: &long})
				c.Handle("slot", block)
				c.Handle("doubt", func(context.Context, *brokers.Message) error { return classify.Permanent(errBusy) })
				c.HandleBatch("batch", func(context.Context, []brokers.Item) []error { return nil }, consumer.TopicConfig{BatchSize: 100, BatchWait: time.Hour})
			})
			topics := []string{"limit", "token", "time", "slot", "doubt", "batch"}
			for _, topic := range topics {
				for i := range 8 {
					send(t, broker.Broker, topic, brokers.Message{Key: fmt.Sprint(i % 4), Body: []byte(fmt.Sprint(topic, i))})
				}
			}
			time.Sleep(time.Second)
			limiter.Adjust(time.Now(), flow.Change{Pause: "by hand"})
			release <- struct{}{} // the one of limit, or of slot
			time.Sleep(5 * time.Second)
			w.stop()
			time.Sleep(time.Second)
			close(release)
			if err := <-w.done; err != nil {
				t.Errorf("Run = %v", err)
			}
			left := 0
			for _, topic := range topics {
				stats := broker.Stats(topic)
				left += stats.Ready + stats.Delayed
				if stats.InFlight != 0 {
					t.Errorf("%s: %+v, want none in flight", topic, stats)
				}
				for _, record := range broker.Records(topic) {
					if record.Meta.Attempt > 1 || record.Abandoned != 0 {
						t.Errorf("%s has %d attempts, and was abandoned %d times", record.Message.Body, record.Meta.Attempt, record.Abandoned)
					}
				}
			}
			if acked := len(broker.of("ack")); acked+left != 48 || limiter.Adjust(time.Now(), flow.Change{}).Running != 0 {
				t.Errorf("%d acked and %d left of 48, %d runs counted", acked, left, limiter.Adjust(time.Now(), flow.Change{}).Running)
			}
		})
	}
}

// A key keeps its order over pauses of its dependency.
func TestKeysInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, limiter := memory.New(memory.Options{}), flow.New(10, rand.Float64)
		cfg := guarded()
		cfg.OrderByKey, cfg.Guard.Limiter = true, limiter
		var mu sync.Mutex
		last, under := map[string]int{}, map[string]int{}
		enter := func(key string, n int) {
			mu.Lock()
			defer mu.Unlock()
			if n <= last[key] || under[key] > 0 {
				t.Errorf("key %s: %d ran after or beside %d", key, n, last[key])
			}
			last[key] = n
			under[key]++
		}
		handled := 0
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			n, _ := strconv.Atoi(string(m.Body))
			enter(m.Key, n)
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			under[m.Key]--
			handled++
			return nil
		}))
		for i := range 600 {
			send(t, broker, "orders", brokers.Message{Key: fmt.Sprint("k", i%7), Body: []byte(strconv.Itoa(i + 1))})
			time.Sleep(10 * time.Millisecond)
			switch i {
			case 100, 300:
				limiter.Adjust(time.Now(), flow.Change{Pause: "by hand"})
			case 200, 400:
				limiter.Adjust(time.Now(), flow.Change{Resume: true})
			}
		}
		w.stopAfter(5 * time.Minute)
		if handled != 600 {
			t.Errorf("%d of 600 handled", handled)
		}
	})
}

// Whatever the settings, and whatever a shared budget answers, an outage loses no
// message and ends for all of them.
func TestAbsurdSettings(t *testing.T) {
	const weeks = 6 * 7 * 24 * time.Hour
	budgetOf := func(b *ledgered) func(*consumer.Config, *consumer.TopicConfig) {
		return func(c *consumer.Config, _ *consumer.TopicConfig) { c.Guard.Budget = b }
	}
	for name, set := range map[string]func(*consumer.Config, *consumer.TopicConfig){
		"one slot":                  func(c *consumer.Config, _ *consumer.TopicConfig) { c.Concurrency, c.Prefetch = 1, 1 },
		"one slot of all topics":    func(c *consumer.Config, _ *consumer.TopicConfig) { c.MaxConcurrency = 1 },
		"a million slots":           func(c *consumer.Config, _ *consumer.TopicConfig) { c.Concurrency, c.Prefetch = 1<<20, 1<<20 },
		"a timeout of a nanosecond": func(c *consumer.Config, _ *consumer.TopicConfig) { c.HandlerTimeout = 1 },
		"a timeout of weeks":        func(c *consumer.Config, _ *consumer.TopicConfig) { c.HandlerTimeout = weeks },
		"no delays": func(c *consumer.Config, _ *consumer.TopicConfig) {
			c.Retry = retry.Policy{Backoff: retry.Backoff{Base: 1, Cap: 1}}
		},
		"no age":       func(c *consumer.Config, _ *consumer.TopicConfig) { c.Retry.MaxAge = 100 * 365 * 24 * time.Hour },
		"nothing held": func(c *consumer.Config, _ *consumer.TopicConfig) { c.HoldLimit, c.MaxHeld, c.MaxHeldBytes = -1, 1, 1 },
		"all held":     func(c *consumer.Config, _ *consumer.TopicConfig) { c.HoldLimit = weeks },
		"no chance":    func(c *consumer.Config, _ *consumer.TopicConfig) { c.Random = func() float64 { return 0 } },
		"all chance":   func(c *consumer.Config, _ *consumer.TopicConfig) { c.Random = func() float64 { return 1 - 1e-16 } },
		"a name for each message": func(_ *consumer.Config, s *consumer.TopicConfig) {
			s.DependencyOf = func(m *brokers.Message) string { return m.ID }
		},
		"one name": func(_ *consumer.Config, s *consumer.TopicConfig) {
			s.DependencyOf = func(*brokers.Message) string { return "acme" }
		},
		"names that panic": func(_ *consumer.Config, s *consumer.TopicConfig) {
			s.DependencyOf = func(*brokers.Message) string { panic("no name") }
		},
		"a budget that fails":   budgetOf(&ledgered{Pacer: must(budget.New(budget.Queue())), panics: true}),
		"a budget that is slow": budgetOf(&ledgered{Pacer: must(budget.New(budget.Queue())), takes: 100 * time.Millisecond}),
		"a budget that grants all": budgetOf(&ledgered{Pacer: must(budget.New(budget.Queue())),
			withdraw: func(time.Duration) (time.Duration, bool) { return weeks, true }}),
		"a budget without waits": budgetOf(&ledgered{Pacer: must(budget.New(budget.Queue())), withdraw: everyTenth(-weeks)}),
	} {
		bubble(t, name, func(t *testing.T) {
			broker, d := memory.New(memory.Options{}), &dependency{}
			cfg, topic := guarded(), consumer.TopicConfig{}
			set(&cfg, &topic)
			w := start(t, broker, cfg, d.register("orders", topic))
			for i := range 300 { // one a second
				switch i {
				case 60:
					d.set(unavailable)
				case 240:
					d.set(nil)
				}
				publish(t, broker, "orders", fmt.Sprint(i))
				time.Sleep(time.Second)
			}
			w.stopAfter(2 * time.Hour)
			if d.done() != 300 || d.runs() > 300+2000 {
				t.Errorf("%d of 300 served, in %d runs", d.done(), d.runs())
			}
			empty(t, broker, "orders", "orders.dead")
		})
	}
}

// Trouble of one message says nothing about the others.
func TestOneOfManySaysNothing(t *testing.T) {
	for name, fail := range map[string]error{
		"throttled":   classify.Throttled(errBusy, 30*time.Second),
		"retry after": classify.RetryAfter(errBusy, 30*time.Second),
		"environment": errDisk,
		"transient":   classify.Transient(errBusy),
		"deferred":    classify.Defer(errBusy, 30*time.Second),
	} {
		bubble(t, name, func(t *testing.T) {
			broker, d := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
			cfg := guarded()
			cfg.Rules, cfg.Retry.MaxAttempts = []classify.Rule{verdicts}, 50
			began := time.Now()
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if string(m.Body) == "odd" && time.Since(began) < 3*time.Minute {
					return fail
				}
				return d.handle(ctx, m)
			}))
			publish(t, broker.Broker, "orders", "odd")
			for minute := range 20 {
				publish(t, broker.Broker, "orders", numbered(fmt.Sprint(minute), 100)...)
				time.Sleep(time.Second)
				if n := d.runs(); n < 100*(minute+1) {
					t.Errorf("%d others served within a second, want 100 a minute for %d minutes", n, minute+1)
				}
				time.Sleep(59 * time.Second)
			}
			w.mustShutdown()
			if broker.paused() != "" || d.done() != 2001 {
				t.Errorf("the source was told to pause %q, %d of 2,001 served", broker.paused(), d.done())
			}
		})
	}
}

// Messages that always fail are dead after their attempts beside good ones, which
// they do not delay; and where nothing succeeds, they cost little.
func TestHopelessMessages(t *testing.T) {
	for _, tt := range []struct {
		name        string
		good        bool // one a minute
		reason      string
		least, most int // attempts; 10 for some, because others fail, too
	}{{"beside good ones", true, "unclassified", 6, 10}, {"alone", false, "expired", 0, 0}} {
		bubble(t, tt.name, func(t *testing.T) {
			broker, d, bad := memory.New(memory.Options{}), &dependency{}, &dependency{down: func() error { return errBusy }}
			w := start(t, broker, guarded(), orders(func(ctx context.Context, m *brokers.Message) error {
				if strings.HasPrefix(string(m.Body), "bad") {
					return bad.handle(ctx, m)
				}
				return d.handle(ctx, m)
			}))
			publish(t, broker, "orders", numbered("bad", 5)...)
			for i := range 24*60 + 10 {
				if tt.good {
					publish(t, broker, "orders", fmt.Sprint(i))
				}
				time.Sleep(time.Minute)
				if tt.good && d.done() != i+1 {
					t.Errorf("%d of %d good ones served within a minute", d.done(), i+1)
				}
			}
			w.mustShutdown()
			letters := deadLetters(t, broker, "orders")
			for _, letter := range letters {
				if n := letter.Meta.Attempt; n < tt.least || n > tt.most || letter.Reason != tt.reason {
					t.Errorf("%s is dead by %q after %d attempts, want %s after %d to %d", letter.Message.Body, letter.Reason, n, tt.reason, tt.least, tt.most)
				}
			}
			if n := bad.runs(); len(letters) != 5 || n > 1000 {
				t.Errorf("%d of 5 dead after a day and %d runs, want all and 1,000 at most", len(letters), n)
			}
		})
	}
}

// In an outage, fresh messages are tried before those that have failed, as far as the
// worker holds them.
func TestFreshMessagesProbeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := memory.New(memory.Options{}), &dependency{down: unavailable}
		w := start(t, broker, guarded(), d.register("orders"))
		publish(t, broker, "orders", numbered("old", 30)...)
		time.Sleep(10 * time.Minute)
		begin := time.Now()
		publish(t, broker, "orders", numbered("new", 5)...)
		time.Sleep(2 * time.Minute)
		probes := d.since(begin)[:4] // one that failed may come back before the last is received
		for _, body := range probes {
			if !strings.HasPrefix(body, "new") {
				t.Errorf("the first four probes are %v, want new ones", probes)
			}
		}
		d.set(nil)
		w.stopAfter(15 * time.Minute)
		empty(t, broker, "orders", "orders.dead")
	})
}

// A message whose last failure is yet to come, since a clock was set back, is tried
// as any other, and ends.
func TestFailureThatIsYetToCome(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker, future := newTap(memory.Options{}), time.Now().Add(100*time.Hour)
		broker.deliver = func(d *brokers.Delivery) {
			if d.Meta().Attempt == 0 && string(d.Message.Body) == "bad" {
				d.Carried = &brokers.Meta{Attempt: 1, FirstFailedAt: future, LastFailedAt: future}
			}
		}
		cfg := guarded()
		cfg.HoldLimit = hold
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "bad" {
				return errBusy
			}
			return nil
		}))
		publish(t, broker.Broker, "orders", "bad")
		for range 60 {
			publish(t, broker.Broker, "orders", "good")
			time.Sleep(time.Minute)
		}
		w.mustShutdown()
		if entry := oneDeadLetter(t, broker.Broker, "orders"); entry.Meta.Attempt != 6 {
			t.Errorf("dead after %d attempts, want 6", entry.Meta.Attempt)
		}
	})
}

// A run that may have had its effect is not repeated where that was asked for.
func TestNoRepeat(t *testing.T) {
	for _, tt := range []struct {
		name          string
		config, topic bool
		fails         []error
		runs, dead    int
	}{
		{"on the topic", false, true, []error{context.DeadlineExceeded, nil}, 1, 1},
		{"for all", true, false, []error{context.DeadlineExceeded, nil}, 1, 1},
		{"after failures without effect", true, true, []error{errBusy, errBusy, context.DeadlineExceeded, nil}, 3, 1},
		{"without effect", true, true, []error{errBusy, nil}, 2, 0},
		{"by default", false, false, []error{context.DeadlineExceeded, context.DeadlineExceeded, nil}, 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whereHeld(t, func(t *testing.T, hold time.Duration) {
				broker := brokerWith("orders", "one")
				cfg := guarded()
				cfg.NoRepeat, cfg.HoldLimit, cfg.Retry = tt.config, hold, every(time.Second, 9)
				runs := 0
				w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
					runs++
					return tt.fails[runs-1]
				}, consumer.TopicConfig{NoRepeat: tt.topic}))
				w.stopAfter(time.Hour)
				if runs != tt.runs || broker.Len("orders.dead") != tt.dead || tt.dead > 0 && oneDeadLetter(t, broker, "orders").Reason != "ambiguous" {
					t.Errorf("%d runs and %d dead, want %d and %d as ambiguous", runs, broker.Len("orders.dead"), tt.runs, tt.dead)
				}
			})
		})
	}
}
