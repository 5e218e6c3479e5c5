package consumer_test

import (
	"context"
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
)

func TestThrottleByContrast(t *testing.T) {
	for _, tt := range []struct {
		name         string
		hint         time.Duration
		least, after time.Duration // how long nothing runs, at least and at most
	}{
		{"a while", 40 * time.Second, 40 * time.Second, 44 * time.Second},
		{"longer than the policy allows", 1000 * time.Hour, 15 * time.Minute, 15*time.Minute + 5*time.Second},
		{"no time at all", 0, 5 * time.Second, 10 * time.Second},
		{"a negative time", -time.Hour, 5 * time.Second, 10 * time.Second},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			flood(t, broker, "orders", 100)
			d := &dependency{}
			d.set(func() error { return classify.Throttled(errBusy, tt.hint) })
			var seen recorder
			cfg := quiet()
			cfg.Observers = []consumer.Observer{&seen}
			began := time.Now()
			w := start(t, broker, cfg, d.register("orders"))
			time.Sleep(time.Millisecond)
			before := len(d.since(began))
			if before < 10 || before > 20 {
				t.Errorf("%d runs until it was seen that all are throttled, want 10 to 20", before)
			}
			d.set(nil)
			time.Sleep(tt.least - 2*time.Millisecond)
			if got := len(d.since(began)) - before; got != 0 {
				t.Errorf("%d runs before the time that the dependency asked for", got)
			}
			time.Sleep(tt.after - tt.least + time.Second) // and the grace for fresh messages
			if d.done() < 80 {
				t.Errorf("%d served within %v, want it to be over", d.done(), tt.after)
			}
			time.Sleep(time.Hour)
			w.mustShutdown()
			if d.done() != 100 || broker.Len("orders.dead") != 0 {
				t.Errorf("%d of 100 served in the end, %d dead", d.done(), broker.Len("orders.dead"))
			}
			paused := seen.of(consumer.EventPaused)
			if len(paused) != 1 || len(seen.of(consumer.EventResumed)) != 1 {
				t.Fatalf("paused: %+v, want once", paused)
			}
			uncounted(t, &seen, 0)
		})
	}
}

// What happens to one message of many says nothing about the others.
func TestOneOfManySaysNothing(t *testing.T) {
	for name, fail := range map[string]error{
		"throttled":   classify.Throttled(errBusy, 30*time.Second),
		"retry after": classify.RetryAfter(errBusy, 30*time.Second),
		"environment": errDisk,
		"transient":   classify.Transient(errBusy),
		"deferred":    classify.Defer(errBusy, 30*time.Second),
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			d := &dependency{takes: 10 * time.Millisecond}
			cfg := quiet()
			cfg.Rules, cfg.Retry.MaxAttempts = []classify.Rule{verdicts}, 50
			began := time.Now()
			var again time.Time
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if string(m.Body) != "odd" {
					return d.handle(ctx, m)
				}
				if time.Since(began) < 3*time.Minute {
					return fail
				}
				again = time.Now()
				return nil
			}))
			publish(t, broker.Broker, "orders", "odd")
			for minute := range 20 {
				flood(t, broker.Broker, "orders", 100)
				time.Sleep(time.Second)
				if n := len(d.since(began)); n != 100*(minute+1) {
					t.Errorf("%d others served within a second, want 100 a minute for %d minutes", n, minute+1)
				}
				time.Sleep(59 * time.Second)
			}
			w.mustShutdown()
			broker.mu.Lock()
			defer broker.mu.Unlock()
			if slices.ContainsFunc(broker.pauses, func(s string) bool { return s != "" }) || again.IsZero() {
				t.Errorf("the source was told to pause: %q; the one was served at %v", broker.pauses, again)
			}
		})
	}
}

func TestEnvironmentStopsAfterARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 100)
		d := &dependency{down: func() error { return errDisk }}
		var seen recorder
		cfg := quiet()
		cfg.Rules, cfg.Observers = []classify.Rule{verdicts}, []consumer.Observer{&seen}
		w := start(t, broker, cfg, d.register("orders"))
		time.Sleep(4 * time.Second)
		if got := d.runs(); got < 10 || got > 20 {
			t.Errorf("%d runs before the first probe, want one for each slot, and what had begun", got)
		}
		time.Sleep(2 * time.Hour)
		uncounted(t, &seen, 0)
		d.set(nil)
		time.Sleep(time.Minute + time.Second) // the longest EnvironmentDelay, and a run
		w.mustShutdown()
		if d.done() != 100 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 100 served, %d dead", d.done(), broker.Len("orders.dead"))
		}
	})
}

// A hang is seen after one round of timeouts.
func TestHangIsSeenAfterARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 200)
		var mu sync.Mutex
		hangs, runs, served := true, 0, 0
		cfg := quiet()
		cfg.HandlerTimeout = 30 * time.Second
		var seen recorder
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			mu.Lock()
			wait := hangs
			runs++
			mu.Unlock()
			if wait {
				<-ctx.Done()
				return ctx.Err()
			}
			mu.Lock()
			served++
			mu.Unlock()
			return nil
		}))
		time.Sleep(34 * time.Second)
		mu.Lock()
		if runs > 20 {
			t.Errorf("%d runs before anything was known to work, want the 10 that timed out and what had begun then", runs)
		}
		mu.Unlock()
		time.Sleep(2 * time.Hour)
		uncounted(t, &seen, 1)
		mu.Lock()
		hangs = false
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		w.mustShutdown()
		if served != 200 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 200 served, %d dead", served, broker.Len("orders.dead"))
		}
	})
}

func TestMassPoisonStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 1000)
		d := &dependency{down: func() error { return classify.Permanent(errBusy) }}
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, d.register("orders"))
		time.Sleep(59 * time.Second)
		dead := broker.Len("orders.dead")
		if dead < 20 || dead > 30 {
			t.Errorf("%d dead letters in the first minute of a faulty deployment, want 20 to 30", dead)
		}
		if paused := seen.of(consumer.EventPaused); len(paused) != 1 || !strings.Contains(paused[0].Err.Error(), "all messages are poison") || paused[0].Until.Before(time.Now()) {
			t.Errorf("paused: %+v, want once, with why and until when", paused)
		}
		time.Sleep(5 * time.Minute)
		if more := broker.Len("orders.dead") - dead; more != 0 {
			t.Errorf("%d more are dead after five minutes: a probe ends no message", more)
		}
		if probes := d.runs() - dead; probes < 1 || probes > 5 {
			t.Errorf("%d messages tried in the next five minutes, want one now and then", probes)
		}
		d.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		if d.done()+dead != 1000 {
			t.Errorf("%d served and %d dead, want all others of 1000 served", d.done(), broker.Len("orders.dead"))
		}
	})
}

// As long as one message in five is good, the others are at fault themselves.
func TestMuchPoisonDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 1000)
		cfg := quiet()
		var seen recorder
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			if strings.HasSuffix(string(m.Body), "0") || strings.HasSuffix(string(m.Body), "5") {
				return nil
			}
			return classify.Permanent(errBusy)
		}))
		time.Sleep(time.Second)
		if dead := broker.Len("orders.dead"); dead != 800 || len(seen.of(consumer.EventPaused)) != 0 {
			t.Errorf("%d of 800 dead letters in a second, paused %d times", dead, len(seen.of(consumer.EventPaused)))
		}
		w.mustShutdown()
	})
}

// The switch lets everything run to its end.
func TestNoPoisonStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 500)
		cfg := quiet()
		cfg.Guard.NoPoisonStop = true
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Permanent(errBusy) }))
		time.Sleep(time.Second)
		w.mustShutdown()
		if dead := broker.Len("orders.dead"); dead != 500 {
			t.Errorf("%d of 500 dead letters in a second: poison says nothing against what handlers depend on", dead)
		}
	})
}
