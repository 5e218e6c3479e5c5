// Sqs is a complete worker on Amazon SQS, or on a server that speaks its
// protocol. It creates its queues where they are missing. With -publish 3 it
// publishes orders instead: one is charged at once, one after a retry that
// waits in the queue, and one becomes a dead letter. With -letters it prints
// the dead letters, and removes them. Ctrl-C ends it in good order.
//
//	go run ./examples/sqs
//	go run ./examples/sqs -publish 3
//	go run ./examples/sqs -letters
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
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

func publish(ctx context.Context, broker *sqs.Broker, queue string, n int) error {
	prices := []int{1999, 50, 0}
	msgs := make([]brokers.Message, n)
	for i := range msgs {
		id := fmt.Sprintf("order-%d", i+1)
		msgs[i] = brokers.Message{ID: id, Body: fmt.Appendf(nil, `{"id":%q,"cents":%d}`, id, prices[i%len(prices)])}
	}
	return broker.Publish(ctx, queue, msgs...)
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

// environment is the part of config.LoadDefaultConfig that needs no module of
// its own: region, keys and endpoint as the AWS tools name them.
func environment() aws.Config {
	config := aws.Config{Region: os.Getenv("AWS_REGION")}
	if endpoint := os.Getenv("AWS_ENDPOINT_URL"); endpoint != "" {
		config.BaseEndpoint = &endpoint
	}
	if id := os.Getenv("AWS_ACCESS_KEY_ID"); id != "" {
		keys := aws.Credentials{
			AccessKeyID:     id,
			SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
			SessionToken:    os.Getenv("AWS_SESSION_TOKEN"),
		}
		config.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil })
	}
	return config
}

func main() {
	queue := flag.String("queue", "orders", "where the orders are")
	n := flag.Int("publish", 0, "publish this many orders, and end")
	letters := flag.Bool("letters", false, "print and remove the dead letters")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
	broker, err := sqs.New(sqs.Options{
		Config:   environment(),
		Create:   true,
		PollWait: 5 * time.Second, // Ctrl-C may take as long; 20 s, the default, costs less
	})
	if err != nil {
		log.Fatal(err)
	}
	if *n > 0 {
		err = publish(ctx, broker, *queue, *n)
	} else {
		err = work(ctx, broker, *queue, *letters)
	}
	if err != nil {
		log.Fatal(err)
	}
	closing, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := broker.Close(closing); err != nil {
		log.Fatal(err)
	}
}
