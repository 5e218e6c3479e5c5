// Worker is a complete redrive program. Of its three orders one is charged at
// once, one is retried and then charged, and one becomes a dead letter.
//
//	go run ./examples/worker
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

type order struct {
	ID    string
	Cents int
}

func charge(ctx context.Context, o order) error {
	switch {
	case o.Cents <= 0:
		return classify.Permanent(errors.New("there is nothing to charge")) // never retried
	case o.ID == "B" && consumer.MetaFrom(ctx).Attempt == 1:
		return errors.New("the payment server is busy") // retried, with backoff and jitter
	}
	fmt.Println("charged", o.ID)
	return nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // usually signal.NotifyContext
	defer cancel()
	broker := memory.New(memory.Options{})
	worker, err := consumer.New(broker, consumer.Config{DeadLetter: "*-dead"})
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle("orders", consumer.JSON(charge))
	err = broker.Publish(ctx, "orders",
		brokers.Message{Body: []byte(`{"id":"A","cents":1999}`)},
		brokers.Message{Body: []byte(`{"id":"B","cents":250}`)},
		brokers.Message{Body: []byte(`{"id":"C","cents":0}`)})
	if err := errors.Join(err, worker.Run(ctx)); err != nil {
		log.Fatal(err)
	}
	for _, m := range broker.Messages("orders-dead") {
		letter, _ := dlq.Decode(m) // fails if somebody else put m there
		fmt.Printf("dead letter %s: %s: %s\n", m.Body, letter.Reason, letter.ErrorText)
	}
}
