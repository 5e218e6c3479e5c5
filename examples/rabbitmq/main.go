// Rabbitmq is a complete worker on RabbitMQ. With -publish 3 it charges one
// order at once, one after a retry that waits in the broker, and one becomes a
// dead letter. With -letters it prints the dead letters instead, and removes
// them. Ctrl-C ends it in good order.
//
//	go run ./examples/rabbitmq -publish 3
//	go run ./examples/rabbitmq -letters
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

type order struct {
	ID    string
	Cents int
}

func charge(ctx context.Context, o order) error {
	run := consumer.MetaFrom(ctx).Attempt // 1 in the first run
	switch {
	case o.Cents <= 0:
		return classify.Permanent(errors.New("there is nothing to charge")) // never retried
	case o.Cents < 100 && run == 1:
		return classify.Transient(errors.New("the payment server is busy")) // retried in 3 to 5 s
	}
	fmt.Println("charged", o.ID, "in run", run)
	return nil
}

func show(_ context.Context, m *brokers.Message) error {
	letter, err := dlq.Decode(*m)
	if err != nil {
		fmt.Printf("dead letter %s: not by redrive\n", m.Body)
		return nil
	}
	fmt.Printf("dead letter %s: %s: %s\n", m.Body, letter.Reason, letter.ErrorText)
	return nil // which removes it
}

// publish begins with the queue, as there may not have been a worker yet.
func publish(ctx context.Context, broker *rabbitmq.Broker, queue string, n int) error {
	if err := broker.Declare(ctx, queue); err != nil {
		return err
	}
	prices := []int{1999, 50, 0}
	for i := range n {
		id := fmt.Sprintf("order-%d", i+1)
		m := brokers.Message{ID: id, Body: fmt.Appendf(nil, `{"id":%q,"cents":%d}`, id, prices[i%len(prices)])}
		if err := broker.Publish(ctx, queue, m); err != nil {
			return err
		}
	}
	return nil
}

// work runs a worker for queue, or for its dead letters, until ctx ends.
func work(ctx context.Context, broker brokers.Broker, queue string, letters bool) error {
	config := consumer.Config{
		DeadLetter: "*-dead",
		Retry:      retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: 3 * time.Second}},
	}
	handler := consumer.JSON(charge)
	if letters {
		queue, config.DeadLetter, handler = queue+"-dead", dlq.Discard, show
	}
	worker, err := consumer.New(broker, config)
	if err != nil {
		return err
	}
	worker.Handle(queue, handler)
	return worker.Run(ctx)
}

func main() {
	url := flag.String("url", "", "the broker (default $RABBITMQ_URL, or else amqp://guest:guest@127.0.0.1:5672/)")
	queue := flag.String("queue", "orders", "where the orders are")
	n := flag.Int("publish", 0, "publish this many orders")
	letters := flag.Bool("letters", false, "print and remove the dead letters")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
	broker, err := rabbitmq.New(rabbitmq.Options{
		URLs: []string{cmp.Or(*url, os.Getenv("RABBITMQ_URL"), "amqp://guest:guest@127.0.0.1:5672/")},
	})
	if err != nil {
		log.Fatal(err)
	}
	if *n > 0 {
		if err := publish(ctx, broker, *queue, *n); err != nil {
			log.Fatal(err)
		}
	}
	if err := work(ctx, broker, *queue, *letters); err != nil {
		log.Fatal(err)
	}
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := broker.Close(closing); err != nil {
		log.Fatal(err)
	}
}
