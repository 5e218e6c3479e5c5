package main

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/meter"
	"github.com/redrive-go/redrive/lab/bench/kafka"
	"github.com/redrive-go/redrive/lab/bench/rabbitmq"
	"github.com/redrive-go/redrive/lab/bench/sqs"
)

// The benchmarks are for profiles of one contender at a time, on the brokers that
// make up starts. Ratios come from make figures, which lets them alternate.

func BenchmarkRabbitMQ(b *testing.B) {
	w := rabbitmq.NewWorld(address(b, rabbitEnv))
	cfg := consumer.Config{Prefetch: 200, MaxHeld: 8000}
	profile(b, w, []entrant{
		{name: "raw", time: w.Raw(500, 125).Time},
		{name: "raw-single-acks", time: w.Raw(500, 1).Time},
		{name: "redrive", time: contender.Redrive(w, cfg).Time},
		{name: "redrive-by-key", time: contender.Redrive(w, consumer.Config{Prefetch: 200, OrderByKey: true}).Time},
		{name: "fail1", time: failing(w, cfg, 1)},
		{name: "fail10", time: failing(w, cfg, 10)},
		{name: "watermill", time: w.Watermill(200).Time},
		{name: "watermill-default", time: w.Watermill(0).Time},
	})
}

func BenchmarkKafka(b *testing.B) {
	w := kafka.NewWorld(address(b, kafkaEnv), 4)
	profile(b, w, []entrant{
		{name: "raw-reader", time: w.RawReader(1000).Time},
		{name: "raw-group-1", time: w.RawGroup(1<<20, 1000).Time},
		{name: "raw-group-10", time: w.RawGroup(10<<20, 1000).Time},
		{name: "redrive", time: contender.Redrive(w, kafkaConfig).Time},
		{name: "redrive-default", time: contender.Redrive(w, consumer.Config{}).Time},
		{name: "fail1", time: failing(w, kafkaConfig, 1)},
		{name: "fail10", time: failing(w, kafkaConfig, 10)},
		{name: "watermill", time: w.Watermill().Time},
	})
}

func BenchmarkSQS(b *testing.B) {
	w := sqs.NewWorld(address(b, sqsEnv))
	profile(b, w, []entrant{
		{name: "raw-8", time: w.Raw(8).Time},
		{name: "raw-32", time: w.Raw(32).Time},
		{name: "redrive", time: contender.Redrive(w, sqsConfig).Time},
		{name: "redrive-default", time: contender.Redrive(w, consumer.Config{}).Time},
		{name: "fail1", time: failing(w, sqsConfig, 1)},
		{name: "fail10", time: failing(w, sqsConfig, 10)},
		{name: "watermill", time: w.Watermill(10, 8).Time},
		{name: "watermill-default", time: w.Watermill(1, 1).Time},
	})
}

func address(b *testing.B, env string) string {
	b.Helper()
	address := os.Getenv(env)
	if address == "" {
		b.Skipf("%s is not set: make up prints it", env)
	}
	return address
}

func profile(b *testing.B, w contender.World, entrants []entrant) {
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for _, e := range entrants {
		b.Run(e.name, func(b *testing.B) {
			// Each size has a queue of its own.
			queues, err := w.Fill(b.Context(), b.N, fmt.Sprint(e.name, "-", b.N))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			took, err := e.time(b.Context(), queues[0], b.N)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
		})
	}
}

// processorTime is what this process has used so far. It tells contenders apart
// on a machine that does other work besides.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	used, err := meter.ProcessorTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}
