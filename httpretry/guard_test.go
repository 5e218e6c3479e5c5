package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// tokens is a budget that counts, and has none if empty is set.
type tokens struct {
	mu                             sync.Mutex
	empty                          bool
	withdrawn, refunded, deposited int
}

func (b *tokens) Withdraw(_ time.Time, most time.Duration, _ float64) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withdrawn++
	return max(most, 0), !b.empty
}

func (b *tokens) Refund(time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refunded++
}

func (b *tokens) Deposit(_ time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deposited += n
}

func (b *tokens) Snapshot(time.Time) budget.Snapshot { return budget.Snapshot{} }

func (b *tokens) want(t *testing.T, withdrawn, refunded, deposited int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.withdrawn != withdrawn || b.refunded != refunded || b.deposited != deposited {
		t.Errorf("budget: %d withdrawn, %d refunded, %d deposited, want %d, %d, %d",
			b.withdrawn, b.refunded, b.deposited, withdrawn, refunded, deposited)
	}
}

// trip opens b by calls that fail.
func trip(b *breaker.Breaker) {
	for range 5 {
		now := time.Now()
		if ok, _ := b.Start(now); ok {
			b.Done(now, now, 0, flow.Overload)
		}
	}
}

// call makes a GET and returns the status, 0 for an error.
func call(t *testing.T, client *http.Client, ctx context.Context) (int, error) {
	t.Helper()
	resp, err := client.Do(request(t, ctx, "GET", nil))
	if err != nil {
		return 0, err
	}
	read(t, resp)
	return resp.StatusCode, nil
}

// asking fails once, and asks for a wait of so many seconds.
func asking(seconds int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.Header().Set("Retry-After", fmt.Sprint(seconds))
			w.WriteHeader(503)
		}
	}
}

func TestBudget(t *testing.T) {
	t.Run("counts calls and retries", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &tokens{}
			client := serve(t, status(503, 200, 404, 503, 503, 200)).client(t, httpretry.Policy{Budget: b})
			for range 4 {
				if _, err := call(t, client, t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			b.want(t, 2, 1, 4) // one of two retries succeeded
		})
	})
	t.Run("has no token", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &tokens{empty: true}
			began := time.Now()
			code, err := call(t, serve(t, status(503)).client(t, httpretry.Policy{Budget: b}), t.Context())
			if code != 503 || err != nil || time.Since(began) != 0 {
				t.Errorf("status %d, %v after %v, want 503 at once", code, err, time.Since(began))
			}
			b.want(t, 1, 0, 1)
		})
	})
	t.Run("is not asked for a retry that the context has no time for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &tokens{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if code, err := call(t, serve(t, asking(1)).client(t, httpretry.Policy{Budget: b}), ctx); code != 503 || err != nil {
				t.Errorf("status %d, %v, want 503", code, err)
			}
			b.want(t, 0, 0, 1)
		})
	})
	t.Run("gets back the token of a cancelled wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &tokens{}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			resp, err := serve(t, asking(1)).client(t, httpretry.Policy{Budget: b}).Do(request(t, ctx, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			b.want(t, 1, 1, 1)
		})
	})
	t.Run("of its own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status())
			s.down.Store(true)
			client := s.client(t, httpretry.Policy{NoBreaker: true})
			const calls = 1000
			var wg sync.WaitGroup
			for range calls {
				wg.Go(func() { _, _ = call(t, client, t.Context()) })
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
			retries := s.dials.Load() - calls
			if limit := int64(0.2*calls + 10 + 600); retries == 0 || retries > limit {
				t.Errorf("%d retries of %d calls, want some, and at most %d", retries, calls, limit)
			}
		})
	})
	t.Run("off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status())
			s.down.Store(true)
			client := s.client(t, httpretry.Policy{NoBreaker: true, NoBudget: true})
			for range 300 {
				_, _ = call(t, client, t.Context())
			}
			if got := s.dials.Load(); got != 600 {
				t.Errorf("%d dials, want 600", got)
			}
		})
	})
}

func TestBreaker(t *testing.T) {
	t.Run("open", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status(503, 503, 503))
			b := breaker.New(breaker.Config{})
			client := s.client(t, httpretry.Policy{Breaker: b})
			for range 2 { // and a retry of the first
				if code, err := call(t, client, t.Context()); code != 503 || err != nil {
					t.Fatalf("%d, %v, want the 503", code, err)
				}
			}
			body := &closer{Reader: strings.NewReader("b")}
			_, err := client.Do(request(t, t.Context(), "PUT", body))
			var open *httpretry.OpenError
			if !errors.As(err, &open) || open.Dependency != "bank.example" || open.State != breaker.Open || body.closed.Load() != 1 {
				t.Fatalf("error = %v, body closed %d times, want an OpenError and a closed body", err, body.closed.Load())
			}
			if v := classify.Of(err); !v.Deferred || v.RetryAfter != open.Wait || v.Ambiguous || open.Wait != time.Second {
				t.Errorf("verdict = %+v, want deferred for 1s", v)
			}
			if got := len(s.got()); got != 3 {
				t.Errorf("%d requests arrived, want 3", got)
			}
			time.Sleep(open.Wait)
			for range 2 {
				if code, err := call(t, client, t.Context()); code != 200 || err != nil {
					t.Errorf("after the wait: %d, %v, want 200", code, err)
				}
				time.Sleep(11 * time.Second)
			}
			if got := b.Snapshot(time.Now()).State; got != breaker.Closed {
				t.Errorf("the breaker is %v after it refused no call for 10 s, want closed", got)
			}
		})
	})
	t.Run("a failed probe is not retried", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status(503, 503, 503))
			b := breaker.New(breaker.Config{})
			trip(b)
			time.Sleep(5 * time.Second)
			spent := &tokens{}
			if code, _ := call(t, s.client(t, httpretry.Policy{Breaker: b, Budget: spent}), t.Context()); code != 503 || len(s.got()) != 1 {
				t.Errorf("status %d after %d requests, want 503 after 1", code, len(s.got()))
			}
			spent.want(t, 0, 0, 1)
			if got := b.Snapshot(time.Now()).State; got != breaker.Open {
				t.Errorf("the breaker is %v, want open", got)
			}
		})
	})
	t.Run("one probe at a time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(http.ResponseWriter, *http.Request, int) { time.Sleep(time.Second) })
			b := breaker.New(breaker.Config{})
			trip(b)
			time.Sleep(5 * time.Second)
			client := s.client(t, httpretry.Policy{Breaker: b})
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { _, _ = call(t, client, t.Context()) })
			}
			wg.Wait()
			if got := len(s.got()); got != 1 {
				t.Errorf("%d requests arrived, want 1", got)
			}
		})
	})
	t.Run("opens during the wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, asking(1))
			b := breaker.New(breaker.Config{})
			time.AfterFunc(500*time.Millisecond, func() { trip(b) })
			client := s.client(t, httpretry.Policy{Breaker: b})
			if code, err := call(t, client, t.Context()); code != 503 || err != nil || len(s.got()) != 1 {
				t.Errorf("status %d, %v after %d requests, want the first 503 and no retry", code, err, len(s.got()))
			}
		})
	})
	t.Run("an attempt that panics", func(t *testing.T) {
		b := breaker.New(breaker.Config{})
		client := newTransport(t, httpretry.Config{
			Base:    base(func(*http.Request) (*http.Response, error) { panic("test") }),
			Default: httpretry.Policy{Breaker: b},
		})
		for range 10 {
			func() {
				defer func() { _ = recover() }()
				_, _ = client.RoundTrip(request(t, t.Context(), "GET", nil))
			}()
		}
		trip(b)
		if ok, _ := b.Start(time.Now().Add(5 * time.Second)); !ok {
			t.Error("attempts that panicked keep the places of others")
		}
	})
	t.Run("is not held by the Retry-After of one customer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Retry-After", "86400")
				w.WriteHeader(429)
			})
			b := breaker.New(breaker.Config{})
			client := s.client(t, httpretry.Policy{Breaker: b})
			for range 10 {
				_, _ = call(t, client, t.Context())
			}
			if now := b.Snapshot(time.Now()); now.State != breaker.Open || time.Until(now.Next) > 30*time.Second {
				t.Errorf("the breaker is %v until in %v, want open for some seconds", now.State, time.Until(now.Next))
			}
		})
	})
	t.Run("of a Transport inside of this one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status())
			inner, outer := breaker.New(breaker.Config{}), breaker.New(breaker.Config{})
			inner.Isolate("moving the database")
			spent := &tokens{}
			client := &http.Client{Transport: newTransport(t, httpretry.Config{
				Base:    s.transport(t, httpretry.Policy{Breaker: inner}),
				Default: httpretry.Policy{Breaker: outer, Budget: spent},
			})}
			for range 10 {
				if _, err := call(t, client, t.Context()); !classify.Of(err).Deferred {
					t.Fatalf("error = %v, want that of the inner Transport", err)
				}
			}
			if now := outer.Snapshot(time.Now()); now.State != breaker.Closed || now.Messages != 0 {
				t.Errorf("the outer breaker heard of %d calls and is %v, want none: nothing was sent", now.Messages, now.State)
			}
			spent.want(t, 0, 0, 10)
		})
	})
	t.Run("isolated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := breaker.New(breaker.Config{})
			b.Isolate("moving the database")
			_, err := call(t, serve(t, status()).client(t, httpretry.Policy{Breaker: b}), t.Context())
			if v := classify.Of(err); !v.Deferred || v.RetryAfter != time.Second || !strings.Contains(err.Error(), "moving the database") {
				t.Errorf("error %v is %+v, want deferred for 1s with the reason", err, v)
			}
		})
	})
	t.Run("off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			codes := make([]int, 100)
			for i := range codes {
				codes[i] = 500
			}
			s := serve(t, status(codes...))
			client := s.client(t, httpretry.Policy{NoBreaker: true, Retries: -1})
			for range codes {
				if code, err := call(t, client, t.Context()); code != 500 || err != nil {
					t.Fatalf("%d, %v, want 500", code, err)
				}
			}
		})
	})
}

func TestWhatTheBreakerHears(t *testing.T) {
	tests := []struct {
		name           string
		code, failures int
	}{
		{"200", 200, 0},
		{"302", 302, 0},
		{"404: the server is up", 404, 0},
		{"409: the server is up", 409, 0},
		{"401", 401, 1},
		{"429", 429, 1},
		{"500", 500, 1},
		{"501", 501, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := breaker.New(breaker.Config{})
				resp, err := serve(t, status(tt.code)).transport(t, httpretry.Policy{Breaker: b, Retries: -1}).RoundTrip(request(t, t.Context(), "GET", nil))
				if err != nil {
					t.Fatal(err)
				}
				read(t, resp)
				if s := b.Snapshot(time.Now()); s.Messages != 1 || s.Failures != tt.failures {
					t.Errorf("%d calls with %d failures, want 1 and %d", s.Messages, s.Failures, tt.failures)
				}
			})
		})
	}
	t.Run("errors", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := breaker.New(breaker.Config{})
			s := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() })
			client := s.client(t, httpretry.Policy{Breaker: b, Timeout: time.Minute})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, _ = call(t, client, ctx)
			if s := b.Snapshot(time.Now()); s.Messages != 0 {
				t.Errorf("a cancelled call: %d calls, want none", s.Messages)
			}
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = call(t, client, ctx)
			if s := b.Snapshot(time.Now()); s.Messages != 1 || s.Failures != 1 {
				t.Errorf("a call that took too long: %d calls with %d failures, want 1 and 1", s.Messages, s.Failures)
			}
			s.down.Store(true)
			_, _ = call(t, client, t.Context())
			if s := b.Snapshot(time.Now()); s.Messages != 3 || s.Failures != 3 {
				t.Errorf("and two refused connections: %d calls with %d failures, want 3 and 3", s.Messages, s.Failures)
			}
			_, _ = client.Do(&http.Request{Method: "bad method", URL: request(t, t.Context(), "GET", nil).URL})
			if s := b.Snapshot(time.Now()); s.Failures > 4 {
				t.Errorf("and a request that cannot be: %d failures", s.Failures)
			}
		})
	})
}

// world is a worker whose handler calls a service, with one budget for both and a
// breaker for other calls.
func world(t *testing.T, s *service, b *breaker.Breaker, spent budget.Pacer, handle func(*http.Client) consumer.Handler) (*memory.Broker, *consumer.Consumer) {
	t.Helper()
	broker := memory.New(memory.Options{})
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: dlq.Suffix(".dead"),
		Guard:      consumer.Guard{Budget: spent},
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Handle("orders", handle(s.client(t, httpretry.Policy{Breaker: b, Budget: spent})))
	return broker, c
}

// works runs c until stop is called, which waits for its end.
func works(t *testing.T, c *consumer.Consumer) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// publish sends so many messages to topic.
func publish(t *testing.T, broker *memory.Broker, topic string, n int) {
	t.Helper()
	for i := range n {
		if err := broker.Publish(t.Context(), topic, brokers.Message{ID: fmt.Sprint(topic, i)}); err != nil {
			t.Fatal(err)
		}
	}
}

func charge(client *http.Client) consumer.Handler {
	return func(ctx context.Context, m *brokers.Message) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, place, strings.NewReader(string(m.Body)))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return httpretry.Check(resp)
	}
}

// A worker and the calls of its handlers share a budget. The worker paces the
// calls, so the breaker of the client hears nothing of the outage.
func TestOutageUnderAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages, outage = 400, 2 * time.Minute
		up := time.Now().Add(outage)
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			if time.Now().Before(up) {
				w.WriteHeader(503)
			}
		})
		b := breaker.New(breaker.Config{})
		spent, err := budget.New(budget.Queue())
		if err != nil {
			t.Fatal(err)
		}
		broker, c := world(t, s, b, spent, charge)
		stop := works(t, c)
		for i := range messages {
			if err := broker.Publish(t.Context(), "orders", brokers.Message{ID: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		stop()

		keys, during := map[string]bool{}, 0
		for _, r := range s.got() {
			keys[r.header.Get("Idempotency-Key")] = true
			if r.at.Before(up) {
				during++
			}
		}
		if len(keys) != messages || keys[""] {
			t.Errorf("%d keys arrived, want one for each of %d messages", len(keys), messages)
		}
		if during > 300 { // a probe a second and its retry, and the calls before the limit fell
			t.Errorf("%d calls during the outage, want few: the limit of the worker falls to probes", during)
		}
		if now := b.Snapshot(time.Now()); now.State != breaker.Closed || now.Messages != 0 {
			t.Errorf("the breaker has heard %+v, want nothing", now)
		}
		if dead := broker.Messages("orders.dead"); len(dead) > 0 {
			t.Errorf("%d dead letters of an outage, want none", len(dead))
		}
		if left := broker.Messages("orders"); len(left) > 0 {
			t.Errorf("%d messages are left an hour after the outage", len(left))
		}
	})
}

func TestHandlerSharesItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, status(503))
		spent, b := &tokens{}, breaker.New(breaker.Config{})
		b.Isolate("for all calls that no consumer paces")
		broker, c := world(t, s, b, spent, charge)
		stop := works(t, c)
		publish(t, broker, "orders", 1)
		time.Sleep(time.Second)
		stop()
		if len(s.got()) != 2 {
			t.Errorf("%d requests arrived, want a call and its retry", len(s.got()))
		}
		spent.want(t, 1, 1, 1) // one message, one retry of its call, which succeeded
	})
}

// The breaker stops calls of handlers whose topic has another guard, or one that is
// switched off.
func TestHandlerOfAnotherDependency(t *testing.T) {
	for name, other := range map[string]consumer.Guard{"another budget": {}, "off": {Off: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, status())
				spent, b := &tokens{}, breaker.New(breaker.Config{})
				broker := memory.New(memory.Options{})
				if other.Off {
					other.Budget = spent
				}
				c, err := consumer.New(broker, consumer.Config{
					DeadLetter: dlq.Suffix(".dead"),
					Guards:     map[string]consumer.Guard{"payments": {Budget: spent}, "mails": other},
					Logger:     slog.New(slog.DiscardHandler),
				})
				if err != nil {
					t.Fatal(err)
				}
				client := s.client(t, httpretry.Policy{Breaker: b, Budget: spent})
				c.Handle("mails", charge(client))
				c.Handle("orders", charge(client), consumer.Topic{Dependency: "payments"})
				stop := works(t, c)
				b.Isolate("test")
				publish(t, broker, "orders", 1)
				publish(t, broker, "mails", 1)
				time.Sleep(time.Minute)
				stop()
				if n := len(s.got()); n != 1 {
					t.Errorf("%d calls arrived, want the one for the order", n)
				}
			})
		})
	}
}

// The calls of one message are evidence about one message, and none if they are
// throttled: the consumer paces its handlers by that.
func TestCallsOfAMessageCountAsOne(t *testing.T) {
	for code, failures := range map[int]int{503: 1, 429: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, status(code, code, code, code, code, code))
			b := breaker.New(breaker.Config{})
			broker, c := world(t, s, b, nil, func(client *http.Client) consumer.Handler {
				return func(ctx context.Context, m *brokers.Message) error {
					for range 3 {
						_ = charge(client)(ctx, m)
					}
					return nil
				}
			})
			stop := works(t, c)
			publish(t, broker, "orders", 1)
			time.Sleep(time.Minute)
			stop()
			if now := b.Snapshot(time.Now()); now.Messages != failures || now.Failures != failures {
				t.Errorf("after 3 calls of one message that end with %d: %+v, want %d failures", code, now, failures)
			}
		})
	}
}

// Calls for a message that was sent back trip no breaker of a client, and neither
// earn nor spend a token of its budget. A call that succeeds as a probe closes it.
func TestCallsForWhatWasSentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			if !up.Load() {
				w.WriteHeader(503)
			}
		})
		spent, gate, tokens := &tokens{}, breaker.New(breaker.Config{}), &tokens{}
		client := s.client(t, httpretry.Policy{Breaker: gate, Budget: tokens})
		broker, c := world(t, s, gate, spent, func(*http.Client) consumer.Handler {
			return func(ctx context.Context, m *brokers.Message) error {
				if err := charge(client)(ctx, m); err != nil {
					return classify.Permanent(err) // so that it ends
				}
				return nil
			}
		})
		stop := works(t, c)
		send := func(n int) {
			for range n {
				if err := broker.Return(t.Context(), "", "orders", brokers.Returned{}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
		}
		send(100)
		if state := gate.Snapshot(time.Now()); state.State != breaker.Closed || state.Messages != 0 {
			t.Errorf("the breaker has seen %+v, want nothing", state)
		}
		gate.Isolate("test")
		gate.Restore(time.Now())
		before := gate.Snapshot(time.Now())
		send(1)
		if state := gate.Snapshot(time.Now()); before.State != breaker.HalfOpen || state != before {
			t.Errorf("after a probe for it failed the breaker is %+v, want it as before: %+v", state, before)
		}
		up.Store(true)
		send(1)
		if state := gate.Snapshot(time.Now()).State; state != breaker.Closed {
			t.Errorf("after a probe for it succeeded the breaker is %v", state)
		}
		stop()
		spent.want(t, 0, 0, 0)
		tokens.want(t, 0, 0, 0)
		if n := len(s.got()); n < 102 {
			t.Errorf("%d calls arrived", n)
		}
	})
}
