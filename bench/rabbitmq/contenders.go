package rabbitmq

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/bench/internal/clock"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// Contender handles and acks the n messages of a queue with a handler that
// does nothing. It returns the time from the first message to the last, which
// leaves out connecting and declaring for all alike.
type Contender func(ctx context.Context, w *World, queue string, n int) (time.Duration, error)

// Raw is the bare client library: one channel, and one ack for every so many
// messages.
func Raw(prefetch, every int) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (took time.Duration, err error) {
		err = w.channel(func(ch *amqp.Channel) error {
			if err := ch.Qos(prefetch, 0, false); err != nil {
				return err
			}
			deliveries, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			c := clock.New(n)
			for done := 1; done <= n; done++ {
				d, ok := <-deliveries
				if !ok {
					return errors.New("the channel was closed")
				}
				c.Tick()
				if done%every == 0 || done == n {
					if err := d.Ack(true); err != nil {
						return err
					}
				}
			}
			took, err = c.Wait(ctx)
			return err
		})
		return took, err
	}
}

// Redrive is a consumer of this project.
func Redrive(cfg consumer.Config) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (time.Duration, error) {
		c := clock.New(n)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		result := make(chan error, 1)
		go func() {
			result <- Work(ctx, w, cfg, queue, func(context.Context, *brokers.Message) error {
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

// Work runs a consumer with handler h for queue until ctx ends. What the broker
// refuses or loses is logged.
func Work(ctx context.Context, w *World, cfg consumer.Config, queue string, h consumer.Handler) error {
	broker, err := rabbitmq.New(rabbitmq.Options{URLs: []string{w.URL}})
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
	c.Handle(queue, h)
	return c.Run(ctx)
}

// Watermill is a router of Watermill with one handler. A prefetch of 0 leaves
// its default, which is 1.
func Watermill(prefetch int) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (time.Duration, error) {
		cfg := watermillamqp.NewDurableQueueConfig(w.URL)
		cfg.TopologyBuilder = declared{}
		if prefetch > 0 {
			cfg.Consume.Qos.PrefetchCount = prefetch
		}
		subscriber, err := watermillamqp.NewSubscriber(cfg, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		c := clock.New(n)
		router.AddConsumerHandler("bench", queue, subscriber, func(*message.Message) error {
			c.Tick()
			return nil
		})
		result := make(chan error, 1)
		go func() { result <- router.Run(ctx) }()
		took, err := c.Wait(ctx)
		return took, errors.Join(err, router.Close(), <-result)
	}
}

// declared leaves queues as they are.
type declared struct{}

func (declared) BuildTopology(*amqp.Channel, watermillamqp.BuildTopologyParams, watermillamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (declared) ExchangeDeclare(*amqp.Channel, string, watermillamqp.Config) error { return nil }
