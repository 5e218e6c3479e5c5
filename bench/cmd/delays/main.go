// Delays measures how retries on RabbitMQ keep their time: each of n messages
// fails once and is to wait for a random while. It prints how fast the retries
// were stored, over how many shelves each went, how long it was held in the
// process at the end, how late it ran, and how even the wave was spread.
//
//	go run ./bench/cmd/delays -url amqp://guest:guest@127.0.0.1:5672/ -n 20000 -from 3s -to 10s
//	go run ./bench/cmd/delays -url amqp://guest:guest@127.0.0.1:5672/ -n 1500 -rate 50
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// trial is one measurement.
type trial struct {
	url         string
	n           int
	rate        int // messages a second; 0 has all of them wait before the worker starts
	from, to    time.Duration
	concurrency int
	handler     time.Duration // of each run
}

func main() {
	var t trial
	flag.StringVar(&t.url, "url", "amqp://guest:guest@127.0.0.1:5672/", "the broker")
	flag.IntVar(&t.n, "n", 5000, "messages")
	flag.IntVar(&t.rate, "rate", 0, "messages a second, 0 for all at once")
	flag.DurationVar(&t.from, "from", 3*time.Second, "shortest delay")
	flag.DurationVar(&t.to, "to", 10*time.Second, "longest delay")
	flag.IntVar(&t.concurrency, "concurrency", 200, "handlers that run at once")
	flag.DurationVar(&t.handler, "handler", 0, "how long each run takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := t.run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run measures on a queue of its own, and prints the result.
func (t trial) run(ctx context.Context, out io.Writer) (err error) {
	broker, err := rabbitmq.New(rabbitmq.Options{URLs: []string{t.url}})
	if err != nil {
		return err
	}
	queue := "redrive-delays." + rand.Text()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, broker.Close(closing), remove(t.url, queue, "redrive.retry.v1."+queue))
	}()
	if err := declare(ctx, broker, queue); err != nil {
		return err
	}
	if t.rate == 0 {
		if err := t.publish(ctx, broker, queue); err != nil {
			return err
		}
	}
	book := newBook(t.n)
	if err := t.work(ctx, broker, queue, book); err != nil {
		return err
	}
	if left := t.n - len(book.starts()); left > 0 {
		return fmt.Errorf("stopped with %d of %d retries to come", left, t.n)
	}
	book.print(out, t)
	return nil
}

// work runs a worker until every message has had its retry.
func (t trial) work(ctx context.Context, broker brokers.Broker, queue string, book *book) error {
	worker, err := consumer.New(broker, consumer.Config{
		DeadLetter:  dlq.Discard,
		Concurrency: t.concurrency,
		Guard:       consumer.Guard{NoBudget: true, NoBreaker: true}, // every message fails at first, which looks like an outage
		Retry:       retry.Policy{Backoff: retry.Backoff{Base: t.to, Cap: t.to, Floor: t.from, Multiplier: 1}},
		Observers:   []consumer.Observer{book},
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	worker.Handle(queue, func(ctx context.Context, _ *brokers.Message) error {
		if t.handler > 0 {
			<-time.After(t.handler)
		}
		if consumer.MetaFrom(ctx).Attempt == 1 {
			return classify.Transient(errors.New("not yet"))
		}
		return nil
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(book.complete, cancel)()
	published := make(chan error, 1)
	go func() {
		var err error
		if t.rate > 0 {
			err = t.publish(ctx, broker, queue)
		}
		published <- err
	}()
	err = worker.Run(ctx)
	cancel()
	return errors.Join(err, <-published)
}

// publish sends all at once, or as many a second as asked for.
func (t trial) publish(ctx context.Context, broker brokers.Broker, queue string) error {
	if t.rate == 0 {
		return broker.Publish(ctx, queue, messages(t.n)...)
	}
	const step = 20 * time.Millisecond
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for sent, start := 0, time.Now(); sent < t.n; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		due := min(t.n, int(time.Since(start).Seconds()*float64(t.rate)))
		if due > sent {
			if err := broker.Publish(ctx, queue, messages(due-sent)...); err != nil {
				return err
			}
			sent = due
		}
	}
	return nil
}

func messages(n int) []brokers.Message {
	body := make([]byte, 256)
	all := make([]brokers.Message, n)
	for i := range all {
		all[i].Body = body
	}
	return all
}

// declare lets Open declare the queue, so that there is one to publish to.
func declare(ctx context.Context, broker brokers.Broker, queue string) error {
	source, err := broker.Open(ctx, brokers.Subscription{Topics: []string{queue}, InFlight: 1})
	if err != nil {
		return err
	}
	return source.Close(ctx)
}

// remove deletes the queues of the trial; the shelves stay for others.
func remove(url string, queues ...string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for _, queue := range queues {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	return nil
}
