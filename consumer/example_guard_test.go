package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/flow"
)

// pauses is an Observer that passes on the pauses of dependencies.
type pauses chan consumer.Event

func (p pauses) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventPaused {
		p <- e
	}
}

// keyed publishes n messages with a key.
func keyed(broker *memory.Broker, topic, key string, n int) {
	for range n {
		if err := broker.Publish(context.Background(), topic, brokers.Message{Key: key}); err != nil {
			log.Fatal(err)
		}
	}
}

// A Limiter of your own lets you pause a dependency by hand, say while its provider
// works on it.
func ExampleGuard() {
	limiter, paused := flow.New(10, rand.Float64), make(pauses, 1)
	cfg := exampleConfig()
	cfg.Guards = map[string]consumer.Guard{"orders": {Limiter: limiter}}
	cfg.Observers = []consumer.Observer{paused}
	c, err := consumer.New(brokerWith("orders", "coffee"), cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(_ context.Context, m *brokers.Message) error {
		fmt.Printf("charged %s\n", m.Body)
		stop()
		return nil
	})
	limiter.Adjust(time.Now(), flow.Change{Pause: "the provider migrates"})
	go func() {
		e := <-paused
		fmt.Printf("%s: %v\n", e.Dependency, e.Err)
		limiter.Adjust(time.Now(), flow.Change{Resume: true})
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// orders: paused by hand: the provider migrates
	// charged coffee
}

// Topics that depend on the same service wait for it together, and the others go
// on.
func ExampleTopic_dependency() {
	broker, paused := memory.New(memory.Options{}), make(pauses, 1)
	cfg := exampleConfig()
	cfg.Observers = []consumer.Observer{paused}
	c, err := consumer.New(broker, cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.HandleWith("orders", func(context.Context, *brokers.Message) error {
		return classify.Transient(errors.New("the payment server is down"))
	}, consumer.TopicConfig{Dependency: "payments"})
	c.HandleWith("refunds", func(context.Context, *brokers.Message) error {
		fmt.Println("refunded")
		return nil
	}, consumer.TopicConfig{Dependency: "payments"})
	c.Handle("mails", func(context.Context, *brokers.Message) error {
		fmt.Println("mail sent")
		stop()
		return nil
	})

	keyed(broker, "orders", "", 30)
	go func() {
		fmt.Println("waits:", (<-paused).Dependency)
		keyed(broker, "refunds", "", 1)
		keyed(broker, "mails", "", 1)
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("refunds that wait:", broker.Len("refunds"))
	// Output:
	// waits: payments
	// mail sent
	// refunds that wait: 1
}

// Each message may name its dependency, here the host of a customer. After a
// timeout the messages of that customer have one slot, and those of others flow.
func ExampleTopic_dependencyOf() {
	broker := memory.New(memory.Options{})
	cfg := exampleConfig()
	cfg.Concurrency, cfg.HandlerTimeout = 2, 20*time.Millisecond
	c, err := consumer.New(broker, cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.HandleWith("webhooks", func(ctx context.Context, m *brokers.Message) error {
		if m.Key == "acme" {
			<-ctx.Done() // the host of acme does not answer
			return ctx.Err()
		}
		fmt.Println("delivered to", m.Key)
		if m.Key == "last" {
			stop()
		}
		return nil
	}, consumer.TopicConfig{DependencyOf: func(m *brokers.Message) string { return m.Key }})

	keyed(broker, "webhooks", "bolt", 1)
	keyed(broker, "webhooks", "acme", 10)
	keyed(broker, "webhooks", "last", 1)
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("webhooks that wait:", broker.Len("webhooks"))
	// Output:
	// delivered to bolt
	// delivered to last
	// webhooks that wait: 10
}
