package kafka

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	watermillkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/bench/internal/clock"
	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// Contender handles and commits the n messages of a topic with a handler that
// does nothing, as a group of its own. It returns the time from the first
// message to the last, which leaves out joining the group for all alike.
type Contender func(ctx context.Context, w *World, group, topic string, n int) (time.Duration, error)

// RawReader is the Reader of the bare client library in a group, with one
// commit for every so many messages.
func RawReader(every int) Contender {
	return func(ctx context.Context, w *World, group, topic string, n int) (time.Duration, error) {
		r := kafka.NewReader(kafka.ReaderConfig{
			Brokers: w.Addresses, GroupID: group, GroupTopics: []string{topic}, StartOffset: kafka.FirstOffset,
			MinBytes: 1, MaxBytes: 10 << 20, QueueCapacity: 1000,
		})
		c := clock.New(n)
		batch := make([]kafka.Message, 0, every)
		for done := 1; done <= n; done++ {
			m, err := r.FetchMessage(ctx)
			if err != nil {
				return 0, errors.Join(err, r.Close())
			}
			batch = append(batch, m)
			if done%every == 0 || done == n {
				if err := r.CommitMessages(ctx, batch...); err != nil {
					return 0, errors.Join(err, r.Close())
				}
				batch = batch[:0]
			}
			c.Tick()
		}
		took, err := c.Wait(ctx)
		return took, errors.Join(err, r.Close())
	}
}

// RawGroup is a loop on ConsumerGroup and Client.Fetch of the bare client
// library: one goroutine for each partition, with fetches of so many bytes and
// one commit for every so many messages.
func RawGroup(maxBytes int64, every int) Contender {
	return func(ctx context.Context, w *World, group, topic string, n int) (time.Duration, error) {
		g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: group, Brokers: w.Addresses, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		})
		if err != nil {
			return 0, err
		}
		next, err := g.Next(ctx)
		if err != nil {
			return 0, errors.Join(err, g.Close())
		}
		transport := &kafka.Transport{}
		defer transport.CloseIdleConnections()
		client := &kafka.Client{Addr: kafka.TCP(w.Addresses...), Transport: transport, Timeout: 30 * time.Second}
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		c := clock.New(n)
		var work sync.WaitGroup
		for _, a := range next.Assignments[topic] {
			work.Go(func() {
				l := rawLoop{client: client, generation: next, topic: topic, partition: a.ID, maxBytes: maxBytes, every: every, clock: c}
				if err := l.run(ctx, max(a.Offset, 0)); err != nil && ctx.Err() == nil {
					stop(err)
				}
			})
		}
		took, err := c.Wait(ctx)
		stop(nil)
		work.Wait()
		return took, errors.Join(err, g.Close())
	}
}

type rawLoop struct {
	client     *kafka.Client
	generation *kafka.Generation
	topic      string
	partition  int
	maxBytes   int64
	every      int
	clock      *clock.Clock
}

func (l rawLoop) run(ctx context.Context, offset int64) error {
	done := 0
	for ctx.Err() == nil {
		res, err := l.client.Fetch(ctx, &kafka.FetchRequest{
			Topic: l.topic, Partition: l.partition, Offset: offset,
			MinBytes: 1, MaxBytes: l.maxBytes, MaxWait: 100 * time.Millisecond,
		})
		if err := errors.Join(err, errorOf(res)); err != nil {
			return err
		}
		for {
			r, err := res.Records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if r.Offset < offset {
				continue
			}
			if err := errors.Join(readAll(r.Key), readAll(r.Value)); err != nil {
				return err
			}
			offset = r.Offset + 1
			if done++; done%l.every == 0 {
				if err := l.commit(offset); err != nil {
					return err
				}
			}
			l.clock.Tick()
		}
	}
	return l.commit(offset)
}

func (l rawLoop) commit(offset int64) error {
	return l.generation.CommitOffsets(map[string]map[int]int64{l.topic: {l.partition: offset}})
}

func errorOf(res *kafka.FetchResponse) error {
	if res == nil {
		return nil
	}
	return res.Error
}

func readAll(b kafka.Bytes) error {
	_, err := kafka.ReadAll(b)
	if b != nil {
		b.Close()
	}
	return err
}

// Redrive is a consumer of this project.
func Redrive(cfg consumer.Config) Contender {
	return func(ctx context.Context, w *World, group, topic string, n int) (time.Duration, error) {
		c := clock.New(n)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		result := make(chan error, 1)
		go func() {
			result <- Work(ctx, w, cfg, group, topic, func(context.Context, *brokers.Message) error {
				c.Tick()
				return nil
			})
			stop()
		}()
		took, err := c.Wait(ctx)
		stop()
		return took, errors.Join(err, <-result)
	}
}

// Work runs a consumer with handler h for topic until ctx ends. What the broker
// refuses or loses is logged.
func Work(ctx context.Context, w *World, cfg consumer.Config, group, topic string, h consumer.Handler, settings ...func(*adapter.Options)) error {
	broker, err := w.Broker(group, settings...)
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	cfg.DeadLetter = dlq.Suffix(".dead")
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := consumer.New(broker, cfg)
	if err != nil {
		return err
	}
	c.Handle(topic, h)
	return c.Run(ctx)
}

// Broker is redrive's, for subscriptions of group.
func (w *World) Broker(group string, settings ...func(*adapter.Options)) (*adapter.Broker, error) {
	options := adapter.Options{Brokers: w.Addresses, Group: group}
	for _, set := range settings {
		set(&options)
	}
	return adapter.New(options)
}

// Watermill is a router of Watermill with one handler.
func Watermill() Contender {
	return func(ctx context.Context, w *World, group, topic string, n int) (time.Duration, error) {
		cfg := watermillkafka.DefaultSaramaSubscriberConfig()
		cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
		subscriber, err := watermillkafka.NewSubscriber(watermillkafka.SubscriberConfig{
			Brokers: w.Addresses, ConsumerGroup: group, Unmarshaler: watermillkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg,
		}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		c := clock.New(n)
		router.AddConsumerHandler("bench", topic, subscriber, func(*message.Message) error {
			c.Tick()
			return nil
		})
		result := make(chan error, 1)
		go func() { result <- router.Run(ctx) }()
		took, err := c.Wait(ctx)
		return took, errors.Join(err, router.Close(), <-result)
	}
}
