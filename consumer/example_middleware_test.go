package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// A middleware runs around every attempt. This one turns away tenants that are
// gone, before any handler sees their messages.
func ExampleConfig_middleware() {
	known := func(next consumer.Handler) consumer.Handler {
		return func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "gone" {
				return classify.Skip(errors.New("tenant is gone"))
			}
			err := next(ctx, m)
			fmt.Printf("%s: %v\n", m.Body, err)
			return err
		}
	}
	cfg := exampleConfig()
	cfg.Middleware = []func(consumer.Handler) consumer.Handler{known}
	c, err := consumer.New(brokerWith("orders", "gone", "acme"), cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(context.Context, *brokers.Message) error {
		stop()
		return nil
	})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: acme: <nil>
}

// What the pipeline knows of a message: here it keeps a charge from being made
// twice, whatever became of the first attempt.
func ExampleMetaFrom() {
	charges := map[string]string{} // the payment server's, by idempotency key
	c, err := consumer.New(brokerWith("orders", "tea", "coffee"), exampleConfig())
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
		meta := consumer.MetaFrom(ctx)
		charges[meta.IdempotencyKey] = string(m.Body)
		fmt.Printf("%s: attempt %d, last failure %q\n", m.Body, meta.Attempt, meta.Class)
		if string(m.Body) == "tea" {
			return nil
		}
		if meta.Attempt == 1 {
			return classify.Transient(errors.New("connection lost before the answer"))
		}
		stop()
		return nil
	})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("charges:", len(charges))
	// Output:
	// tea: attempt 1, last failure ""
	// coffee: attempt 1, last failure ""
	// coffee: attempt 2, last failure "transient"
	// charges: 2
}

// counter counts what becomes of messages.
type counter struct{ retries, dead int }

func (c *counter) Observe(_ context.Context, e consumer.Event) {
	switch {
	case e.Kind == consumer.EventFailed && e.Decision.Retry:
		c.retries++
	case e.Kind == consumer.EventDeadLettered:
		c.dead++
		fmt.Printf("%s is dead: %s after %d attempts\n", e.Message.Body, e.DeadLetter.Reason, e.Attempt)
	}
}

// Metrics hang on events. With more than one handler at a time, the counters
// would need to be atomic.
func ExampleObserver() {
	cfg := exampleConfig()
	counts := &counter{}
	cfg.Observers = []consumer.Observer{counts}
	c, err := consumer.New(brokerWith("orders", "tea", "caviar", "coffee"), cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
		switch order := string(m.Body); {
		case order == "caviar":
			return classify.Permanent(errors.New("card declined"))
		case order == "coffee" && consumer.MetaFrom(ctx).Attempt == 1:
			return classify.Transient(errors.New("no water"))
		case order == "coffee":
			stop()
		}
		return nil
	})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("retries:", counts.retries, "dead:", counts.dead)
	// Output:
	// caviar is dead: poison after 1 attempts
	// retries: 1 dead: 1
}

// All faults of a Config are reported at once, each with its cure.
func Example_faultySettings() {
	_, err := consumer.New(brokerWith("orders"), consumer.Config{Concurrency: -1})
	fmt.Println(err)
	// Output:
	// consumer: Config.Concurrency: -1 is out of range: use 1 to 1048576, or 0 for 10
	// consumer: Config.DeadLetter: is not set: exhausted messages would have nowhere to go: name a topic, as "*-dead" does, or use dlq.Discard to drop them on purpose
}
