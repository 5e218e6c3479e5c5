// Kafka is a complete worker on Kafka. With -publish 3 it charges one order at
// once, one after a retry that waits in the broker, and one becomes a dead
// letter. With -letters it prints the dead letters instead, each of them once.
// Ctrl-C ends it in good order. The topic has to exist.
//
//	go run ./examples/kafka -publish 3
//	go run ./examples/kafka -letters
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
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
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
	return nil // it stays in its topic; this group goes on behind it
}

func publish(ctx context.Context, broker *kafka.Broker, topic string, n int) error {
	prices := []int{1999, 50, 0}
	for i := range n {
		id := fmt.Sprintf("order-%d", i+1)
		m := brokers.Message{ID: id, Key: id, Body: fmt.Appendf(nil, `{"id":%q,"cents":%d}`, id, prices[i%len(prices)])}
		if err := broker.Publish(ctx, topic, m); err != nil {
			return err
		}
	}
	return nil
}

// work runs a worker for topic, or for its dead letters, until ctx ends.
func work(ctx context.Context, broker brokers.Broker, topic string, letters bool) error {
	config := consumer.Config{
		DeadLetter: "*-dead",
		Retry:      retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: 3 * time.Second}},
	}
	handler := consumer.JSON(charge)
	if letters {
		topic, config.DeadLetter, handler = topic+"-dead", dlq.Discard, show
	}
	config.Group = topic // workers with other topics are another group
	worker, err := consumer.New(broker, config)
	if err != nil {
		return err
	}
	worker.Handle(topic, handler)
	return worker.Run(ctx)
}

func main() {
	addresses := flag.String("brokers", "", "addresses, separated by commas (default $KAFKA_BROKERS, or else 127.0.0.1:9092)")
	topic := flag.String("topic", "orders", "where the orders are")
	n := flag.Int("publish", 0, "publish this many orders")
	letters := flag.Bool("letters", false, "print the dead letters")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
	broker, err := kafka.New(kafka.Options{
		Brokers: strings.Split(cmp.Or(*addresses, os.Getenv("KAFKA_BROKERS"), "127.0.0.1:9092"), ","),
	})
	if err != nil {
		log.Fatal(err)
	}
	if *n > 0 {
		if err := publish(ctx, broker, *topic, *n); err != nil {
			log.Fatal(err)
		}
	}
	if err := work(ctx, broker, *topic, *letters); err != nil {
		log.Fatal(err)
	}
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := broker.Close(closing); err != nil {
		log.Fatal(err)
	}
}
