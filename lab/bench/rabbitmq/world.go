// Package rabbitmq lets several consumers do the same work on a RabbitMQ: the
// bare client library, redrive, and Watermill.
package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/lab/bench/contender"
)

// World is what is measured on a RabbitMQ, in queues of names that nobody else
// has.
type World struct {
	// URL is the address of the broker.
	URL string
	// Dial connects the adapter. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	name   string
	queues []string
	filled int // messages so far, for their IDs
}

// NewWorld prepares to measure on the broker at url.
func NewWorld(url string) *World {
	return &World{URL: url, name: fmt.Sprintf("bench-%d", time.Now().UnixNano())}
}

// Close implements contender.World. The shelves of delays stay: they are the same
// for all queues of a virtual host.
func (w *World) Close(context.Context) error {
	return w.channel(func(ch *amqp.Channel) error {
		var errs []error
		for _, queue := range w.queues {
			for _, name := range []string{queue, "redrive.retry.v1." + queue, queue + contender.Dead} {
				_, err := ch.QueueDelete(name, false, false, false)
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// Broker implements contender.World.
func (w *World) Broker() (brokers.Broker, error) { return w.adapter() }

func (w *World) adapter() (*adapter.Broker, error) {
	return adapter.New(adapter.Options{URLs: []string{w.URL}, Dial: w.Dial})
}

// DelayQueues returns how many queues the adapter makes for delays up to longest.
func (w *World) DelayQueues(longest time.Duration) (n int, err error) {
	broker, err := w.adapter()
	if err != nil {
		return 0, err
	}
	text, err := broker.Topology(brokers.Subscription{Topics: []string{"delayed"}, MaxDelay: longest})
	if err != nil {
		return 0, err
	}
	var declared struct {
		Queues []struct {
			Arguments map[string]any `json:"arguments"`
		} `json:"queues"`
	}
	err = json.Unmarshal([]byte(text), &declared)
	for _, queue := range declared.Queues {
		if _, delays := queue.Arguments[ttl]; delays {
			n++
		}
	}
	return n, err
}

const ttl = "x-message-ttl"

// Fill implements contender.World: it has redrive declare the queues, so that
// they are alike for all who consume from them, and puts the same messages into
// each of them.
func (w *World) Fill(ctx context.Context, n int, queues ...string) (names []string, err error) {
	names = w.named(queues)
	broker, err := w.Broker()
	if err != nil {
		return nil, err
	}
	source, err := broker.Open(ctx, brokers.Subscription{Topics: names, InFlight: 1, MaxAttempts: 1})
	if err == nil {
		err = source.Close(ctx)
	}
	if err := errors.Join(err, broker.Close(ctx)); err != nil {
		return nil, err
	}
	return names, w.put(ctx, n, names)
}

// FillClassic does what Fill does, in queues as others have them: classic and
// durable.
func (w *World) FillClassic(ctx context.Context, n int, queues ...string) (names []string, err error) {
	names = w.named(queues)
	err = w.channel(func(ch *amqp.Channel) error {
		for _, name := range names {
			if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return names, w.put(ctx, n, names)
}

// named returns the names of queues that are to be made.
func (w *World) named(queues []string) (names []string) {
	for _, queue := range queues {
		names = append(names, w.name+"-"+queue)
	}
	w.queues = append(w.queues, names...)
	return names
}

// unconfirmed is how many messages publish lets be on their way.
const unconfirmed = 1000

// put writes n messages into each of queues, which exist: persistent, with an ID,
// as any producer might.
func (w *World) put(ctx context.Context, n int, queues []string) error {
	return w.channel(func(ch *amqp.Channel) error {
		exchange := fmt.Sprintf("fill-%d", time.Now().UnixNano())
		if err := ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, false, false, false, false, nil); err != nil {
			return err
		}
		for _, queue := range queues {
			if err := ch.QueueBind(queue, "", exchange, false, nil); err != nil {
				return err
			}
		}
		if err := publish(ctx, ch, exchange, w.filled, n); err != nil {
			return err
		}
		w.filled += n
		return ch.ExchangeDelete(exchange, false, false)
	})
}

func publish(ctx context.Context, ch *amqp.Channel, exchange string, from, n int) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	confirms := make([]*amqp.DeferredConfirmation, n)
	for i := range n + unconfirmed {
		if i < n {
			var err error
			confirms[i], err = ch.PublishWithDeferredConfirmWithContext(ctx, exchange, "", true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent,
				MessageId:    fmt.Sprintf("message-%09d", from+i),
				Body:         contender.Body(from + i),
			})
			if err != nil {
				return err
			}
		}
		if oldest := i - unconfirmed; oldest >= 0 && oldest < n {
			if acked, err := confirms[oldest].WaitContext(ctx); err != nil || !acked {
				return fmt.Errorf("message %d was not confirmed: %w", oldest, errors.Join(err, ctx.Err()))
			}
			confirms[oldest] = nil
		}
	}
	return nil
}

// Left implements contender.World.
func (w *World) Left(_ context.Context, queue string) (n int, err error) {
	err = w.channel(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n, err
}

func (w *World) channel(f func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(w.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}
