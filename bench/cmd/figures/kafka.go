package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/kafka"
)

const kafkaEnv = "REDRIVE_KAFKA_URL" // Kafka 4.3

// kafkaSession is one run of the command on one Kafka.
type kafkaSession struct {
	report func(figure.Figure)
	prefix string // of the names of figures
	world  *kafka.World
}

// kafkaArea measures the adapter on Kafka 4.3, and its throughput on a fake in
// this process too. A part that fails does not keep the others from being
// measured.
func kafkaArea(report func(figure.Figure)) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	address := os.Getenv(kafkaEnv)
	if address == "" {
		return fmt.Errorf("%s is not set: make figures starts a broker and sets it", kafkaEnv)
	}
	genuine := &kafkaSession{report: report, prefix: "kafka", world: kafka.NewWorld(address)}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return err
	}
	defer cluster.Close()
	fake := &kafkaSession{report: report, prefix: "kfake", world: kafka.NewWorld(strings.Join(cluster.ListenAddrs(), ","))}
	var errs []error
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"throughput", genuine.throughput},
		{"failures", genuine.failures},
		{"lateness", genuine.lateness},
		{"waiting", genuine.waiting},
		{"kill", genuine.killed},
		{"filled range", genuine.filledRange},
		{"throughput on a fake", fake.throughput}, // last: it leaves a large heap
	} {
		bounded, cancel := context.WithTimeout(ctx, limit)
		if err := part.measure(bounded); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
		}
		cancel()
	}
	errs = append(errs, genuine.world.Close(context.WithoutCancel(ctx)))
	return errors.Join(errs...)
}
