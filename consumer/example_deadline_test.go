package consumer_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// A quote is worth sending for a minute after its publication. A producer that
// knows better sets an earlier time.
func ExampleTopic_deadline() {
	ctx, stop := context.WithCancel(context.Background())
	broker := memory.New(memory.Options{})
	now := time.Now()
	late := brokers.Message{Body: []byte("GBP")}
	late.SetDeadline(now.Add(-time.Second))
	err := broker.Publish(ctx, "quotes",
		brokers.Message{Body: []byte("EUR"), PublishedAt: now.Add(-time.Hour)}, // it waited for a worker
		late,
		brokers.Message{Body: []byte("USD")})
	if err != nil {
		log.Fatal(err)
	}
	c, err := consumer.New(broker, consumer.Config{DeadLetter: "*-dead", Concurrency: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	c.HandleWith("quotes", func(ctx context.Context, m *brokers.Message) error {
		until, _ := ctx.Deadline() // a call of another service gets it with ctx
		fmt.Printf("sent %s in time: %v\n", m.Body, time.Until(until) <= time.Minute)
		stop()
		return nil
	}, consumer.TopicConfig{Deadline: time.Minute})
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, m := range broker.Messages("quotes-dead") {
		letter, err := dlq.Decode(m)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is dead: %s\n", letter.Message.Body, letter.Reason)
	}
	// Output:
	// sent USD in time: true
	// EUR is dead: expired
	// GBP is dead: expired
}

// A reminder is due a while after the order that it is about.
func ExampleTopic_startAfter() {
	ctx, stop := context.WithCancel(context.Background())
	broker := memory.New(memory.Options{})
	c, err := consumer.New(broker, consumer.Config{DeadLetter: "*-dead", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	c.HandleWith("reminders", func(ctx context.Context, m *brokers.Message) error {
		early := time.Since(m.PublishedAt) < 50*time.Millisecond
		fmt.Printf("reminded %s, attempt %d, early: %v\n", m.Body, consumer.MetaFrom(ctx).Attempt, early)
		stop()
		return nil
	}, consumer.TopicConfig{StartAfter: 50 * time.Millisecond})
	if err := broker.Publish(ctx, "reminders", brokers.Message{Body: []byte("Ada")}); err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// reminded Ada, attempt 1, early: false
}
