package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// pauses is an Observer that passes on what pauses.
type pauses chan string

func (p pauses) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventPaused {
		p <- e.Dependency
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

// Topics that depend on the same thing pause together, and the others go on.
func ExampleTopic_dependency() {
	broker, paused := memory.New(memory.Options{}), make(pauses, 1)
	cfg := exampleConfig()
	cfg.Observers = []consumer.Observer{paused}
	c, err := consumer.New(broker, cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(context.Context, *brokers.Message) error {
		return classify.Transient(errors.New("the payment server is down"))
	}, consumer.Topic{Dependency: "payments"})
	c.Handle("refunds", func(context.Context, *brokers.Message) error {
		fmt.Println("refunded")
		return nil
	}, consumer.Topic{Dependency: "payments"})
	c.Handle("mails", func(context.Context, *brokers.Message) error {
		fmt.Println("mail sent")
		stop()
		return nil
	})

	keyed(broker, "orders", "", 30)
	go func() {
		fmt.Println("paused:", <-paused)
		keyed(broker, "refunds", "", 1)
		keyed(broker, "mails", "", 1)
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("refunds that wait:", broker.Len("refunds"))
	// Output:
	// paused: payments
	// mail sent
	// refunds that wait: 1
}

// Each message may name what it depends on, here the host of a customer. While
// that is down, its messages wait, and those of others flow.
func ExampleTopic_dependencyOf() {
	broker, paused := memory.New(memory.Options{}), make(pauses, 1)
	cfg := exampleConfig()
	cfg.Observers = []consumer.Observer{paused}
	c, err := consumer.New(broker, cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("webhooks", func(_ context.Context, m *brokers.Message) error {
		switch m.Key {
		case "acme":
			return classify.Transient(errors.New("the host of acme is down"))
		case "last":
			stop()
		}
		fmt.Println("delivered to", m.Key)
		return nil
	}, consumer.Topic{DependencyOf: func(m *brokers.Message) string { return m.Key }})

	keyed(broker, "webhooks", "bolt", 1)
	keyed(broker, "webhooks", "acme", 30)
	go func() {
		fmt.Println("paused:", <-paused)
		keyed(broker, "webhooks", "last", 1)
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("webhooks that wait:", broker.Len("webhooks"))
	// Output:
	// delivered to bolt
	// paused: acme
	// delivered to last
	// webhooks that wait: 30
}
