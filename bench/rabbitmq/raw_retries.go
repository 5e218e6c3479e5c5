package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/bench/internal/clock"
)

// RawRetries is the bare client library with the least work that retries take:
// each of percent of the messages is copied to the queue of retries, without a
// delay, and an ack for it and all before goes when the copy is confirmed.
// Nobody who keeps that order, and holds no message back, does with less.
func RawRetries(percent, prefetch, every int) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (took time.Duration, err error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		conn, err := amqp.Dial(w.URL)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		retries := "redrive.retry.v1." + queue
		first, acks, err := consume(conn, queue, prefetch)
		if err != nil {
			return 0, err
		}
		again, acksAgain, err := consume(conn, retries, prefetch)
		if err != nil {
			return 0, err
		}
		err = w.channel(func(out *amqp.Channel) error {
			if err := out.Confirm(false); err != nil {
				return err
			}
			c := clock.New(n)
			type outcome struct {
				took time.Duration
				err  error
			}
			finished := make(chan outcome, 1)
			result := make(chan error, 3)
			confirms := make(chan group, n/every+1)
			go func() { result <- acknowledge(ctx, acks, confirms) }()
			go func() { result <- handleAgain(acksAgain, again, every, c) }()
			go func() {
				defer close(confirms)
				result <- handle(ctx, out, first, retries, n, percent, every, c, confirms)
			}()
			go func() {
				took, err := c.Wait(ctx)
				finished <- outcome{took, err}
			}()
			for {
				select {
				case o := <-finished:
					took = o.took
					return o.err
				case failure := <-result:
					if failure != nil {
						return failure
					}
				}
			}
		})
		return took, err
	}
}

func consume(conn *amqp.Connection, queue string, prefetch int) (<-chan amqp.Delivery, *amqp.Channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, nil, err
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	return deliveries, ch, err
}

// group is what one ack stands for: everything up to tag. The last copy in it,
// if there is one, is confirmed after all others.
type group struct {
	tag  uint64
	last *amqp.DeferredConfirmation
}

func handle(ctx context.Context, out *amqp.Channel, in <-chan amqp.Delivery, retries string, n, percent, every int, c *clock.Clock, groups chan<- group) error {
	var last *amqp.DeferredConfirmation
	for done := 1; done <= n; done++ {
		d, ok := <-in
		if !ok {
			return errors.New("the channel was closed")
		}
		if done*percent%100 < percent {
			var err error
			last, err = out.PublishWithDeferredConfirmWithContext(ctx, "", retries, true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, MessageId: d.MessageId, Body: d.Body,
				Headers: amqp.Table{"attempt": int64(2), "due": time.Now().UnixMilli(), "error": "the service is busy"},
			})
			if err != nil {
				return err
			}
		} else {
			c.Tick()
		}
		if done%every == 0 || done == n {
			groups <- group{d.DeliveryTag, last}
			last = nil
		}
	}
	return nil
}

func acknowledge(ctx context.Context, ch *amqp.Channel, groups <-chan group) error {
	for g := range groups {
		if g.last != nil {
			if acked, err := g.last.WaitContext(ctx); err != nil || !acked {
				return fmt.Errorf("a copy was not confirmed: %w", errors.Join(err, ctx.Err()))
			}
		}
		if err := ch.Ack(g.tag, true); err != nil {
			return err
		}
	}
	return nil
}

func handleAgain(ch *amqp.Channel, in <-chan amqp.Delivery, every int, c *clock.Clock) error {
	done := 0
	for d := range in {
		c.Tick()
		if done++; done%every == 0 {
			if err := ch.Ack(d.DeliveryTag, true); err != nil {
				return err
			}
		}
	}
	return nil
}
