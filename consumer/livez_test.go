package consumer_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/retry/flow"
)

// freezer holds up the loops that meet it, until it is thawed.
type freezer struct {
	mu   sync.Mutex
	at   time.Time // when the first one did; zero if none met it
	thaw chan struct{}
}

func newFreezer() *freezer { return &freezer{thaw: make(chan struct{})} }

func (f *freezer) meet() {
	f.mu.Lock()
	if f.at.IsZero() {
		f.at = time.Now()
	}
	f.mu.Unlock()
	<-f.thaw
}

// frozen returns when the first loop met f; zero if none did.
func (f *freezer) frozen() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// on adds an Observer that meets f at every event of a kind.
func (f *freezer) on(cfg *consumer.Config, kind string) {
	cfg.Observers = append(cfg.Observers, observing(func(e consumer.Event) {
		if kindOf(e) == kind {
			f.meet()
		}
	}))
}

// probed returns the status and the body of a path of h.
func probed(t *testing.T, h http.Handler, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// failing is a handler that fails with each message, and succeeds with "well".
func failing(err error) consumer.Handler {
	return func(_ context.Context, m *brokers.Message) error {
		if string(m.Body) == "well" {
			return nil
		}
		return err
	}
}

// Each loop of a worker is frozen once, and /livez says so within 20 s, or 20 s after
// the time that a call of the broker has at most.
func TestLivezSeesEachFrozenLoop(t *testing.T) {
	const inTime, aCall = 20 * time.Second, 30 * time.Second
	tests := []struct {
		name, loop string
		within     time.Duration
		body       string
		options    memory.Options
		freeze     func(f *freezer, b *tap, cfg *consumer.Config) // where it meets f
		result     error                                          // of the handler
	}{
		{name: "receive, as it accepts", loop: "receive", within: inTime, body: "well", freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
			f.on(cfg, consumer.EventReceived)
		}},
		{name: "receive, in the source", loop: "receive", within: inTime, body: "well", freeze: func(f *freezer, b *tap, _ *consumer.Config) {
			b.deliver = func(*brokers.Delivery) { f.meet() }
		}},
		{name: "settle", loop: "settle", within: inTime, body: "well", freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
			f.on(cfg, acked)
		}},
		{name: "settle, in the source", loop: "settle", within: aCall + inTime, body: "well", freeze: func(f *freezer, b *tap, _ *consumer.Config) {
			b.settle = func(_ []brokers.Settlement, errs []error) []error { f.meet(); return errs }
		}},
		{name: "retry", loop: "retry", within: inTime, body: "ill", result: errBusy, freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
			cfg.Retry = every(time.Hour, 2)
			f.on(cfg, retried)
		}},
		{name: "reject", loop: "reject", within: inTime, body: "ill", result: classify.Permanent(errBusy),
			options: with(memory.Fault{Err: brokers.ErrRefused}, func(op memory.Op) bool { return deadLettering(op) && op.Nth <= 2 }),
			freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
				f.on(cfg, "reject")
			}},
		{name: "dead letters", loop: "dead letters to orders.dead", within: inTime, body: "ill", result: classify.Permanent(errBusy),
			freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
				f.on(cfg, consumer.EventDeadLettered)
			}},
		{name: "leases", loop: "leases", within: inTime, body: "ill", result: errBusy,
			options: memory.Options{Lease: 5 * time.Second, Fault: on(memory.Extend, 100, memory.Fault{Err: errors.New("i/o timeout")})},
			freeze: func(f *freezer, _ *tap, cfg *consumer.Config) {
				cfg.Retry, cfg.HoldLimit = every(time.Hour, 2), 2*time.Hour
				f.on(cfg, consumer.EventLeaseLost)
			}},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			broker, cfg, f := newTap(tt.options), quiet(), newFreezer()
			tt.freeze(f, broker, &cfg)
			publish(t, broker.Broker, "orders", tt.body)
			var c *consumer.Consumer
			w := start(t, broker, cfg, func(made *consumer.Consumer) {
				c = made
				c.Handle("orders", failing(tt.result))
			})
			sees(t, health.Handler(c), f, tt.loop, tt.within)
			w.mustShutdown()
		})
	}
}

// A worker that is told to stop is not ready, though its receive loop does not see it.
func TestFrozenWorkerThatIsToldToStopIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg, f := newTap(memory.Options{}), quiet(), newFreezer()
		f.on(&cfg, consumer.EventReceived)
		publish(t, broker.Broker, "orders", "well")
		var c *consumer.Consumer
		w := start(t, broker, cfg, func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", failing(nil))
		})
		time.Sleep(time.Second)
		if code, body := probed(t, health.Handler(c), "/readyz"); code != http.StatusOK || f.frozen().IsZero() {
			t.Errorf("before: %d %s, frozen at %v", code, body, f.frozen())
		}
		w.stop()
		if code, body := probed(t, health.Handler(c), "/readyz"); code != http.StatusServiceUnavailable || body != "draining\n" {
			t.Errorf("told to stop: %d %s, want that it drains", code, body)
		}
		close(f.thaw)
		w.mustShutdown()
	})
}

// sees probes every 5 s, until /livez names the loop, and thaws f.
func sees(t *testing.T, h http.Handler, f *freezer, loop string, within time.Duration) {
	t.Helper()
	defer func() {
		close(f.thaw)
		time.Sleep(time.Second)
		if code, body := probed(t, h, "/livez"); code != http.StatusOK {
			t.Errorf("after it goes on: %d %s", code, body)
		}
	}()
	for range 30 {
		time.Sleep(5 * time.Second)
		code, body := probed(t, h, "/livez")
		if code == http.StatusOK {
			continue
		}
		if !strings.Contains(body, `"`+loop+`"`) {
			t.Errorf("/livez: %d %s, want that %q is frozen", code, body, loop)
		}
		if at := f.frozen(); at.IsZero() || time.Since(at) > within {
			t.Errorf("seen at %v, frozen at %v: want that within %v", time.Now(), at, within)
		}
		return
	}
	t.Errorf("a loop that was frozen at %v is never seen", f.frozen())
}

// Receipts are published by a loop of their own.
func TestLivezSeesFrozenReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cfg := newFreezer(), quiet()
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Publish && op.Topic == "receipts" {
				f.meet()
			}
			return memory.Fault{}
		}})
		cfg.Receipts = "receipts"
		var c *consumer.Consumer
		w := start(t, broker, cfg, func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", failing(nil))
		})
		if err := broker.SendBack(t.Context(), "", "orders", brokers.Item{Message: &brokers.Message{ID: "one"}, Meta: brokers.Meta{Send: "send-1"}}); err != nil {
			t.Fatal(err)
		}
		sees(t, health.Handler(c), f, "receipts", 50*time.Second)
		w.mustShutdown()
	})
}

// The timer of a limit is frozen while it holds the lock of the admission. So
// this test looks once: what waits for a lock lets no time pass in a bubble.
func TestStatusTellsOfAFrozenLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cfg, l := newFreezer(), quiet(), flow.New(10, func() float64 { return 0.5 })
		l.Adjust(time.Now(), flow.Change{Pause: "maintenance"})
		cfg.Guard = consumer.Guard{Limiter: l}
		f.on(&cfg, consumer.EventPaused)
		var c *consumer.Consumer
		w := start(t, newTap(memory.Options{}), cfg, func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", failing(nil))
		})
		time.Sleep(16 * time.Second)
		if got, want := c.Status().Loops, (health.Loop{Name: "limit of orders", Late: health.Duration(15 * time.Second)}); len(got) != 1 || got[0] != want {
			t.Errorf("late are %v, want %v", got, want)
		}
		close(f.thaw)
		time.Sleep(3 * time.Second)
		if got := c.Status().Loops; len(got) > 0 {
			t.Errorf("after it goes on, late are %v", got)
		}
		w.mustShutdown()
	})
}

// What no restart cures leaves /livez alone: a worker without messages, a pause, a
// broker that is away or slow, a drain.
func TestLivezIsNotFooled(t *testing.T) {
	const hours = 3 * time.Hour
	away := memory.Fault{Err: errors.New("connection refused")}
	tests := []struct {
		name    string
		options memory.Options
		cfg     func(*consumer.Config)
		handler consumer.Handler
		ready   int
	}{
		{name: "nothing to do", handler: failing(nil), ready: http.StatusOK},
		{name: "everything fails", handler: failing(errBusy), ready: http.StatusOK, cfg: func(cfg *consumer.Config) { cfg.Guard = consumer.Guard{} }},
		{name: "paused by hand", handler: failing(nil), ready: http.StatusOK, cfg: func(cfg *consumer.Config) {
			l := flow.New(10, func() float64 { return 0.5 })
			l.Adjust(time.Now(), flow.Change{Pause: "maintenance"})
			cfg.Guard = consumer.Guard{Limiter: l}
		}},
		{name: "nothing can be received", handler: failing(nil), ready: http.StatusOK,
			options: with(away, func(op memory.Op) bool { return op.Operation == memory.Receive })},
		{name: "nothing can be settled", handler: failing(nil), ready: http.StatusOK,
			options: with(away, func(op memory.Op) bool { return op.Operation == memory.Settle })},
		{name: "settlements take 25 s", handler: failing(nil), ready: http.StatusOK,
			options: with(memory.Fault{Latency: 25 * time.Second}, func(op memory.Op) bool { return op.Operation == memory.Settle })},
		{name: "settlements get no answer", handler: failing(nil), ready: http.StatusOK,
			options: with(memory.Fault{Latency: time.Hour}, func(op memory.Op) bool { return op.Operation == memory.Settle })},
		{name: "no dead letter is taken", handler: failing(classify.Permanent(errBusy)), ready: http.StatusOK,
			options: with(away, deadLettering)},
		{name: "leases cannot be extended", handler: func(ctx context.Context, _ *brokers.Message) error { <-ctx.Done(); return ctx.Err() }, ready: http.StatusOK,
			options: memory.Options{Lease: 5 * time.Second, Fault: func(op memory.Op) memory.Fault {
				if op.Operation == memory.Extend {
					return away
				}
				return memory.Fault{}
			}}},
		{name: "slow handlers", handler: func(ctx context.Context, _ *brokers.Message) error { time.Sleep(4 * time.Minute); return nil }, ready: http.StatusOK},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			broker, cfg := newTap(tt.options), quiet()
			if tt.cfg != nil {
				tt.cfg(&cfg)
			}
			var c *consumer.Consumer
			w := start(t, broker, cfg, func(made *consumer.Consumer) {
				c = made
				c.Handle("orders", tt.handler)
			})
			defer func() { w.stop(); <-w.done; time.Sleep(5 * time.Minute) }() // slow handlers return meanwhile
			h := health.Handler(c)
			for at := time.Duration(0); at < hours; at += 10 * time.Second {
				if at < hours/2 && at%time.Minute == 0 {
					publish(t, broker.Broker, "orders", "ill", "well")
				}
				time.Sleep(10 * time.Second)
				if code, body := probed(t, h, "/livez"); code != http.StatusOK {
					t.Fatalf("after %v /livez is %d %s", at, code, body)
				}
				if code, body := probed(t, h, "/readyz"); code != tt.ready {
					t.Fatalf("after %v /readyz is %d %s, want %d", at, code, body, tt.ready)
				}
			}
			w.stop()
			for range 5 { // the drain
				time.Sleep(10 * time.Second)
				if code, body := probed(t, h, "/livez"); code != http.StatusOK {
					t.Errorf("in the drain /livez is %d %s", code, body)
				}
				if code, _ := probed(t, h, "/readyz"); code != http.StatusServiceUnavailable {
					t.Errorf("in the drain /readyz is %d", code)
				}
			}
		})
	}
}
