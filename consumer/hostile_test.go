package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// Whoever may publish may write anything into the headers. None of it is taken
// for the framework's own count.
func TestHostileHeaders(t *testing.T) {
	var many brokers.Headers
	for i := range 10_000 {
		many = append(many, brokers.Header{Name: fmt.Sprintf("h-%d", i), Value: strings.Repeat("v", 10)})
	}
	future := fmt.Sprint(time.Now().Add(1000 * day).UnixMilli())
	for _, tt := range []struct {
		name    string
		headers brokers.Headers
	}{
		{"attempt", brokers.Headers{{Name: "redrive-attempt", Value: "9999"}}},
		{"negative attempt", brokers.Headers{{Name: "redrive-attempt", Value: "-1"}}},
		{"due time", brokers.Headers{{Name: "redrive-due-at", Value: future}}},
		{"failed long ago", brokers.Headers{{Name: "redrive-first-failed-at", Value: "1"}, {Name: "redrive-failed-at", Value: "1"}}},
		{"class and throttles", brokers.Headers{{Name: "redrive-class", Value: "poison"}, {Name: "redrive-throttles", Value: "9999"}}},
		{"history", brokers.Headers{{Name: "redrive-history", Value: "[[[["}}},
		{"headers of a dead letter", brokers.Headers{{Name: "redrive-dlq-v", Value: "1"}, {Name: "redrive-dlq-reason", Value: "poison"}}},
		{"other topic", brokers.Headers{{Name: "redrive-topic", Value: "admin"}}},
		{"packed", brokers.Headers{{Name: "redrive-meta", Value: `{"attempt":"9999"}`}}},
		{"10,000 headers", many},
		{"duplicates", brokers.Headers{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}, {Name: "A", Value: "3"}, {Name: "a", Value: "1"}}},
		{"not UTF-8", brokers.Headers{{Name: "\xff\xfe", Value: "\x80\x00\n"}, {Name: "", Value: ""}}},
		{"huge value", brokers.Headers{{Name: "a", Value: strings.Repeat("x", 1<<20)}}},
		{"idempotency key with control characters", brokers.Headers{{Name: "redrive-idempotency-key", Value: "a\x00b\n"}}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			send(t, broker, "orders", brokers.Message{Headers: slices.Clone(tt.headers)})
			began := time.Now()
			runs := 0
			cfg := quiet()
			cfg.Retry = retry.Policy{MaxAttempts: 2, Backoff: retry.Backoff{Base: time.Minute, Jitter: retry.NoJitter}}
			work(t, broker, cfg, func(ctx context.Context, m *brokers.Message) error {
				runs++
				meta := consumer.MetaFrom(ctx)
				if after := time.Since(began); meta.Attempt != runs || after != time.Duration(runs-1)*time.Minute {
					t.Errorf("run %d is attempt %d after %v, want no delay but that of the policy", runs, meta.Attempt, after)
				}
				if m.Topic != "orders" || meta.IdempotencyKey != m.ID {
					t.Errorf("topic %q, idempotency key %q; want orders and %q", m.Topic, meta.IdempotencyKey, m.ID)
				}
				if want := users(tt.headers); !slices.Equal(users(m.Headers), want) {
					t.Errorf("run %d: %d headers of the user, want the %d published", runs, len(users(m.Headers)), len(want))
				}
				return classify.Transient(errors.New("busy"))
			})
			got := oneDeadLetter(t, broker, "orders")
			if runs != 2 || got.Meta.Attempt != 2 || got.Reason != "exhausted" || len(got.Meta.History) != 2 {
				t.Errorf("%d runs, dead after %d with reason %q and history %v; want 2 and exhausted", runs, got.Meta.Attempt, got.Reason, got.Meta.History)
			}
			if want := users(tt.headers); !slices.Equal(users(got.Message.Headers), want) {
				t.Errorf("the dead letter has %d headers of the user, want the %d published", len(users(got.Message.Headers)), len(want))
			}
		})
	}
}

// users returns the headers that are not the framework's.
func users(h brokers.Headers) (own brokers.Headers) {
	for _, header := range h {
		if !strings.HasPrefix(header.Name, "redrive-") {
			own = append(own, header)
		}
	}
	return own
}

// The message is the handler's copy: what it does to it reaches neither the
// retry, held in the process or sent to the broker, nor the dead letter, nor
// the queue of its key.
func TestHandlerThatChangesItsMessage(t *testing.T) {
	for _, hold := range []time.Duration{-1, time.Hour} {
		for _, byKey := range []bool{false, true} {
			bubble(t, fmt.Sprintf("hold=%v/byKey=%v", hold, byKey), func(t *testing.T) {
				published := brokers.Message{
					ID: "m-1", Key: "k", Body: []byte("body"),
					Headers: brokers.Headers{{Name: "a", Value: "1"}}, PublishedAt: time.Now(),
				}
				broker := memory.New(memory.Options{})
				follower := published
				follower.ID = "m-2"
				send(t, broker, "orders", published, follower)
				cfg := quiet()
				cfg.HoldLimit, cfg.OrderByKey = hold, byKey
				cfg.Retry.MaxAttempts = 3
				seen := record(&cfg)
				work(t, broker, cfg, func(ctx context.Context, m *brokers.Message) error {
					if string(m.Body) != "body" || m.Key != "k" || m.Topic != "orders" || len(m.Headers) != 1 || !strings.HasPrefix(m.ID, "m-") {
						t.Errorf("attempt %d got %+v, want the message as published", consumer.MetaFrom(ctx).Attempt, m)
					}
					id := m.ID
					*m = brokers.Message{ID: "forged", Topic: "forged", Key: "forged", Body: m.Body[:2], Headers: m.Headers.With("forged", "1")}
					if got := consumer.MetaFrom(ctx).IdempotencyKey; got != id {
						t.Errorf("idempotency key %q after the change, want %q", got, id)
					}
					return classify.Transient(errors.New("busy"))
				})
				dead := deadLetters(t, broker, "orders")
				if len(dead) != 2 {
					t.Fatalf("%d dead letters, want 2", len(dead))
				}
				for _, got := range dead {
					m := got.Message
					if !strings.HasPrefix(m.ID, "m-") || m.Key != "k" || m.Topic != "orders" || !bytes.Equal(m.Body, published.Body) ||
						!slices.Equal(users(m.Headers), published.Headers) || got.Meta.Attempt != 3 {
						t.Errorf("dead letter %+v, want the message as published", got)
					}
				}
				for _, e := range seen.of(consumer.EventFailed) {
					if e.Topic != "orders" || e.Message.Topic != "orders" {
						t.Errorf("event of topic %q, want orders", e.Topic)
					}
				}
			})
		}
	}
}

// hostile is an error none of whose methods works.
type hostile struct{}

func (*hostile) Error() string     { panic("Error") }
func (*hostile) Unwrap() error     { panic("Unwrap") }
func (*hostile) Is(error) bool     { panic("Is") }
func (*hostile) As(any) bool       { panic("As") }
func (*hostile) Temporary() bool   { panic("Temporary") }
func (*hostile) GoString() string  { panic("GoString") }
func (*hostile) ErrorCode() string { panic("ErrorCode") }

// typedNil is the mistake of returning a nil pointer as an error.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

func TestErrorsWhoseMethodsPanic(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"hostile", &hostile{}},
		{"wrapped", fmt.Errorf("charge: %w", &hostile{})},
		{"joined", errors.Join(errors.New("odd"), &hostile{})},
		{"typed nil", (*typedNil)(nil)},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			runs := 0
			var log bytes.Buffer
			cfg := quiet()
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			cfg.Retry.MaxAttempts = 3
			work(t, broker, cfg, func(context.Context, *brokers.Message) error {
				runs++
				return tt.err
			})
			got := oneDeadLetter(t, broker, "orders")
			if runs != 3 || got.Meta.Class != classify.ClassUnknown {
				t.Errorf("%d runs, class %q; want 3 of class unknown", runs, got.Meta.Class)
			}
			if f, d := strings.Count(log.String(), `msg="handler failed"`), strings.Count(log.String(), `msg="message dead-lettered"`); f != 2 || d != 1 {
				t.Errorf("%d failures and %d dead letters logged, want 2 and 1:\n%s", f, d, &log)
			}
		})
	}
}

func TestErrorsWhoseMethodsPanicAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg := quiet()
		cfg.DrainTimeout = time.Second
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			<-ctx.Done()
			return &hostile{}
		}))
		w.stopAfter(0)
		if got := broker.Records("orders"); len(got) != 1 || got[0].Meta.Attempt != 0 {
			t.Errorf("%+v, want the message given back, not counted", got)
		}
	})
}

func TestErrorTextsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		var log bytes.Buffer
		cfg := quiet()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		text := strings.Repeat("x", 10<<20)
		work(t, broker, cfg, func(context.Context, *brokers.Message) error { return classify.Permanent(errors.New(text)) })
		if got := oneDeadLetter(t, broker, "orders"); len(got.ErrorText) > 2<<10 || len(got.ErrorText) == 0 {
			t.Errorf("an error text of %d bytes in the dead letter, want at most 2 KiB", len(got.ErrorText))
		}
		if log.Len() > 16<<10 {
			t.Errorf("%d bytes logged, want a few lines of bounded length", log.Len())
		}
	})
}

func TestRuleThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg := quiet()
		cfg.Rules = []classify.Rule{func(error) error { panic("rule") }}
		runs := 0
		work(t, broker, cfg, func(context.Context, *brokers.Message) error { runs++; return errors.New("odd") })
		if got := oneDeadLetter(t, broker, "orders"); runs != 6 || got.Meta.Class != classify.ClassUnknown {
			t.Errorf("%d runs, class %q; want the 6 of class unknown", runs, got.Meta.Class)
		}
	})
}

// The rules of a TopicConfig are asked before those of Config.
func TestRuleOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg := quiet()
		cfg.Rules = []classify.Rule{classify.Transient}
		runs := 0
		work(t, broker, cfg, func(context.Context, *brokers.Message) error { runs++; return errors.New("odd") },
			consumer.TopicConfig{Rules: []classify.Rule{classify.Permanent}})
		if runs != 1 || broker.Len("orders.dead") != 1 {
			t.Errorf("%d runs, %d dead; want the verdict of the topic's rule, poison", runs, broker.Len("orders.dead"))
		}
	})
}

type panicky struct{}

func (panicky) Observe(context.Context, consumer.Event) { panic("observer") }

// An observer that panics harms neither messages, nor other observers, nor the
// log.
func TestObserverThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		broker := memory.New(memory.Options{})
		for range n {
			publish(t, broker, "orders", "one")
		}
		var log bytes.Buffer
		cfg := quiet()
		cfg.Concurrency = 1
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Observers = []consumer.Observer{panicky{}}
		seen := record(&cfg)
		runs := 0
		work(t, broker, cfg, func(context.Context, *brokers.Message) error {
			if runs++; runs == 1 {
				return classify.Permanent(errors.New("odd"))
			}
			return nil
		})
		oneDeadLetter(t, broker, "orders")
		if got := len(seen.of(acked)); got != n {
			t.Errorf("the second observer saw %d acks, want %d", got, n)
		}
		lines := strings.Count(log.String(), `msg="observer panicked"`)
		if lines == 0 || lines > 100 {
			t.Errorf("%d lines about the panics of %d events, want a bounded number", lines, len(seen.kinds()))
		}
	})
}

func TestRedactThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg := quiet()
		cfg.Redact = func(string) string { panic("redact") }
		work(t, broker, cfg, func(context.Context, *brokers.Message) error { return classify.Permanent(errors.New("odd")) })
		if got := oneDeadLetter(t, broker, "orders"); got.Reason != "poison" || strings.Contains(got.ErrorText, "odd") {
			t.Errorf("reason %q, text %q; want a dead letter without the text", got.Reason, got.ErrorText)
		}
	})
}

type order struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"`
}

// picky decodes itself, and not everything.
type picky struct{}

func (p *picky) UnmarshalJSON(body []byte) error {
	switch string(body) {
	case `"later"`:
		return classify.Transient(errors.New("the schema registry is down"))
	case `"panic"`:
		panic("no such schema")
	}
	return errors.New("no schema")
}

func TestBodiesThatAreNoJSONValueArePoison(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, tt := range []struct{ name, body, want string }{
		{"empty", "", "unexpected EOF"},
		{"blank", " \n\t", "unexpected EOF"},
		{"no JSON", "order 7", "invalid character"},
		{"cut", `{"id":"7",`, "unexpected EOF"},
		{"wrong type", `{"id":7}`, "cannot unmarshal number"},
		{"wrong kind", `["7"]`, "cannot unmarshal array"},
		{"overflow", `{"amount":1e99}`, "cannot unmarshal number"},
		{"trailing value", `{"id":"7"} {"id":"8"}`, "more data after the value"},
		{"trailing dirt", `{"id":"7"}]`, "more data after the value"},
		{"trailing zero byte", "{\"id\":\"7\"}\x00", "more data after the value"},
		{"deep", `{"id":` + deep + `}`, "exceeded max depth"},
		{"binary", "\x00\xff\xfe\x80", "invalid character"},
		{"byte order mark", "\ufeff{}", "invalid character"},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := brokerWith("orders", tt.body)
			work(t, broker, quiet(), consumer.JSON(func(_ context.Context, o order) error {
				t.Errorf("handled as %+v", o)
				return nil
			}))
			got := oneDeadLetter(t, broker, "orders")
			if got.Reason != "undecodable" || got.Meta.Attempt != 1 || got.Meta.Class != classify.ClassPoison {
				t.Errorf("reason %q, class %q, attempt %d; want undecodable poison at the first", got.Reason, got.Meta.Class, got.Meta.Attempt)
			}
			if !strings.Contains(got.ErrorText, tt.want) || !strings.Contains(got.ErrorText, "consumer_test.order") {
				t.Errorf("error text %q, want %q and the type", got.ErrorText, tt.want)
			}
			if !bytes.Equal(got.Message.Body, []byte(tt.body)) {
				t.Errorf("the body of the dead letter is %q, want %q", got.Message.Body, tt.body)
			}
		})
	}
}

func TestBodiesThatAreJSONValues(t *testing.T) {
	for _, tt := range []struct {
		body string
		want order
	}{
		{`{"id":"7","amount":3}`, order{"7", 3}},
		{" {\"id\":\"7\"}\r\n", order{ID: "7"}},
		{`{"id":"7","colour":"red"}`, order{ID: "7"}},
		{`{}`, order{}},
		{`null`, order{}},
		{"{\"id\":\"\xff\"}", order{ID: "\ufffd"}},
	} {
		var got []order
		h := consumer.JSON(func(_ context.Context, o order) error { got = append(got, o); return nil })
		err := h(t.Context(), &brokers.Message{Body: []byte(tt.body)})
		if err != nil || len(got) != 1 || got[0] != tt.want {
			t.Errorf("%q: %v, %v; want %+v", tt.body, got, err, tt.want)
		}
	}
}

// What the decoder of a type says wins, as what a handler says does.
func TestJSONOfTypesWithADecoderOfTheirOwn(t *testing.T) {
	h := consumer.JSON(func(context.Context, picky) error { t.Error("handled"); return nil })
	for body, want := range map[string]string{`"later"`: classify.ClassTransient, `"other"`: classify.ClassPoison} {
		if got := classify.Of(h(t.Context(), &brokers.Message{Body: []byte(body)})); got.Class != want {
			t.Errorf("%s: %+v, want %s", body, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", `"panic"`)
		work(t, broker, quiet(), h)
		if got := oneDeadLetter(t, broker, "orders"); got.Reason != "panic" {
			t.Errorf("reason %q, want panic", got.Reason)
		}
	})
}

func TestJSONNamesTheTypeItWanted(t *testing.T) {
	h := consumer.JSON(func(context.Context, fmt.Stringer) error { return nil })
	err := h(t.Context(), &brokers.Message{Body: []byte(`{}`)})
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok || !strings.Contains(err.Error(), "for fmt.Stringer") {
		t.Errorf("error %q, want a *json.UnmarshalTypeError for fmt.Stringer", err)
	}
}
