package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/lateness"
	"github.com/redrive-go/redrive/lab/bench/rabbitmq"
	"github.com/redrive-go/redrive/retry"
)

// trial is what delays measures.
var trial struct {
	url         string
	n, rate     int
	from, to    time.Duration
	concurrency int
	handler     time.Duration
}

func delayFlags() {
	flag.StringVar(&trial.url, "url", "amqp://guest:guest@127.0.0.1:5672/", "delays: the broker")
	flag.IntVar(&trial.n, "n", 5000, "delays: messages")
	flag.IntVar(&trial.rate, "rate", 0, "delays: messages a second, 0 for all at once")
	flag.DurationVar(&trial.from, "from", 3*time.Second, "delays: the shortest")
	flag.DurationVar(&trial.to, "to", 10*time.Second, "delays: the longest")
	flag.IntVar(&trial.concurrency, "concurrency", 200, "delays: handlers that run at once")
	flag.DurationVar(&trial.handler, "handler", 0, "delays: how long each run takes")
}

// delays prints how retries on a RabbitMQ keep their time: each of n messages
// fails once and is to wait for a random while.
func delays(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	w := rabbitmq.NewWorld(trial.url)
	return []figure.Measurement{
		{Name: "delays", Limit: 24 * time.Hour, Run: func(ctx context.Context, _ *figure.Samples) error { return delay(ctx, w) }},
	}, w.Close, nil
}

// delay prints how fast the retries were stored, over how many shelves each went,
// how late it ran, and how even the wave was spread.
func delay(ctx context.Context, w *rabbitmq.World) error {
	first := trial.n // messages that wait before the worker starts
	if trial.rate > 0 {
		first = 0
	}
	queues, err := w.Fill(ctx, first, "delays")
	if err != nil {
		return err
	}
	o := lateness.NewObserver()
	cfg := consumer.Config{
		Concurrency: trial.concurrency,
		Guard:       unguarded,
		Retry:       retry.Policy{Backoff: retry.Backoff{Base: trial.to, Cap: trial.to, Floor: trial.from, Multiplier: 1}},
		Observers:   []consumer.Observer{o},
		Middleware: []func(consumer.Handler) consumer.Handler{func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, m *brokers.Message) error {
				time.Sleep(trial.handler)
				return next(ctx, m)
			}
		}},
	}
	run, stop := context.WithCancelCause(ctx)
	var publishing sync.WaitGroup
	publishing.Go(func() {
		if err := publish(run, w, queues[0], trial.n-first); err != nil {
			stop(err)
		}
	})
	_, err = failing(w, cfg, 100)(run, queues[0], trial.n)
	stop(nil)
	publishing.Wait()
	if err == nil {
		show(o)
	}
	return err
}

// publish sends n messages at the rate of the trial.
func publish(ctx context.Context, w contender.World, queue string, n int) error {
	broker, err := w.Broker()
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	for sent, start := 0, time.Now(); sent < n; {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
		due := min(n, int(time.Since(start).Seconds()*float64(trial.rate)))
		batch := make([]brokers.Message, due-sent)
		for i := range batch {
			batch[i].Body = contender.Body(sent + i)
		}
		if err := broker.Publish(ctx, queue, batch...); err != nil {
			return err
		}
		sent = due
	}
	return nil
}

// show prints what became of the retries.
func show(o *lateness.Observer) {
	all := o.Take()
	stored := all.Stored()
	var first, last time.Time
	var arrived, began []time.Duration
	hops, most := 0, 0
	for _, r := range stored {
		if first.IsZero() || r.Failed.Before(first) {
			first = r.Failed
		}
		if r.Stored.After(last) {
			last = r.Stored
		}
		hops, most = hops+r.Hops, max(most, r.Hops)
		arrived = append(arrived, r.Came.Sub(r.Failed))
	}
	for _, r := range all {
		began = append(began, r.Began.Sub(r.Failed))
	}
	n, took := float64(len(all)), last.Sub(first).Seconds()
	fmt.Printf("retries   %d, to wait for %v to %v\n", len(all), trial.from, trial.to)
	fmt.Printf("stored    %d in %.1f s, %.0f a second\n", len(stored), took, float64(len(stored))/took)
	fmt.Printf("hops      %.2f in the mean, %d at most\n", float64(hops)/n, most)
	fmt.Printf("early     %d\n", all.Early())
	late := all.Late()
	fmt.Printf("late      p50 %.1f ms, p99 %.1f ms, most %.1f ms\n",
		milliseconds(figure.Median(late)), milliseconds(figure.Quantile(late, 0.99)), milliseconds(slices.Max(late)))
	fmt.Printf("uneven    %.1f %% when they ran, %.1f %% when they came from the shelves, %.1f %% by chance\n",
		100*lateness.Uneven(began, trial.from, trial.to), 100*lateness.Uneven(arrived, trial.from, trial.to), 100*1.36/math.Sqrt(n))
}
