package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/lab/bench/contender"
)

// RawRetries is a retry as it is written with the bare client library: handlers
// publish what fails to a queue whose messages expire after delay, and come back
// through a dead-letter exchange. Every message fails when it comes first. Nothing
// can be lost that redrive would keep: copies are persistent, mandatory and
// confirmed before their original is acked, and the queue keeps what expires until
// it has arrived. Acks are multiple, for so many messages or as long as none waits.
func (w *World) RawRetries(prefetch, every, handlers int, delay time.Duration) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		return w.channel(func(in *amqp.Channel) error {
			return w.channel(func(out *amqp.Channel) error {
				wait := queue + "-wait"
				w.queues = append(w.queues, wait)
				deliveries, err := subscribe(in, queue, wait, prefetch, delay)
				if err := errors.Join(err, out.Confirm(false)); err != nil {
					return err
				}
				l := &retryLoop{
					out: out, wait: wait, handle: handle, returned: out.NotifyReturn(make(chan amqp.Return, 1)),
					work: make(chan *attempt, prefetch), order: make(chan *attempt, prefetch),
				}
				g, ctx := errgroup.WithContext(ctx)
				g.Go(func() error { return l.receive(ctx, deliveries) })
				for range handlers {
					g.Go(l.run)
				}
				g.Go(func() error { return l.settle(every) })
				return g.Wait()
			})
		})
	}
}

// subscribe makes the queue to wait in, and consumes queue.
func subscribe(ch *amqp.Channel, queue, wait string, prefetch int, delay time.Duration) (<-chan amqp.Delivery, error) {
	back := queue + "-back" // gone with queue
	if err := ch.ExchangeDeclare(back, amqp.ExchangeDirect, true, true, false, false, nil); err != nil {
		return nil, err
	}
	if err := ch.QueueBind(queue, queue, back, false, nil); err != nil {
		return nil, err
	}
	if _, err := ch.QueueDeclare(wait, true, false, false, false, amqp.Table{
		"x-queue-type":              "quorum",
		ttl:                         delay.Milliseconds(),
		"x-dead-letter-exchange":    back,
		"x-dead-letter-routing-key": queue,
		"x-dead-letter-strategy":    "at-least-once",
		"x-overflow":                "reject-publish",
	}); err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return ch.Consume(queue, "", false, false, false, false, nil)
}

// attempt is a message that was received.
type attempt struct {
	amqp.Delivery
	copied chan *amqp.DeferredConfirmation // nil if it was handled, closed if that could not be published
}

type retryLoop struct {
	out      *amqp.Channel
	wait     string
	handle   func()
	returned chan amqp.Return
	work     chan *attempt
	order    chan *attempt // the same, as they were received
}

const retried = "retried" // a header

// receive hands out what comes until ctx ends.
func (l *retryLoop) receive(ctx context.Context, deliveries <-chan amqp.Delivery) error {
	defer close(l.order)
	defer close(l.work)
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the channel was closed")
			}
			a := &attempt{d, make(chan *amqp.DeferredConfirmation, 1)}
			l.order <- a
			l.work <- a
		case <-ctx.Done():
			return nil
		}
	}
}

// run is a handler.
func (l *retryLoop) run() error {
	for a := range l.work {
		l.handle()
		if a.Headers[retried] != nil {
			a.copied <- nil
			continue
		}
		copied, err := l.out.PublishWithDeferredConfirm("", l.wait, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: a.MessageId, Headers: amqp.Table{retried: true}, Body: a.Body,
		})
		if err != nil {
			close(a.copied)
			return err
		}
		a.copied <- copied
	}
	return nil
}

// settle acks what was handled or copied.
func (l *retryLoop) settle(every int) error {
	waiting := 0
	for a := range l.order {
		copied, ok := <-a.copied
		if !ok {
			return nil // the handler says why
		}
		if copied != nil && !copied.Wait() {
			return errors.New("a copy was not confirmed")
		}
		select {
		case back := <-l.returned:
			return fmt.Errorf("a copy was returned: %s", back.ReplyText)
		default:
		}
		if waiting++; waiting == every || len(l.order) == 0 {
			if err := a.Ack(true); err != nil {
				return err
			}
			waiting = 0
		}
	}
	return nil
}
