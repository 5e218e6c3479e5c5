package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// tokens is a budget that counts, and has none if empty is set.
type tokens struct {
	empty                          bool
	withdrawn, refunded, deposited atomic.Int64
}

func (b *tokens) Withdraw(_ time.Time, most time.Duration, _ float64) (time.Duration, bool) {
	b.withdrawn.Add(1)
	return max(most, 0), !b.empty
}

func (b *tokens) Refund(time.Time)                   { b.refunded.Add(1) }
func (b *tokens) Deposit(_ time.Time, n int)         { b.deposited.Add(int64(n)) }
func (b *tokens) Snapshot(time.Time) budget.Snapshot { return budget.Snapshot{} }

func (b *tokens) want(t *testing.T, withdrawn, refunded, deposited int64) {
	t.Helper()
	if got, want := [...]int64{b.withdrawn.Load(), b.refunded.Load(), b.deposited.Load()}, [...]int64{withdrawn, refunded, deposited}; got != want {
		t.Errorf("withdrawn, refunded and deposited are %d, want %d", got, want)
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

// tripped returns a breaker that lets a probe pass.
func tripped() *breaker.Breaker {
	b := breaker.New(breaker.Config{})
	trip(b)
	time.Sleep(5 * time.Second)
	return b
}

func wantState(t *testing.T, b *breaker.Breaker, want breaker.State) {
	t.Helper()
	if got := b.Snapshot(time.Now()).State; got != want {
		t.Errorf("the breaker is %v, want %v", got, want)
	}
}

// wantHeard checks the calls of other messages, and their failures, that b has heard of.
func wantHeard(t *testing.T, b *breaker.Breaker, calls, failures int) {
	t.Helper()
	if s := b.Snapshot(time.Now()); s.Messages != calls || s.Failures != failures {
		t.Errorf("the breaker heard of %d calls with %d failures, want %d with %d", s.Messages, s.Failures, calls, failures)
	}
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
	bubble(t, "counts calls and retries", func(t *testing.T) {
		b := &tokens{}
		client := serve(t, status(503, 200, 404, 503, 503, 200)).client(t, httpretry.Policy{Budget: b})
		for range 4 {
			must(call(t, client, t.Context()))(t)
		}
		b.want(t, 2, 1, 4) // one of two retries succeeded
	})
	bubble(t, "has no token", func(t *testing.T) {
		b, s, began := &tokens{empty: true}, serve(t, status(503)), time.Now()
		s.want(t, s.client(t, httpretry.Policy{Budget: b}), t.Context(), 503, 1)
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want an answer at once", took)
		}
		b.want(t, 1, 0, 1)
	})
	bubble(t, "of its own", func(t *testing.T) {
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
	bubble(t, "off", func(t *testing.T) {
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
}

func TestBreaker(t *testing.T) {
	bubble(t, "open", func(t *testing.T) {
		s := serve(t, status(503, 503, 503))
		b := breaker.New(breaker.Config{})
		client := s.client(t, httpretry.Policy{Breaker: b})
		s.want(t, client, t.Context(), 503, 2) // and a retry
		s.want(t, client, t.Context(), 503, 3)
		body := &closer{Reader: strings.NewReader("b")}
		_, err := client.Do(request(t, t.Context(), "PUT", body))
		open, ok := errors.AsType[*httpretry.OpenError](err)
		if !ok || open.Dependency != "bank.example" || open.State != breaker.Open || open.Wait != time.Second {
			t.Fatalf("error = %+v, want an OpenError of bank.example for 1s", err)
		}
		if n := body.closed.Load(); n != 1 {
			t.Errorf("the body was closed %d times, want once", n)
		}
		if v := classify.Of(err); !v.Deferred || v.RetryAfter != open.Wait || v.Ambiguous {
			t.Errorf("verdict = %+v, want deferred for 1s", v)
		}
		time.Sleep(open.Wait)
		for n := range 2 {
			s.want(t, client, t.Context(), 200, 4+n)
			time.Sleep(11 * time.Second)
		}
		wantState(t, b, breaker.Closed) // after it refused no call for 10 s
	})
	bubble(t, "a failed probe is not retried", func(t *testing.T) {
		s, b, spent := serve(t, status(503, 503, 503)), tripped(), &tokens{}
		s.want(t, s.client(t, httpretry.Policy{Breaker: b, Budget: spent}), t.Context(), 503, 1)
		spent.want(t, 0, 0, 1)
		wantState(t, b, breaker.Open)
	})
	bubble(t, "one probe at a time", func(t *testing.T) {
		s := serve(t, func(http.ResponseWriter, *http.Request, int) { time.Sleep(time.Second) })
		client := s.client(t, httpretry.Policy{Breaker: tripped()})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _, _ = call(t, client, t.Context()) })
		}
		wg.Wait()
		if got := len(s.got()); got != 1 {
			t.Errorf("%d requests arrived, want 1", got)
		}
	})
	bubble(t, "opens during the wait", func(t *testing.T) {
		s := serve(t, asking(1))
		b := breaker.New(breaker.Config{})
		time.AfterFunc(500*time.Millisecond, func() { trip(b) })
		s.want(t, s.client(t, httpretry.Policy{Breaker: b}), t.Context(), 503, 1)
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
	bubble(t, "is not held by the Retry-After of one customer", func(t *testing.T) {
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
	bubble(t, "of a Transport inside of this one", func(t *testing.T) {
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
		wantState(t, outer, breaker.Closed)
		wantHeard(t, outer, 0, 0) // nothing was sent
		spent.want(t, 0, 0, 10)
	})
	bubble(t, "isolated", func(t *testing.T) {
		b := breaker.New(breaker.Config{})
		b.Isolate("moving the database")
		_, err := call(t, serve(t, status()).client(t, httpretry.Policy{Breaker: b}), t.Context())
		if v := classify.Of(err); !v.Deferred || v.RetryAfter != time.Second || !strings.Contains(err.Error(), "moving the database") {
			t.Errorf("error %v is %+v, want deferred for 1s with the reason", err, v)
		}
	})
	bubble(t, "off", func(t *testing.T) {
		s := serve(t, status(slices.Repeat([]int{500}, 100)...))
		client := s.client(t, httpretry.Policy{NoBreaker: true, Retries: -1})
		for n := range 100 {
			s.want(t, client, t.Context(), 500, n+1)
		}
	})
}

func TestWhatTheBreakerHears(t *testing.T) {
	for code, failures := range map[int]int{
		200: 0,
		302: 0,
		404: 0, // the server is up
		409: 0, // the server is up
		401: 1,
		429: 1,
		500: 1,
		501: 1,
	} {
		bubble(t, fmt.Sprint(code), func(t *testing.T) {
			b := breaker.New(breaker.Config{})
			transport := serve(t, status(code)).transport(t, httpretry.Policy{Breaker: b, Retries: -1})
			read(t, must(transport.RoundTrip(request(t, t.Context(), "GET", nil)))(t))
			wantHeard(t, b, 1, failures)
		})
	}
	bubble(t, "errors", func(t *testing.T) {
		b := breaker.New(breaker.Config{})
		s := serve(t, hangs)
		client := s.client(t, httpretry.Policy{Breaker: b, Timeout: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, _ = call(t, client, ctx)
		wantHeard(t, b, 0, 0) // it was cancelled
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = call(t, client, ctx)
		wantHeard(t, b, 1, 1) // it took too long
		s.down.Store(true)
		_, _ = call(t, client, t.Context())
		wantHeard(t, b, 3, 3) // and two refused connections
		_, _ = client.Do(&http.Request{Method: "bad method", URL: request(t, t.Context(), "GET", nil).URL})
		if s := b.Snapshot(time.Now()); s.Failures > 4 {
			t.Errorf("and a request that cannot be: %d failures", s.Failures)
		}
	})
}

// worker returns one that handles nothing yet.
func worker(t *testing.T, c consumer.Config) (*memory.Broker, *consumer.Consumer) {
	t.Helper()
	broker := memory.New(memory.Options{})
	c.DeadLetter, c.Logger = "*.dead", slog.New(slog.DiscardHandler)
	return broker, must(consumer.New(broker, c))(t)
}

// world is a worker whose handler calls a service, with one budget for both and a
// breaker for other calls.
func world(t *testing.T, s *service, b *breaker.Breaker, spent budget.Pacer, handle func(*http.Client) consumer.Handler) (*memory.Broker, *consumer.Consumer) {
	t.Helper()
	broker, c := worker(t, consumer.Config{Guard: consumer.Guard{Budget: spent}})
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

// publish sends n messages to topic, ten each second.
func publish(t *testing.T, broker *memory.Broker, topic string, n int) {
	t.Helper()
	for i := range n {
		if i > 0 {
			time.Sleep(100 * time.Millisecond)
		}
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
		bubble(t, name, func(t *testing.T) {
			s := serve(t, status())
			spent, b := &tokens{}, breaker.New(breaker.Config{})
			if other.Off {
				other.Budget = spent
			}
			broker, c := worker(t, consumer.Config{Guards: map[string]consumer.Guard{"payments": {Budget: spent}, "mails": other}})
			client := s.client(t, httpretry.Policy{Breaker: b, Budget: spent})
			c.Handle("mails", charge(client))
			c.HandleWith("orders", charge(client), consumer.TopicConfig{Dependency: "payments"})
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
			wantHeard(t, b, failures, failures)
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
				if err := broker.SendBack(t.Context(), "", "orders", brokers.Item{Message: &brokers.Message{}}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
		}
		send(100)
		wantState(t, gate, breaker.Closed)
		wantHeard(t, gate, 0, 0)
		gate.Isolate("test")
		gate.Restore(time.Now())
		before := gate.Snapshot(time.Now())
		send(1)
		if state := gate.Snapshot(time.Now()); before.State != breaker.HalfOpen || state != before {
			t.Errorf("after a probe for it failed the breaker is %+v, want it as before: %+v", state, before)
		}
		up.Store(true)
		send(1)
		wantState(t, gate, breaker.Closed)
		stop()
		spent.want(t, 0, 0, 0)
		tokens.want(t, 0, 0, 0)
		if n := len(s.got()); n < 102 {
			t.Errorf("%d calls arrived", n)
		}
	})
}
