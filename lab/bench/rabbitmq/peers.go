package rabbitmq

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	watermillamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/lab/bench/contender"
)

// Raw is the bare client library: one channel, and one ack for every so many
// messages.
func (w *World) Raw(prefetch, every int) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		return w.channel(func(ch *amqp.Channel) error {
			if err := ch.Qos(prefetch, 0, false); err != nil {
				return err
			}
			deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			for done := 1; ; done++ {
				select {
				case d, ok := <-deliveries:
					if !ok {
						return errors.New("the channel was closed")
					}
					handle()
					if done%every == 0 || ctx.Err() != nil {
						if err := d.Ack(true); err != nil {
							return err
						}
					}
				case <-ctx.Done():
				}
				if ctx.Err() != nil {
					return nil
				}
			}
		})
	}
}

// Watermill is a router of Watermill with one handler. A prefetch of 0 leaves
// its default, which is 1.
func (w *World) Watermill(prefetch int) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		cfg := watermillamqp.NewDurableQueueConfig(w.URL)
		cfg.TopologyBuilder = declared{}
		if prefetch > 0 {
			cfg.Consume.Qos.PrefetchCount = prefetch
		}
		subscriber, err := watermillamqp.NewSubscriber(cfg, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return contender.Watermill(ctx, subscriber, 1, queue, handle)
	}
}

// declared leaves queues as they are.
type declared struct{}

func (declared) BuildTopology(*amqp.Channel, watermillamqp.BuildTopologyParams, watermillamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (declared) ExchangeDeclare(*amqp.Channel, string, watermillamqp.Config) error { return nil }
