package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// exampleConfig keeps the examples short: no waiting, no log, and one message
// at a time.
func exampleConfig() consumer.Config {
	return consumer.Config{
		DeadLetter:  "*-dead",
		Concurrency: 1,
		Retry:       retry.Policy{Backoff: retry.Backoff{Base: time.Millisecond}},
		Logger:      slog.New(slog.DiscardHandler),
	}
}

// brokerWith returns a broker that has a message in topic for each body.
func brokerWith(topic string, bodies ...string) *memory.Broker {
	broker := memory.New(memory.Options{})
	for _, body := range bodies {
		if err := broker.Publish(context.Background(), topic, brokers.Message{Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}
	return broker
}

// What a handler knows about an error it says by wrapping it. Everything else
// is recognised by its type and code, or retried.
func ExampleHandler() {
	var (
		errDeclined = errors.New("card declined")
		errBusy     = errors.New("too many requests")
		errPaid     = errors.New("paid already")
	)
	charge := func(order string) error {
		return map[string]error{"caviar": errDeclined, "tea": errBusy, "coffee": errPaid, "cake": errors.New("odd")}[order]
	}

	var handler consumer.Handler = func(_ context.Context, m *brokers.Message) error {
		err := charge(string(m.Body))
		switch {
		case errors.Is(err, errDeclined):
			return classify.Permanent(err) // no attempt can succeed
		case errors.Is(err, errBusy):
			return classify.Throttled(err, 30*time.Second) // they told us when
		case errors.Is(err, errPaid):
			return classify.Skip(err) // nothing left to do
		}
		return err
	}

	for _, order := range []string{"caviar", "tea", "coffee", "cake"} {
		v := classify.Of(handler(context.Background(), &brokers.Message{Body: []byte(order)}))
		d := retry.Policy{}.Decide(retry.FailedRun{Verdict: v}, 0)
		fmt.Printf("%s: %s, retry: %v, dead letter: %v\n", order, v.Class, d.Retry, d.DeadLetter)
	}
	// Output:
	// caviar: poison, retry: false, dead letter: true
	// tea: throttled, retry: true, dead letter: false
	// coffee: skipped, retry: false, dead letter: false
	// cake: unknown, retry: true, dead letter: false
}

// A typed handler. What is no order is dead at once, with its bytes as they
// came.
func ExampleJSON() {
	type Order struct {
		ID     string
		Amount int
	}
	broker := brokerWith("orders", `{"ID": "6", "Amount": 2}`, `{"ID": "7"`, `{"ID": "8", "Amount": 3}`)
	c, err := consumer.New(broker, exampleConfig())
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", consumer.JSON(func(_ context.Context, o Order) error {
		fmt.Printf("%+v\n", o)
		if o.ID == "8" {
			stop()
		}
		return nil
	}))
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, m := range broker.Messages("orders-dead") {
		entry, _ := dlq.Decode(m)
		fmt.Printf("%s: %s\n", entry.Reason, entry.Message.Body)
	}
	// Output:
	// {ID:6 Amount:2}
	// {ID:8 Amount:3}
	// undecodable: {"ID": "7"
}

// Topics share a worker and its settings. One of them gives up sooner, and keeps
// its dead letters in another topic. A failure is an attempt if other messages
// succeed beside it.
func ExampleConsumer_Handle() {
	broker := brokerWith("reminders", "pay!")
	c, err := consumer.New(broker, exampleConfig())
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.Handle("orders", func(context.Context, *brokers.Message) error { return nil })
	c.HandleWith("reminders", func(_ context.Context, m *brokers.Message) error {
		if string(m.Body) == "pay!" {
			return errors.New("no such mailbox")
		}
		return nil
	}, consumer.TopicConfig{MaxAttempts: 2, DeadLetter: "unsent"})
	go func() {
		for ; broker.Len("unsent") == 0; time.Sleep(time.Millisecond) { // beside others that succeed
			_ = broker.Publish(ctx, "reminders", brokers.Message{Body: []byte("hello")})
		}
		stop()
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	letter, _ := dlq.Decode(broker.Messages("unsent")[0])
	fmt.Printf("%s is dead after %d attempts\n", letter.Message.Body, letter.Meta.Attempt)
	// Output:
	// pay! is dead after 2 attempts
}

// One statement for many rows, and a result for each of them.
func ExampleConsumer_HandleBatch() {
	broker := brokerWith("rows", "a", "b", "?", "d")
	c, err := consumer.New(broker, exampleConfig())
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.HandleBatch("rows", func(_ context.Context, batch []brokers.Item) []error {
		errs := make([]error, len(batch))
		for i, item := range batch {
			if string(item.Message.Body) == "?" {
				errs[i] = classify.Permanent(errors.New("no row"))
			}
		}
		fmt.Printf("inserted a batch of %d\n", len(batch))
		stop()
		return errs
	}, consumer.TopicConfig{BatchSize: 4, BatchWait: time.Second})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("left:", broker.Len("rows"), "dead:", broker.Len("rows-dead"))
	// Output:
	// inserted a batch of 4
	// left: 0 dead: 1
}
