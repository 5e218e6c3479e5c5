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

// A whole worker: one order is charged, one at the second attempt, and one is
// declined, which no retry would change.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	broker := memory.New(memory.Options{})
	for _, body := range []string{"coffee", "caviar", "tea"} {
		if err := broker.Publish(ctx, "orders", brokers.Message{Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}

	c, err := consumer.New(broker, consumer.Config{
		DeadLetter:  "*-dead",
		Concurrency: 1,
		Retry:       retry.Policy{Backoff: retry.Backoff{Base: time.Millisecond}},
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
		order, attempt := string(m.Body), consumer.MetaFrom(ctx).Attempt
		if order == "caviar" {
			return classify.Permanent(errors.New("card declined"))
		}
		if order == "tea" && attempt == 1 {
			return errors.New("payment server is restarting")
		}
		fmt.Printf("charged %s at attempt %d\n", order, attempt)
		if order == "tea" {
			stop() // usually the end of signal.NotifyContext
		}
		return nil
	})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}

	for _, m := range broker.Messages("orders-dead") {
		entry, err := dlq.Decode(m)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("dead: %s, %s: %s\n", entry.Message.Body, entry.Reason, entry.ErrorText)
	}
	// Output:
	// charged coffee at attempt 1
	// charged tea at attempt 2
	// dead: caviar, poison: card declined
}
