package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/meter"
	"github.com/redrive-go/redrive/lab/bench/kafka"
)

const (
	startWaiting  = 50_000 // retries that wait in four delay topics when the worker starts
	startLongest  = 24 * time.Hour
	startEarliest = 10 * time.Minute
)

// starting measures a worker that begins with so many partitions, and retries that
// wait: how long until its first message, and what it has then of goroutines, memory
// and connections.
func starting(address string, partitions int) figure.Measurement {
	name := func(what string) string { return fmt.Sprintf("kafka_start_%d_%s", partitions, what) }
	took, goroutines, heapSize, connections := name("s"), name("goroutines"), name("heap_mib"), name("connections")
	return figure.Measurement{
		Name: fmt.Sprintf("start with %d partitions", partitions),
		Figures: []*figure.Figure{
			figure.Reported(took, "s"), figure.Reported(goroutines, "goroutines"), figure.Reported(heapSize, "MiB"), figure.Reported(connections, "connections"),
		},
		Run: func(ctx context.Context, samples *figure.Samples) (err error) {
			w := kafka.NewWorld(address, partitions)
			defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()
			topics, err := w.Fill(ctx, startWaiting, "start")
			if err != nil {
				return err
			}
			subscription := brokers.Subscription{Topics: topics, InFlight: 10_000, MaxDelay: startLongest, MaxAge: 2 * startLongest, MaxAttempts: 10}
			if err := postponeAll(ctx, w, subscription); err != nil {
				return err
			}
			var requests meter.Meter
			options := w.Options
			options.Dial = requests.Dial(meter.Kafka)
			before, memory := runtime.NumGoroutine(), heap(2).HeapInuse
			broker, err := adapter.New(options)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, broker.Close(context.WithoutCancel(ctx))) }()
			if err := broker.Publish(ctx, topics[0], brokers.Message{Body: contender.Body(0)}); err != nil {
				return err
			}
			began := time.Now()
			source, err := broker.Open(ctx, subscription)
			if err != nil {
				return err
			}
			ds, err := source.Receive(ctx, 1)
			if err != nil {
				return err
			}
			samples.Add(took, time.Since(began).Seconds())
			if err := errors.Join(source.Settle(ctx, []brokers.Settlement{{Delivery: ds[0]}})...); err != nil {
				return err
			}
			if err := pause(ctx, 10*time.Second); err != nil {
				return err
			}
			samples.Add(goroutines, float64(runtime.NumGoroutine()-before))
			samples.Add(heapSize, (float64(heap(2).HeapInuse)-float64(memory))/(1<<20))
			samples.Add(connections, float64(requests.Open()))
			figure.Note("start with %d partitions: %v", partitions, requests.Take())
			return nil
		},
	}
}

// postponeAll retries all messages that there are, with delays of all lengths.
func postponeAll(ctx context.Context, w *kafka.World, sub brokers.Subscription) (err error) {
	broker, err := adapter.New(w.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close(ctx)) }()
	source, err := broker.Open(ctx, sub)
	if err != nil {
		return err
	}
	for left := startWaiting; left > 0; {
		ds, err := source.Receive(ctx, left)
		if err != nil {
			return err
		}
		batch := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			longest := []time.Duration{15 * time.Minute, 3 * time.Hour, startLongest}[i%3]
			batch[i] = postponed(d, startEarliest+rand.N(longest-startEarliest))
		}
		if err := errors.Join(source.Settle(ctx, batch)...); err != nil {
			return err
		}
		left -= len(ds)
	}
	return nil
}
