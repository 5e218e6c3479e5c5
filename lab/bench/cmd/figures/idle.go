package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/meter"
	"github.com/redrive-go/redrive/lab/bench/kafka"
	"github.com/redrive-go/redrive/lab/bench/rabbitmq"
	"github.com/redrive-go/redrive/lab/bench/sqs"
)

// metered is a world whose broker counts what the adapter sends.
type metered struct {
	contender.World
	*meter.Meter
	broker, units string
	asks          []string // kinds of requests that ask how much the broker has
	goal          float64  // for those of a worker with one topic and its dead letters
}

// idle measures what a worker costs that has nothing to do, on each broker.
func idle(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	worlds, end, err := allMetered()
	var all []figure.Measurement
	for _, w := range worlds {
		all = append(all, idler(w))
	}
	return all, end, err
}

// allMetered returns a world on each broker.
func allMetered() ([]metered, func(context.Context) error, error) {
	rabbitAddress, e1 := brokerAt(rabbitEnv)
	kafkaAddress, e2 := brokerAt(kafkaEnv)
	sqsAddress, e3 := brokerAt(sqsEnv)
	if err := errors.Join(e1, e2, e3); err != nil {
		return nil, nil, err
	}
	var frames, requests meter.Meter
	onRabbit, onKafka, onSQS := rabbitmq.NewWorld(rabbitAddress), kafka.NewWorld(kafkaAddress, 4), sqs.NewWorld(sqsAddress)
	onRabbit.Dial = frames.Dial(meter.AMQP)
	onKafka.Options.Dial = requests.Dial(meter.Kafka)
	onSQS.PollWait = 0 // its default
	return []metered{
			{onRabbit, &frames, "rabbitmq", "frames", []string{"method"}, 3},
			{onSQS, &onSQS.Calls.Meter, "sqs", "calls", []string{"GetQueueAttributes"}, 2},
			{onKafka, &requests, "kafka", "requests", []string{"OffsetFetch", "ListOffsets"}, 6},
		}, func(ctx context.Context) error {
			return errors.Join(onRabbit.Close(ctx), onSQS.Close(ctx), onKafka.Close(ctx))
		}, nil
}

// idler measures a worker with the default Config and one topic without messages,
// when it has settled.
func idler(w metered) figure.Measurement {
	m, broker, units := w.Meter, w.broker, w.units
	const settled, minutes = 30 * time.Second, 2
	cpu, connections, sent := broker+"_idle_cpu_ms", broker+"_idle_connections", broker+"_idle_"+units
	measure := func(ctx context.Context, samples *figure.Samples) error {
		before, err := meter.ProcessorTime()
		if err != nil {
			return err
		}
		m.Take()
		if err := pause(ctx, minutes*time.Minute); err != nil {
			return err
		}
		after, err := meter.ProcessorTime()
		took := m.Take()
		figure.Note("%s, in %d minutes: %v", broker, minutes, took)
		samples.Add(cpu, milliseconds(after-before)/minutes)
		samples.Add(connections, float64(m.Open()))
		samples.Add(sent, float64(took.Total())/minutes)
		return err
	}
	return figure.Measurement{
		Name: broker,
		Figures: []*figure.Figure{
			figure.Reported(cpu, "ms/min"), figure.Reported(connections, "connections"), figure.Reported(sent, units+"/min"),
		},
		Run: func(ctx context.Context, samples *figure.Samples) error {
			topics, err := w.Fill(ctx, 0, "idle")
			if err != nil {
				return err
			}
			ctx, stop := startWorker(ctx, w, consumer.Config{}, topics[0], unexpected)
			err = pause(ctx, settled)
			if err == nil {
				err = measure(ctx, samples)
			}
			return errors.Join(err, stop())
		},
	}
}

// unexpected is the handler of a topic without messages.
func unexpected(_ context.Context, m *brokers.Message) error {
	return fmt.Errorf("message %q came from nowhere", m.ID)
}
