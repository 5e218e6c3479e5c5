package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
	"github.com/redrive-go/redrive/settings"
)

func done(context.Context, *brokers.Message) error { return nil }

func doneBatch(context.Context, []brokers.Item) []error { return nil }

func pass(next consumer.Handler) consumer.Handler { return next }

// leaves returns the errors of a join of joins.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, branch := range joined.Unwrap() {
		all = append(all, leaves(branch)...)
	}
	return all
}

// checkFaults compares err with want, one line per fault, and each fault with
// what a ConfigError promises.
func checkFaults(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want\n%s", want)
	}
	if got := err.Error(); got != strings.TrimSpace(want) {
		t.Errorf("faults:\n%s\nwant:\n%s", got, strings.TrimSpace(want))
	}
	for _, leaf := range leaves(err) {
		fault, ok := errors.AsType[*settings.Error](leaf)
		if !ok {
			t.Errorf("%q is a %T, want a *settings.Error", leaf, leaf)
			continue
		}
		if fault.Field == "" || fault.Problem == "" || fault.Fix == "" {
			t.Errorf("%+v: want a field, a problem and a fix", *fault)
		}
	}
}

// allWrong is a Config in which each field that can be wrong is.
func allWrong() consumer.Config {
	return consumer.Config{
		Concurrency:    -1,
		Prefetch:       -1,
		HandlerTimeout: -time.Second,
		DrainTimeout:   -time.Second,
		HoldLimit:      -time.Second,
		MaxConcurrency: -1,
		MaxHeld:        -1,
		MaxHeldBytes:   -1,
		Lease:          -time.Second,
		CrashLimit:     -2,
		MaxBody:        -1,
		Rules:          []classify.Rule{nil},
		Middleware:     []func(consumer.Handler) consumer.Handler{pass, nil},
		Observers:      []consumer.Observer{nil},
		Guard: consumer.Guard{
			Limiter: flow.New(1, rand.Float64), Off: true,
		},
		Guards: map[string]consumer.Guard{"mails": {Limiter: flow.New(1, rand.Float64), Off: true}},
		Retry: retry.Policy{
			MaxAttempts:      -1,
			MaxAge:           -time.Hour,
			MaxRetryAfter:    -time.Second,
			EnvironmentDelay: -time.Second,
			Backoff:          retry.Backoff{Base: time.Minute, Cap: time.Second, Floor: time.Hour, Multiplier: math.NaN(), Step: -1, Jitter: 9},
		},
	}
}

// Whoever got everything wrong should learn so at once.
func TestAllFaultsOfAConfigAreReportedAtOnce(t *testing.T) {
	_, err := consumer.New(nil, allWrong())
	checkFaults(t, err, `
consumer: broker: is nil: pass a broker, such as memory.New(memory.Options{})
consumer: Config.Concurrency: -1 is out of range: use 1 to 1048576, or 0 for 10
consumer: Config.MaxConcurrency: -1 is out of range: use 1 to 1048576, or 0 for no limit
consumer: Config.Prefetch: -1 is out of range: use 1 to 1048576, or 0 for that of Concurrency
consumer: Config.HandlerTimeout: -1s is out of range: use a positive duration, or 0 for 5m
consumer: Config.DrainTimeout: -1s is out of range: use a positive duration, 0 for 25s, or settings.None
consumer: Config.HoldLimit: -1s is out of range: use a positive duration, 0 for 2s, or settings.None to hold nothing
consumer: Config.MaxHeld: -1 is out of range: use 1 to 1048576, or 0 for 1000
consumer: Config.MaxHeldBytes: -1 is out of range: use a size in bytes, or 0 for 64 MiB
consumer: Config.Lease: -1s is out of range: use a positive duration, or 0 for the adapter's choice
consumer: Config.CrashLimit: -2 is out of range: use 1 or more, 0 for 3, or settings.None for no limit
consumer: Config.MaxBody: -1 is out of range: use a size in bytes, or 0 for no limit
consumer: Config.Retry.MaxAttempts: is -1: use 1 or more, or 0 for the default of 10
consumer: Config.Retry.MaxAge: is -1h0m0s: use a positive duration, or 0 for the default of 24h0m0s
consumer: Config.Retry.MaxRetryAfter: is -1s: use a positive duration, or 0 for the default of 15m0s
consumer: Config.Retry.EnvironmentDelay: is -1s: use a positive duration, or 0 for the default of 1m0s
consumer: Config.Retry.Backoff.Multiplier: is NaN: use a finite number of at least 1, or 0 for the default of 2
consumer: Config.Retry.Backoff.Step: is -1ns: use a positive duration, or 0 for none
consumer: Config.Retry.Backoff.Jitter: is 9: use FullJitter, EqualJitter, DecorrelatedJitter or NoJitter (3)
consumer: Config.Retry.Backoff.Cap: is 1s: use at least Backoff.Base (1m0s)
consumer: Config.Retry.Backoff.Floor: is 1h0m0s: use at most Backoff.Cap (1s)
consumer: Config.Guard.Off: is set beside a Limiter: set one of them
consumer: Config.Guards["mails"].Off: is set beside a Limiter: set one of them
consumer: Config.Rules[0]: is nil: remove it or set it
consumer: Config.Middleware[1]: is nil: remove it or set it
consumer: Config.Observers[0]: is nil: remove it or set it
consumer: Config.DeadLetter: is not set: exhausted messages would have nowhere to go: name a topic, as "*-dead" does, or use dlq.Discard to drop them on purpose
`)
}

func TestFaultsOfOneField(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*consumer.Config)
		want string // of the one error; "" if there must be none
	}{
		{"zero value", func(c *consumer.Config) {}, ""},
		{"no dead letter", func(c *consumer.Config) { c.DeadLetter = "" }, "Config.DeadLetter: is not set"},
		{"explicit discard", func(c *consumer.Config) { c.DeadLetter = dlq.Discard }, ""},
		{"least values", func(c *consumer.Config) {
			c.Prefetch, c.DrainTimeout, c.HoldLimit, c.CrashLimit = 1, settings.None, settings.None, settings.None
		}, ""},
		{"concurrency without end", func(c *consumer.Config) { c.Concurrency = math.MaxInt }, "Config.Concurrency: 9223372036854775807 is out of range"},
		{"prefetch without end", func(c *consumer.Config) { c.Prefetch = math.MaxInt }, "Config.Prefetch: 9223372036854775807 is out of range"},
		{"hold without end", func(c *consumer.Config) { c.MaxHeld = math.MaxInt }, "Config.MaxHeld: 9223372036854775807 is out of range"},
		{"longest times", func(c *consumer.Config) {
			c.HandlerTimeout, c.DrainTimeout, c.HoldLimit = math.MaxInt64, math.MaxInt64, math.MaxInt64
		}, ""},
		{"lease too short to settle in", func(c *consumer.Config) { c.Lease = 10 * time.Millisecond }, "Config.Lease: 10ms is too short to extend and settle in: use at least 1s"},
		{"lease just long enough", func(c *consumer.Config) { c.Lease = time.Second }, ""},
		{"cap below base", func(c *consumer.Config) { c.Retry.Backoff = retry.Backoff{Base: time.Minute, Cap: time.Second} },
			"Config.Retry.Backoff.Cap: is 1s: use at least Backoff.Base (1m0s)"},
		{"one attempt", func(c *consumer.Config) { c.Retry.MaxAttempts = 1 }, ""},
		{"attempts below none", func(c *consumer.Config) { c.Retry.MaxAttempts = -5 }, "Config.Retry.MaxAttempts: is -5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := quiet()
			tt.set(&cfg)
			c, err := consumer.New(memory.New(memory.Options{}), cfg)
			if tt.want == "" {
				if err != nil || c == nil {
					t.Errorf("New = %v, %v; want a Consumer", c, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, want %q", tt.want)
			}
			if got := leaves(err); len(got) != 1 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want one fault: %q", err, tt.want)
			}
		})
	}
}

// Every field is in one of the tests above: a new one is to be added.
func TestEveryFieldOfConfigIsChecked(t *testing.T) {
	free := map[string]bool{"Group": true, "Receipts": true, "OrderByKey": true, "NoRepeat": true, "Logger": true, "Redact": true, "Stacks": true, "Instance": true, "Random": true, "Tracer": true}
	_, err := consumer.New(nil, allWrong())
	for _, field := range reflect.VisibleFields(reflect.TypeFor[consumer.Config]()) {
		if !free[field.Name] && !strings.Contains(err.Error(), "consumer: Config."+field.Name) {
			t.Errorf("no fault of Config.%s is reported by\n%v", field.Name, err)
		}
	}
}

// register adds faulty registrations and returns what Run says of them.
func register(t *testing.T, cfg consumer.Config, handle func(*consumer.Consumer)) error {
	t.Helper()
	c := must(consumer.New(memory.New(memory.Options{}), cfg))
	handle(c)
	ctx, stop := context.WithCancel(t.Context())
	stop() // should Run accept the registrations, it must come back all the same
	return c.Run(ctx)
}

func TestFaultsOfRegistrations(t *testing.T) {
	hopeless := func(consumer.Handler) consumer.Handler { return nil }
	for _, tt := range []struct {
		name   string
		handle func(*consumer.Consumer)
		want   string
	}{
		{"no handler at all", func(*consumer.Consumer) {},
			`consumer: Consumer: has no handler: register one with Handle`},
		{"nil handler", func(c *consumer.Consumer) { c.Handle("orders", nil) },
			`consumer: Topic("orders"): the handler is nil: pass a function`},
		{"JSON of nil", func(c *consumer.Consumer) { c.Handle("orders", consumer.JSON[int](nil)) },
			`consumer: Topic("orders"): the handler is nil: pass a function`},
		{"nil batch handler", func(c *consumer.Consumer) { c.HandleBatch("orders", nil, consumer.TopicConfig{BatchSize: 1}) },
			`consumer: Topic("orders"): the handler is nil: pass a function`},
		{"empty topic", func(c *consumer.Consumer) { c.Handle("", done) },
			`consumer: Topic(""): the topic has no name: name the topic to receive from`},
		{"duplicate topic", func(c *consumer.Consumer) { c.Handle("orders", done); c.Handle("orders", done) },
			`consumer: Topic("orders"): is registered twice: register one handler per topic`},
		{"duplicate with another guard", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{Dependency: "payments"})
			c.HandleWith("orders", done, consumer.TopicConfig{Dependency: "mails"})
		}, `consumer: Topic("orders"): is registered twice: register one handler per topic`},
		{"slots and room", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{Concurrency: -1, Prefetch: -1})
		}, `
consumer: Topic("orders").Concurrency: -1 is out of range: use 1 to 1048576, or 0 for that of Config
consumer: Topic("orders").Prefetch: -1 is out of range: use 1 to 1048576, or 0 for that of Config`},
		{"duplicate of another kind", func(c *consumer.Consumer) {
			c.Handle("orders", done)
			c.HandleBatch("orders", doneBatch, consumer.TopicConfig{BatchSize: 1})
		}, `consumer: Topic("orders"): is registered twice: register one handler per topic`},
		{"dead letters to the topic itself", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{DeadLetter: "orders"})
			c.HandleWith("refunds", done, consumer.TopicConfig{DeadLetter: "*"})
		}, `
consumer: Topic("orders").DeadLetter: it names the topic itself, which would receive its dead letters again as messages: name another topic, as "*-dead" does
consumer: Topic("refunds").DeadLetter: it names the topic itself, which would receive its dead letters again as messages: name another topic, as "*-dead" does`},
		{"dead letters to a topic registered before", func(c *consumer.Consumer) {
			c.Handle("refunds", done)
			c.HandleWith("orders", done, consumer.TopicConfig{DeadLetter: "refunds"})
		}, `consumer: Topic("orders"): "refunds" is a topic and a dead-letter topic at once: consume dead letters with a Consumer of its own`},
		{"dead letters to a topic registered later", func(c *consumer.Consumer) {
			c.Handle("orders", done)
			c.Handle("orders.dead", done)
		}, `consumer: Topic("orders.dead"): "orders.dead" is a topic and a dead-letter topic at once: consume dead letters with a Consumer of its own`},
		{"time that does not pass", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{Deadline: -1, StartAfter: -1})
		}, `
consumer: Topic("orders").Deadline: -1ns is out of range: use a positive duration, or 0 for none
consumer: Topic("orders").StartAfter: -1ns is out of range: use a positive duration, or 0 for none`},
		{"deadline at the start", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{Deadline: time.Second, StartAfter: time.Second})
		}, `consumer: Topic("orders").StartAfter: 1s is not less than the Deadline of 1s: no message would run: use a shorter one`},
		{"batch of none", func(c *consumer.Consumer) { c.HandleBatch("orders", doneBatch, consumer.TopicConfig{BatchWait: -1}) }, `
consumer: Topic("orders").BatchWait: -1ns is out of range: use a positive duration, or 0 for 100ms
consumer: Topic("orders").BatchSize: 0 is out of range: use 1 or more`},
		{"batches for a handler of single messages", func(c *consumer.Consumer) { c.HandleWith("orders", done, consumer.TopicConfig{BatchSize: 2}) },
			`consumer: Topic("orders").BatchSize: is set for a handler of single messages: register it with HandleBatch`},
		{"middleware around a batch", func(c *consumer.Consumer) {
			c.HandleBatch("orders", doneBatch, consumer.TopicConfig{BatchSize: 1, Middleware: []func(consumer.Handler) consumer.Handler{pass}})
		}, `consumer: Topic("orders").Middleware: does not apply to a batch handler: remove it`},
		{"middleware that returns nil", func(c *consumer.Consumer) {
			c.HandleWith("orders", done, consumer.TopicConfig{Middleware: []func(consumer.Handler) consumer.Handler{hopeless}})
		}, `consumer: Topic("orders"): a middleware returned a nil handler: return a handler`},
		{"everything", func(c *consumer.Consumer) {
			c.HandleWith("orders", nil, consumer.TopicConfig{
				MaxAttempts: -1, HandlerTimeout: -1, MaxBody: -1, DeadLetter: "orders",
				Retry: &retry.Policy{MaxAge: -1}, Rules: []classify.Rule{nil}, Middleware: []func(consumer.Handler) consumer.Handler{nil},
			})
			c.Handle("", done)
		}, `
consumer: Topic("orders").MaxAttempts: -1 is out of range: use 1 or more, or 0 for that of Config.Retry
consumer: Topic("orders").HandlerTimeout: -1ns is out of range: use a positive duration, or 0 for that of Config
consumer: Topic("orders").MaxBody: -1 is out of range: use a size in bytes, or 0 for that of Config
consumer: Topic("orders").Retry.MaxAge: is -1ns: use a positive duration, or 0 for the default of 24h0m0s
consumer: Topic("orders").Rules[0]: is nil: remove it or set it
consumer: Topic("orders").Middleware[0]: is nil: remove it or set it
consumer: Topic("orders").DeadLetter: it names the topic itself, which would receive its dead letters again as messages: name another topic, as "*-dead" does
consumer: Topic("orders"): the handler is nil: pass a function
consumer: Topic(""): the topic has no name: name the topic to receive from`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkFaults(t, register(t, quiet(), tt.handle), tt.want)
		})
	}
}

// Messages of a key that wait for their first run would overtake each other.
func TestFaultsOfOrder(t *testing.T) {
	cfg := quiet()
	cfg.OrderByKey = true
	err := register(t, cfg, func(c *consumer.Consumer) {
		c.HandleWith("orders", done, consumer.TopicConfig{StartAfter: time.Second})
	})
	checkFaults(t, err, `consumer: Topic("orders").StartAfter: is set beside Config.OrderByKey: messages of a key overtake each other while they wait: set one of them`)
}

// A topic of receipts is for nothing else.
func TestFaultsOfReceipts(t *testing.T) {
	for receipts, want := range map[string]string{
		"receipts":    "",
		"orders":      `consumer: Config.Receipts: "orders" is the topic "orders" or that of its dead letters: name a topic that is for receipts alone`,
		"orders.dead": `consumer: Config.Receipts: "orders.dead" is the topic "orders" or that of its dead letters: name a topic that is for receipts alone`,
	} {
		cfg := quiet()
		cfg.Receipts = receipts
		err := register(t, cfg, func(c *consumer.Consumer) { c.Handle("orders", done); c.Handle("refunds", done) })
		if want == "" && err != nil {
			t.Error(err)
		} else if want != "" {
			checkFaults(t, err, want)
		}
	}
}

// Topics that discard share the empty name, which is no topic.
func TestDiscardingTopicsDoNotConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := quiet()
		cfg.DeadLetter = dlq.Discard
		w := start(t, memory.New(memory.Options{}), cfg, func(c *consumer.Consumer) {
			c.Handle("orders", done)
			c.Handle("refunds", done)
		})
		w.stopAfter(0)
	})
}

// What only the broker knows is checked when it is open, before anything is
// received.
func TestFaultsThatTheBrokerReveals(t *testing.T) {
	broker := memory.New(memory.Options{MaxLease: time.Minute})
	publish(t, broker, "orders", "one")
	cfg := quiet()
	cfg.HoldLimit = time.Hour
	c := must(consumer.New(broker, cfg))
	handled := false
	c.HandleWith("orders", func(context.Context, *brokers.Message) error { handled = true; return nil }, consumer.TopicConfig{HandlerTimeout: time.Minute})
	c.Handle("refunds", done)
	c.HandleWith("quick", done, consumer.TopicConfig{HandlerTimeout: time.Second})
	checkFaults(t, c.Run(t.Context()), `
consumer: Topic("orders").HandlerTimeout: 1m0s is not less than the 1m0s that the broker lets anybody hold a message: use a shorter timeout
consumer: Topic("refunds").HandlerTimeout: 5m0s is not less than the 1m0s that the broker lets anybody hold a message: use a shorter timeout
consumer: Config.HoldLimit: 1h0m0s is not less than the 1m0s that the broker lets anybody hold a message: use a shorter limit
`)
	if stats := broker.Stats("orders"); handled || stats != (memory.Stats{Ready: 1}) {
		t.Errorf("handled %v, topic %+v; want the message untouched", handled, stats)
	}
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		var c *consumer.Consumer
		w := start(t, broker, quiet(), func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", done)
		})
		synctest.Wait()
		const want = "consumer: Run was called twice: make a new Consumer for each run"
		if err := c.Run(t.Context()); err == nil || err.Error() != want {
			t.Errorf("while running: %v, want %q", err, want)
		}
		publish(t, broker, "orders", "one")
		synctest.Wait()
		if n := broker.Len("orders"); n != 0 {
			t.Errorf("%d messages left, want the first Run undisturbed", n)
		}
		w.mustShutdown()
		if err := c.Run(t.Context()); err == nil || err.Error() != want {
			t.Errorf("after Run: %v, want %q", err, want)
		}
	})
}

// A programmer's mistake, in a program that runs already: there is no error to
// return it in.
func TestHandleAfterRunPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *consumer.Consumer
		w := start(t, memory.New(memory.Options{}), quiet(), func(made *consumer.Consumer) {
			c = made
			c.Handle("orders", done)
		})
		synctest.Wait()
		defer w.mustShutdown()
		defer func() {
			const want = `consumer: topic "refunds" is registered after Run`
			if got := recover(); got != want {
				t.Errorf("panic %v, want %q", got, want)
			}
		}()
		c.Handle("refunds", done)
	})
}

// deaf is a broker that cannot be opened.
type deaf struct {
	*memory.Broker
	why error
}

func (d deaf) Open(context.Context, brokers.Subscription) (brokers.Source, error) { return nil, d.why }

func TestBrokerThatCannotBeOpened(t *testing.T) {
	for _, why := range []error{errors.New("connection refused"), fmt.Errorf("queue orders: %w", brokers.ErrMisconfigured)} {
		c := must(consumer.New(deaf{memory.New(memory.Options{}), why}, quiet()))
		c.Handle("orders", done)
		c.Handle("refunds", done)
		err := c.Run(t.Context())
		if want := "consumer: open orders, refunds: no message was touched: " + why.Error(); !errors.Is(err, why) || err.Error() != want {
			t.Errorf("Run = %v, want %s", err, want)
		}
	}
}

func TestRunWithAContextThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		c := must(consumer.New(broker, quiet()))
		c.Handle("orders", func(context.Context, *brokers.Message) error { t.Error("handled"); return nil })
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run = %v, want nil: there is nothing to drain", err)
		}
		holds(t, broker, "orders", memory.Stats{Ready: 1})
	})
}

// A TopicConfig changes what it names and nothing else.
func TestTopicOverridesConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "0123456789")
		publish(t, broker, "refunds", "0123456789")
		publish(t, broker, "small", "0123456789")
		cfg := quiet()
		cfg.HandlerTimeout = time.Hour
		cfg.Retry = retry.Policy{MaxAttempts: 3, Backoff: retry.Backoff{Base: time.Second, Jitter: retry.NoJitter}}
		runs := map[string]int{}
		handler := func(ctx context.Context, m *brokers.Message) error {
			deadline, _ := ctx.Deadline()
			want := time.Hour
			if m.Topic == "refunds" {
				want = time.Minute
			}
			if got := time.Until(deadline); got != want {
				t.Errorf("%s: %v until the deadline, want %v", m.Topic, got, want)
			}
			runs[m.Topic]++
			return classify.Transient(errors.New("busy"))
		}
		cfg.MaxConcurrency = 1
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", handler)
			c.HandleWith("refunds", handler, consumer.TopicConfig{MaxAttempts: 2, HandlerTimeout: time.Minute, DeadLetter: "graveyard"})
			c.HandleWith("small", handler, consumer.TopicConfig{MaxBody: 9, Retry: &retry.Policy{MaxAttempts: 1}})
		})
		w.stopAfter(time.Minute)
		if runs["orders"] != 3 || runs["refunds"] != 2 || runs["small"] != 0 {
			t.Errorf("runs %v, want orders 3, refunds 2, small 0", runs)
		}
		for _, topic := range []string{"orders.dead", "graveyard", "small.dead"} {
			if n := broker.Len(topic); n != 1 {
				t.Errorf("%d dead letters in %s, want 1", n, topic)
			}
		}
	})
}

// must returns what a constructor made of settings that are valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
