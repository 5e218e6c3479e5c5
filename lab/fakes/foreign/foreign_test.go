// Package foreign_test lets brokers and other frameworks write dead letters, and
// reads them as redrive does.
package foreign_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/operate/foreign"
)

func unique(name string) string { return "foreign-" + name + "-" + strings.ToLower(rand.Text()[:8]) }

// collect takes so many dead letters from a topic, by their bodies. All have the
// format, and none is left.
func collect(t *testing.T, broker brokers.Broker, topic string, n int, format foreign.Format) map[string]dlq.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	defer func() { _ = broker.Close(context.WithoutCancel(t.Context())) }()
	src, err := broker.Open(ctx, brokers.Subscription{Topics: []string{topic}, InFlight: 10})
	must(t, err)
	entries := map[string]dlq.Entry{}
	for len(entries) < n {
		ds, err := src.Receive(ctx, 10)
		if err != nil {
			t.Fatalf("%d of %d dead letters: %v", len(entries), n, err)
		}
		for _, d := range ds {
			entry, f := foreign.Decode(d)
			if f != format {
				t.Errorf("%s: format %s, want %s, of %+v", d.Message.Body, f, format, d)
			}
			entries[string(d.Message.Body)] = entry
			if errs := src.Settle(ctx, []brokers.Settlement{{Delivery: d}}); errs != nil {
				t.Fatal(errs[0])
			}
		}
	}
	return entries
}

// rabbit is a connection for what a program does that knows nothing of redrive.
type rabbit struct {
	*testing.T
	ctx     context.Context
	channel *amqp.Channel
	broker  brokers.Broker
	queues  []string
}

func newRabbit(t *testing.T, url string) *rabbit {
	t.Helper()
	conn, err := amqp.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	r := &rabbit{T: t}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if r.channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	must(t, r.channel.Confirm(false))
	if r.broker, err = rabbitmq.New(rabbitmq.Options{URLs: []string{url}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, queue := range r.queues {
			_, _ = r.channel.QueueDelete(queue, false, false, false)
		}
	})
	return r
}

// declare makes a quorum queue. What dies in it goes to another, unless that is "".
func (r *rabbit) declare(queue, dead string, args amqp.Table) {
	r.Helper()
	args["x-queue-type"] = "quorum"
	if dead != "" {
		args["x-dead-letter-exchange"], args["x-dead-letter-routing-key"] = "", dead
	}
	r.queues = append(r.queues, queue, "redrive.retry.v1."+queue)
	if _, err := r.channel.QueueDeclare(queue, true, false, false, false, args); err != nil {
		r.Fatal(err)
	}
}

func (r *rabbit) publish(queue, body string, p amqp.Publishing) {
	r.Helper()
	p.Body, p.MessageId, p.DeliveryMode = []byte(body), body, amqp.Persistent
	confirm, err := r.channel.PublishWithDeferredConfirm("", queue, true, false, p)
	if err != nil || !confirm.Wait() {
		r.Fatalf("publish %s: %v", body, err)
	}
}

// await polls until something is done.
func (r *rabbit) await(what string, done func() bool) {
	r.Helper()
	for !done() {
		select {
		case <-r.ctx.Done():
			r.Fatalf("%s: %v", what, r.ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// get waits for a message.
func (r *rabbit) get(queue string) (d amqp.Delivery) {
	r.Helper()
	r.await("a message in "+queue, func() (ok bool) {
		var err error
		if d, ok, err = r.channel.Get(queue, false); err != nil {
			r.Fatal(err)
		}
		return ok
	})
	return d
}

func (r *rabbit) reject(d amqp.Delivery, requeue bool) {
	r.Helper()
	if err := d.Reject(requeue); err != nil {
		r.Fatal(err)
	}
}

// TestRabbitMQ has the broker give messages up for each reason, and a consumer
// park one after three rounds by way of a queue in which messages wait.
func TestRabbitMQ(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		r := newRabbit(t, target.URL)
		began := time.Now().Truncate(time.Second)
		orders, rounds, wait, dead := unique("orders"), unique("rounds"), unique("wait"), unique("dead")
		r.declare(dead, "", amqp.Table{})
		r.declare(orders, dead, amqp.Table{"x-delivery-limit": int32(1)})
		r.declare(rounds, wait, amqp.Table{})
		r.declare(wait, rounds, amqp.Table{"x-message-ttl": int32(20)})
		tenant := amqp.Table{"tenant": "acme"}

		r.publish(orders, "expired", amqp.Publishing{Expiration: "1", Headers: tenant})
		r.await("the broker gives up what expires", func() bool {
			q, err := r.channel.QueueDeclarePassive(dead, true, false, false, false, nil)
			must(t, err)
			return q.Messages == 1
		})
		r.publish(orders, "rejected", amqp.Publishing{Headers: tenant})
		r.reject(r.get(orders), false)
		r.publish(orders, "delivery_limit", amqp.Publishing{Headers: tenant})
		r.reject(r.get(orders), true)
		r.reject(r.get(orders), true)
		r.publish(rounds, "parked", amqp.Publishing{Headers: tenant})
		for range 3 {
			r.reject(r.get(rounds), false)
		}
		d := r.get(rounds)
		r.publish(dead, "parked", amqp.Publishing{Headers: d.Headers})
		must(t, d.Ack(false))

		for body, e := range collect(t, r.broker, dead, 4, foreign.RabbitMQ) {
			want := dlq.Entry{
				Message: brokers.Message{ID: body, Topic: orders, Body: []byte(body), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}},
				Reason:  body, DeadAt: e.DeadAt, Meta: brokers.Meta{Origin: e.Meta.Origin},
			}
			switch body {
			case "rejected":
				want.Meta.Attempt, want.Meta.FirstFailedAt = 1, e.DeadAt
			case "parked":
				want.Message.Topic, want.Reason, want.DeadAt = rounds, "rejected", time.Time{}
				want.Meta.Attempt, want.Meta.FirstFailedAt = 3, e.Meta.FirstFailedAt
			}
			if !reflect.DeepEqual(e, want) {
				t.Errorf("got  %+v\nwant %+v", e, want)
			}
			for _, at := range []time.Time{want.DeadAt, want.Meta.FirstFailedAt} {
				if !at.IsZero() && (at.Before(began) || at.After(time.Now())) {
					t.Errorf("%s: a time of %v, and it is not since %v", body, at, began)
				}
			}
			if got := e.Meta.Origin.Get("queue"); got != dead {
				t.Errorf("%s: received from %q, want %q", body, got, dead)
			}
		}
	})
}

func TestSQS(t *testing.T) {
	t.Run("sqstest", func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		t.Cleanup(server.Close)
		onSQS(t, server.Config())
	})
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})
		onSQS(t, aws.Config{Region: "us-east-1", Credentials: credentials, BaseEndpoint: &target.URL})
	})
}

// onSQS receives a message twice, which is once too often.
func onSQS(t *testing.T, config aws.Config) {
	client := awssqs.NewFromConfig(config)
	create := func(name string, attributes map[string]string) (url *string) {
		t.Helper()
		out, err := client.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
		must(t, err)
		t.Cleanup(func() {
			_, _ = client.DeleteQueue(context.WithoutCancel(t.Context()), &awssqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
		})
		return out.QueueUrl
	}
	orders, dead := unique("orders"), unique("dead")
	arns, err := client.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: create(dead, nil), AttributeNames: []types.QueueAttributeName{"QueueArn"}})
	must(t, err)
	url := create(orders, map[string]string{
		"VisibilityTimeout": "0",
		"RedrivePolicy":     fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arns.Attributes["QueueArn"]),
	})
	if _, err := client.SendMessage(t.Context(), &awssqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("a")}); err != nil {
		t.Fatal(err)
	}
	for receives := 0; ; receives++ {
		out, err := client.ReceiveMessage(t.Context(), &awssqs.ReceiveMessageInput{QueueUrl: url})
		must(t, err)
		if len(out.Messages) == 0 {
			if receives != 2 {
				t.Fatalf("the message is gone after %d receives, want 2", receives)
			}
			break
		}
	}
	broker, err := sqs.New(sqs.Options{Config: config, PollWait: time.Second})
	must(t, err)
	e := collect(t, broker, dead, 1, foreign.SQS)["a"]
	want := dlq.Entry{
		Message: brokers.Message{ID: e.Message.ID, Topic: orders, Body: []byte("a"), PublishedAt: e.Message.PublishedAt},
		Reason:  "maxReceiveCount", Meta: brokers.Meta{Attempt: 2, Origin: e.Meta.Origin},
	}
	if !reflect.DeepEqual(e, want) || e.Message.PublishedAt.IsZero() || e.Meta.Origin.Get("first-received-at") == "" {
		t.Errorf("got  %+v\nwant %+v, with times", e, want)
	}
}

// TestWatermill has a router send a message to its poison queue.
func TestWatermill(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		r := newRabbit(t, target.URL)
		poison := unique("poison")
		r.declare(poison, "", amqp.Table{})
		publisher, err := watermillamqp.NewPublisher(watermillamqp.NewDurableQueueConfig(target.URL), watermill.NopLogger{})
		must(t, err)
		t.Cleanup(func() { _ = publisher.Close() })
		toPoison, err := middleware.PoisonQueue(publisher, poison)
		must(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		must(t, err)
		channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		router.AddMiddleware(toPoison)
		router.AddConsumerHandler("charge", "orders", channel, func(m *message.Message) error {
			return errors.New("charge order 4711: token=hunter2 expired")
		})
		ran := make(chan error, 1)
		go func() { ran <- router.Run(t.Context()) }()
		defer func() {
			if err := errors.Join(router.Close(), <-ran); err != nil {
				t.Error(err)
			}
		}()
		m := message.NewMessage("uuid-1", []byte("a"))
		m.Metadata.Set("tenant", "acme")
		must(t, channel.Publish("orders", m))

		e := collect(t, r.broker, poison, 1, foreign.Watermill)["a"]
		want := dlq.Entry{
			Message: brokers.Message{ID: e.Message.ID, Topic: "orders", Body: []byte("a"), Headers: brokers.Headers{
				{Name: "_watermill_message_uuid", Value: "uuid-1"}, {Name: "tenant", Value: "acme"},
			}},
			ErrorText: "charge order 4711: token=[redacted] expired", DeadBy: "charge", Fingerprint: e.Fingerprint,
			Meta: brokers.Meta{Origin: e.Meta.Origin},
		}
		if !reflect.DeepEqual(e, want) || e.Fingerprint == "" {
			t.Errorf("got  %+v\nwant %+v, with a fingerprint", e, want)
		}
		if got := e.Meta.Origin.Get("subscriber"); got != "gochannel.GoChannel" {
			t.Errorf("subscriber %q, want gochannel.GoChannel", got)
		}
	})
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
