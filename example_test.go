package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

type order struct{ Cents int }

// Two orders, of which one cannot be charged.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	broker := memory.New(memory.Options{})
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter:  "*-dead",
		Concurrency: 1,
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	c.Handle("orders", consumer.JSON(func(_ context.Context, o order) error {
		if o.Cents <= 0 {
			return classify.Permanent(errors.New("there is nothing to charge"))
		}
		fmt.Println("charged", o.Cents)
		stop()
		return nil
	}))
	err = broker.Publish(ctx, "orders", brokers.Message{Body: []byte(`{"cents": 0}`)}, brokers.Message{Body: []byte(`{"cents": 10}`)})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("left:", broker.Len("orders"), "dead:", broker.Len("orders-dead"))
	// Output:
	// charged 10
	// left: 0 dead: 1
}
