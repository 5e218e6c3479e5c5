package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/lateness"
	"github.com/redrive-go/redrive/lab/bench/kafka"
)

// change is what joins measures.
var change struct {
	brokers         string
	topics, workers int
}

func joinFlags() {
	flag.StringVar(&change.brokers, "brokers", "localhost:9092", "joins: addresses of Kafka brokers, with commas")
	flag.IntVar(&change.topics, "topics", 20, "joins: topics of three partitions that each worker reads")
	flag.IntVar(&change.workers, "workers", 3, "joins: workers that join one after the other, and leave")
}

const (
	steady = 5 * time.Second // without a change, and after one
	pace   = 50 * time.Millisecond
)

// joins prints what it costs a Kafka group that workers join and leave it, with
// one membership for all topics of a worker and with one for each topic.
func joins(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	w := kafka.NewWorld(change.brokers, 3)
	return []figure.Measurement{
		{Name: "one", Run: func(ctx context.Context, _ *figure.Samples) error { return join(ctx, w, "one", change.topics) }},
		{Name: "each", Run: func(ctx context.Context, _ *figure.Samples) error { return join(ctx, w, "each", 1) }},
	}, w.Close, nil
}

// join lets workers that read a steady stream join and leave, with a membership
// for each so many topics. For each change of the group it prints for how long a
// topic stood still at most.
func join(ctx context.Context, w *kafka.World, name string, together int) error {
	names := make([]string, change.topics)
	for i := range names {
		names[i] = fmt.Sprint(name, i)
	}
	w.NextGroup()
	topics, err := w.Declare(ctx, names...)
	if err := errors.Join(err, pause(ctx, steady)); err != nil { // until the brokers know their new topics
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop(nil)
	work.Go(func() {
		if err := produce(ctx, w, topics); err != nil {
			stop(err)
		}
	})
	var p lateness.Pauses
	tick := func(_ context.Context, m *brokers.Message) error {
		p.Tick(m.Topic)
		return nil
	}
	show := func(what string) error {
		err := pause(ctx, steady)
		fmt.Printf("%-5s %-16s pause %v\n", name, what, p.Longest().Round(time.Millisecond))
		return err
	}
	var stops []context.CancelFunc
	for n := range change.workers {
		worker, leave := context.WithCancel(ctx)
		stops = append(stops, leave)
		for topics := range slices.Chunk(topics, together) {
			work.Go(func() {
				if err := contender.Work(worker, w, consumer.Config{}, tick, topics...); err != nil {
					stop(err)
				}
			})
		}
		if n > 0 {
			err = show(fmt.Sprintf("worker %d joins", n+1))
		} else {
			err = pause(ctx, 2*steady)
			p.Longest()
			err = errors.Join(err, show("steady"))
		}
		if err != nil {
			return err
		}
	}
	for n, leave := range stops[:len(stops)-1] {
		leave()
		if err := show(fmt.Sprintf("worker %d leaves", n+1)); err != nil {
			return err
		}
	}
	return nil
}

// produce writes to all topics at a steady pace until ctx ends.
func produce(ctx context.Context, w contender.World, topics []string) error {
	b, err := w.Broker()
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	defer work.Wait()
	for _, topic := range topics {
		work.Go(func() {
			for pause(ctx, pace) == nil {
				if err := b.Publish(ctx, topic, brokers.Message{}); err != nil && ctx.Err() == nil {
					figure.Note("%v", err)
				}
			}
		})
	}
	return nil
}
