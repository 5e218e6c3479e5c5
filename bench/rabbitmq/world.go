// Package rabbitmq lets several consumers do the same work on a RabbitMQ: the
// bare client library, redrive, and Watermill.
package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// World is a virtual host of its own, so that nothing is left of what was
// measured in it.
type World struct {
	// URL is the address of the virtual host.
	URL string

	admin  string // of the virtual host in the HTTP interface, with user and password
	filled int    // messages so far, for their IDs
}

// NewWorld makes a virtual host on the broker at address, by its HTTP
// interface at management. Both are with user and password.
func NewWorld(ctx context.Context, address, management string) (*World, error) {
	uri, err := amqp.ParseURI(address)
	if err != nil {
		return nil, errors.New("the address of the broker is not an AMQP URL")
	}
	name := fmt.Sprintf("redrive-bench-%d", time.Now().UnixNano())
	admin, err := url.JoinPath(management, "api")
	if err != nil {
		return nil, errors.New("the address of the HTTP interface is not a URL")
	}
	w := &World{admin: admin + "/vhosts/" + name}
	uri.Vhost = name
	w.URL = uri.String()
	if err := request(ctx, http.MethodPut, w.admin, ""); err != nil {
		return nil, err
	}
	everything := `{"configure": ".*", "write": ".*", "read": ".*"}`
	return w, request(ctx, http.MethodPut, admin+"/permissions/"+name+"/"+url.PathEscape(uri.Username), everything)
}

// Close deletes the virtual host with all that is in it.
func (w *World) Close(ctx context.Context) error {
	return request(ctx, http.MethodDelete, w.admin, "")
}

func request(ctx context.Context, method, address, body string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return errors.New("the address of the HTTP interface is not a URL")
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("RabbitMQ's HTTP interface: %w", errors.Unwrap(err)) // without the URL, which has a password
	}
	answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fmt.Errorf("RabbitMQ's HTTP interface answers %s to %s %s", answer.Status, method, r.URL.Path)
	}
	return nil
}

// Declare has redrive declare the queues, so that they are alike for all who
// consume from them: quorum queues with a delivery limit and a dead-letter
// exchange.
func (w *World) Declare(ctx context.Context, queues ...string) error {
	broker, err := rabbitmq.New(rabbitmq.Options{URLs: []string{w.URL}})
	if err != nil {
		return err
	}
	source, err := broker.Open(ctx, brokers.Subscription{Topics: queues, InFlight: 1})
	if err != nil {
		return err
	}
	return errors.Join(source.Close(ctx), broker.Close(ctx))
}

// unconfirmed is how many messages Fill lets be on their way.
const unconfirmed = 1000

// Fill puts the same n messages into each of queues: persistent, with an ID
// and a body of 256 bytes, as any producer might write them. It is called from
// one goroutine.
func (w *World) Fill(ctx context.Context, n int, queues ...string) error {
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
	body := bytes.Repeat([]byte("x"), 256)
	confirms := make([]*amqp.DeferredConfirmation, n)
	for i := range n + unconfirmed {
		if i < n {
			var err error
			confirms[i], err = ch.PublishWithDeferredConfirmWithContext(ctx, exchange, "", true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent,
				MessageId:    fmt.Sprintf("message-%09d", from+i),
				Body:         body,
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

// Left returns how many messages of queue nobody has acked.
func (w *World) Left(queue string) (n int, err error) {
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
