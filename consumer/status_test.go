package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// opening is a tap whose Open does something first.
type opening struct {
	*tap
	open func(ctx context.Context) error
}

func (o *opening) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	if err := o.open(ctx); err != nil {
		return nil, err
	}
	return o.tap.Open(ctx, sub)
}

func TestStatusOfALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &opening{tapWith("orders", "one"), func(context.Context) error { time.Sleep(time.Minute); return nil }}
		c := must(consumer.New(broker, quiet()))
		c.Handle("orders", func(context.Context, *brokers.Message) error { time.Sleep(10 * time.Second); return nil })
		h, began := health.Handler(c), time.Now()
		is := func(want health.State, since time.Duration, startup, ready int) {
			t.Helper()
			s := c.Status()
			if s.State != want || want != health.New && s.Since.Sub(began) != since || s.Opened.IsZero() != (startup != http.StatusOK) {
				t.Errorf("status %s since %v, want %s since %v; opened at %v", s.State, s.Since.Sub(began), want, since, s.Opened)
			}
			for path, want := range map[string]int{"/livez": http.StatusOK, "/startupz": startup, "/readyz": ready} {
				if code, body := probed(t, h, path); code != want {
					t.Errorf("%s: %s is %d %s, want %d", s.State, path, code, body, want)
				}
			}
		}
		is(health.New, 0, 503, 503)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(30 * time.Second)
		is(health.Opening, 0, 503, 503)
		time.Sleep(35 * time.Second)
		is(health.Running, time.Minute, 200, 200)
		stop()
		synctest.Wait()
		is(health.Draining, 65*time.Second, 200, 503)
		if err := <-done; err != nil {
			t.Error(err)
		}
		is(health.Stopped, 70*time.Second, 200, 503)
	})
}

// The body of /startupz is the refusal, without secrets and in its lines.
func TestStartupOfARefusedTopology(t *testing.T) {
	refusal := errors.Join(errors.New("queue orders: \x1b[31mno rights: password=s3cr3t"), errors.New("queue refunds is missing"))
	broker := &opening{newTap(memory.Options{}), func(context.Context) error { return refusal }}
	c := must(consumer.New(broker, quiet()))
	c.Handle("orders", failing(nil))
	if err := c.Run(t.Context()); !errors.Is(err, refusal) {
		t.Fatalf("Run = %v", err)
	}
	h := health.Handler(c)
	code, body := probed(t, h, "/startupz")
	if lines := strings.Split(body, "\n"); code != 503 || len(lines) != 3 || !strings.Contains(lines[0], "queue orders") || !strings.Contains(lines[1], "queue refunds is missing") {
		t.Errorf("/startupz is %d %q, want the two lines of the refusal", code, body)
	}
	if strings.Contains(body, "s3cr3t") || strings.Contains(body, "\x1b") {
		t.Errorf("/startupz tells a secret, or has control characters: %q", body)
	}
	if code, body := probed(t, h, "/livez"); code != 200 {
		t.Errorf("/livez is %d %s: no restart cures a refusal", code, body)
	}
}

// running runs c until the test ends, in whatever way.
func running(t *testing.T, c *consumer.Consumer) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestStatusOfATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := newTap(memory.Options{}), quiet()
		cfg.Guard = consumer.Guard{}
		cfg.Retry = every(30*time.Second, 4)
		cfg.HoldLimit = time.Hour
		began := time.Now()
		c := must(consumer.New(broker, cfg))
		c.HandleWith("orders", func(_ context.Context, m *brokers.Message) error {
			switch string(m.Body) {
			case "slow":
				time.Sleep(time.Minute)
			case "ill":
				return classify.Transient(errBusy)
			case "dead":
				return classify.Permanent(errBusy)
			}
			return nil
		}, consumer.TopicConfig{Dependency: "bank", Concurrency: 5, HandlerTimeout: 2 * time.Minute, MaxAttempts: 3})
		c.Handle("refunds", failing(nil))
		running(t, c)
		time.Sleep(90 * time.Second)
		publish(t, broker.Broker, "orders", "well", "dead", "ill", "slow")
		time.Sleep(20 * time.Second)

		s := c.Status()
		if len(s.Topics) != 2 || s.Topics[1].Name != "refunds" || len(s.Loops) != 0 {
			t.Fatalf("status %+v, want orders and refunds", s)
		}
		got := s.Topics[0]
		since := func(at time.Time) time.Duration { return at.Sub(began) }
		if got.Budget == nil || got.Pause != nil || got.Limit != 5 && got.Limit != 2.5 {
			t.Errorf("limit %v, pause %+v, budget %+v", got.Limit, got.Pause, got.Budget)
		}
		if since(got.LastSuccess) != 90*time.Second || since(got.Oldest) != 90*time.Second {
			t.Errorf("last success at %v, the oldest came at %v; want 90s", since(got.LastSuccess), since(got.Oldest))
		}
		got.Budget, got.LastSuccess, got.Oldest, got.Limit = nil, time.Time{}, time.Time{}, 0
		want := health.Topic{
			Name: "orders", Slots: 5, Running: 1, InFlight: 2, Waiting: 1, Attempts10m: 3, DeadLetters10m: 1, Dependency: "bank",
			Policy: health.Policy{MaxAttempts: 3, MaxDelay: health.Duration(15 * time.Minute), MaxAge: health.Duration(24 * time.Hour), Timeout: health.Duration(2 * time.Minute)},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("topic %+v\nwant  %+v", got, want)
		}

		code, body := probed(t, health.Handler(c), "/statusz?format=json")
		var decoded health.Status
		if err := json.Unmarshal([]byte(body), &decoded); err != nil || code != 200 || !reflect.DeepEqual(decoded.Topics[0].Policy, want.Policy) {
			t.Errorf("/statusz is %d %s: %v", code, body, err)
		}
		_, text := probed(t, health.Handler(c), "/statusz")
		for _, part := range []string{"running for 1m50s", "orders: 1 of 5 slots", "2 messages in flight", "came 20s ago", "dependency bank", "3 attempts in 24h0m0s"} {
			if !strings.Contains(text, part) {
				t.Errorf("/statusz has no %q:\n%s", part, text)
			}
		}

		time.Sleep(12 * time.Minute)
		if s := c.Status().Topics[0]; s.Attempts10m != 0 || s.DeadLetters10m != 0 || s.InFlight != 0 || !s.Oldest.IsZero() {
			t.Errorf("after 12 minutes: %+v", s)
		}
	})
}

func TestStatusOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		d := &dependency{takes: 10 * time.Millisecond, down: func() error { return classify.Transient(errBusy) }}
		c := must(consumer.New(broker, guarded()))
		c.Handle("orders", d.handle)
		running(t, c)
		for i := range 100 {
			publish(t, broker.Broker, "orders", fmt.Sprint("order ", i))
		}
		time.Sleep(5 * time.Minute)
		next := 0 // times that the next probe was still to come
		for range 30 {
			time.Sleep(time.Second)
			s := c.Status()
			p := s.Topics[0].Pause
			if p == nil || p.ByHand || !strings.Contains(p.Cause, "messages failed") || p.Since.IsZero() || p.Since.After(s.At) {
				t.Fatalf("pause %+v, want one with its cause", p)
			}
			if p.Next.After(s.At) && strings.Contains(s.String(), "next probe in") {
				next++
			}
		}
		if next == 0 {
			t.Error("no status tells of the next probe")
		}
		d.set(nil)
		time.Sleep(5 * time.Minute)
		if s := c.Status().Topics[0]; s.Pause != nil {
			t.Errorf("pause %+v after the outage", s.Pause)
		}
	})
}

// A topic without a free slot fails /livez after ten minutes, and only if the handlers
// ignore their contexts.
func TestLivezOfStuckHandlers(t *testing.T) {
	for name, most := range map[string]int{"slots of the topic": 0, "slots of all topics": 3} {
		bubble(t, name, func(t *testing.T) {
			broker, cfg := newTap(memory.Options{}), quiet()
			cfg.Concurrency, cfg.HandlerTimeout, cfg.MaxConcurrency = 3, time.Minute, most
			var c *consumer.Consumer
			w := start(t, broker, cfg, func(made *consumer.Consumer) {
				c = made
				ignoring(time.Hour, nil)(c)
				c.Handle("refunds", failing(nil))
			})
			h := health.Handler(c)
			publish(t, broker.Broker, "orders", "deaf", "deaf")
			time.Sleep(30 * time.Minute)
			if code, body := probed(t, h, "/livez"); code != 200 {
				t.Errorf("with a free slot: %d %s", code, body)
			}
			publish(t, broker.Broker, "orders", "deaf")
			time.Sleep(11 * time.Minute)
			if code, body := probed(t, h, "/livez"); code != 200 {
				t.Errorf("stuck for less than ten minutes: %d %s", code, body)
			}
			time.Sleep(time.Minute)
			if code, body := probed(t, h, "/livez"); code != 503 || !strings.Contains(body, `topic "orders" has no free slot`) || (most > 0) != strings.Contains(body, "refunds") {
				t.Errorf("stuck for ten minutes: %d %s", code, body)
			}
			never := health.HandlerFor(c, health.Options{StuckFor: -1})
			if code, body := probed(t, never, "/livez"); code != 200 {
				t.Errorf("stuck, and not asked for: %d %s", code, body)
			}
			time.Sleep(30 * time.Minute) // two of them return
			if code, body := probed(t, h, "/livez"); code != 200 {
				t.Errorf("with free slots again: %d %s", code, body)
			}
			time.Sleep(time.Hour)
			w.mustShutdown()
		})
	}
}

// A budget of the user's that panics costs the caller of Status nothing.
func TestStatusWithABudgetThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := guarded()
		cfg.Guard.Budget = panicking{}
		var c *consumer.Consumer
		w := start(t, newTap(memory.Options{}), cfg, func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", failing(nil))
		})
		synctest.Wait()
		if b := c.Status().Topics[0].Budget; b == nil || b.Capacity == 0 {
			t.Errorf("budget %+v, want that of the process", b)
		}
		w.mustShutdown()
	})
}

type panicking struct{ budget.Pacer }

// connected is a source that tells of its connection.
type connected struct {
	brokers.Source
	at health.Connection
}

func (s connected) Connection() health.Connection { return s.at }

type connecting struct {
	*tap
	at health.Connection
}

func (b connecting) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.tap.Open(ctx, sub)
	return connected{s, b.at}, err
}

func TestStatusOfTheBroker(t *testing.T) {
	t.Run("that says nothing of itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(with(memory.Fault{Err: errors.New("connection refused: password=s3cr3t")}, func(op memory.Op) bool { return op.Operation == memory.Receive }))
			var c *consumer.Consumer
			w := start(t, broker, quiet(), func(made *consumer.Consumer) {
				c = made
				c.Handle("orders", failing(nil))
			})
			time.Sleep(time.Minute)
			if b := c.Status().Broker; !strings.Contains(b.Error, "connection refused") || strings.Contains(b.Error, "s3cr3t") || time.Since(b.ErrorAt) > 3*time.Second {
				t.Errorf("broker %+v, want the last error without the secret", b)
			}
			w.mustShutdown()
		})
	})
	t.Run("that fails and is there", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			at := health.Connection{State: health.Running, Since: time.Now(), Error: "an older one", ErrorAt: time.Now()}
			broker := newTap(with(memory.Fault{Err: errors.New("queue is gone")}, func(op memory.Op) bool { return op.Operation == memory.Receive }))
			var c *consumer.Consumer
			w := start(t, connecting{broker, at}, quiet(), func(made *consumer.Consumer) {
				c = made
				c.Handle("orders", failing(nil))
			})
			time.Sleep(time.Minute)
			if b := c.Status().Broker; b.State != health.Running || !strings.Contains(b.Error, "queue is gone") || time.Since(b.ErrorAt) > 3*time.Second {
				t.Errorf("broker %+v, want a connection, and the later error", b)
			}
			w.mustShutdown()
		})
	})
	t.Run("that is away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			at := health.Connection{State: health.Opening, Since: time.Now(), Error: "connection refused", ErrorAt: time.Now(),
				Partitions: []health.Partition{{Topic: "orders", Partition: 3, Position: 12, Lag: 5}}}
			var c *consumer.Consumer
			w := start(t, connecting{newTap(memory.Options{}), at}, quiet(), func(made *consumer.Consumer) {
				c = made
				c.Handle("orders", failing(nil))
			})
			time.Sleep(time.Minute)
			h := health.Handler(c)
			if code, body := probed(t, h, "/readyz"); code != 503 || body != "not connected to the broker for 1m0s; last error of the broker 1m0s ago: connection refused\n" {
				t.Errorf("/readyz is %d %s", code, body)
			}
			for path, want := range map[string]string{"/livez": "ok", "/startupz": "ok", "/statusz": "orders/3: position 12, lag 5, last record never"} {
				if code, body := probed(t, h, path); code != 200 || !strings.Contains(body, want) {
					t.Errorf("%s is %d %s", path, code, body)
				}
			}
			w.mustShutdown()
		})
	})
}

// BenchmarkStatus has 10,000 messages in flight or more, in ten topics.
func BenchmarkStatus(b *testing.B) {
	const topics, each, least = 10, 2500, 10_000
	broker, cfg := memory.New(memory.Options{}), quiet()
	cfg.Guard = consumer.Guard{Limiter: flow.Unbounded(rand.Float64)}
	cfg.Prefetch = each
	ctx, stop := context.WithCancel(b.Context())
	c := must(consumer.New(broker, cfg))
	for i := range topics {
		name := fmt.Sprint("topic-", i)
		c.Handle(name, func(context.Context, *brokers.Message) error {
			<-ctx.Done()
			return nil
		})
		for range each {
			if err := broker.Publish(ctx, name, brokers.Message{Body: []byte("{}")}); err != nil {
				b.Fatal(err)
			}
		}
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	inFlight := func() (n int) {
		for _, t := range c.Status().Topics {
			n += t.InFlight
		}
		return n
	}
	for inFlight() < least {
		time.Sleep(time.Millisecond)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = c.Status()
	}
	stop()
	if err := <-done; err != nil {
		b.Error(err)
	}
}
