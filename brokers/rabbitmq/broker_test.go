package rabbitmq_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain runs tests beside each other, as they mostly wait.
func TestMain(m *testing.M) { os.Exit(livetest.Main(m, 16)) }

// each runs f against every broker, at the same time as others.
func each(t *testing.T, f func(t *testing.T, target livetest.Target)) {
	t.Helper()
	t.Parallel()
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		f(t, target)
	})
}

// admin is a plain connection to look at the broker and to meddle with it.
type admin struct {
	*testing.T
	conn *amqp.Connection
}

func newAdmin(t *testing.T, url string) *admin {
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return &admin{t, conn}
}

// do runs f on a fresh channel.
func (a *admin) do(f func(ch *amqp.Channel) error) error {
	ch, err := a.conn.Channel()
	if err != nil {
		a.Fatalf("open a channel: %v", err)
	}
	defer ch.Close()
	return f(ch)
}

// topic returns a name that is free, and deletes what it stands for at the end.
func (a *admin) topic(name string) string {
	topic := "test." + name + "." + strings.ToLower(rand.Text()[:10])
	a.Cleanup(func() { a.delete(topic, "redrive.retry.v1."+topic) })
	return topic
}

// deleteInUse deletes the queue of a topic that a worker uses, for
// brokertest.Harness. restore declares it again.
func (a *admin) deleteInUse(b brokers.Broker, topic string) (restore func()) {
	a.delete(topic)
	return func() {
		if err := b.(*rabbitmq.Broker).Declare(a.Context(), topic); err != nil {
			a.Errorf("declare %q: %v", topic, err)
		}
	}
}

func (a *admin) delete(queues ...string) {
	for _, queue := range queues {
		a.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		})
	}
}

// depth is the number of messages in a queue that nobody holds.
func (a *admin) depth(queue string) int {
	a.Helper()
	var n int
	err := a.do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	if err != nil {
		a.Fatalf("queue %q: %v", queue, err)
	}
	return n
}

// send publishes as somebody who is not redrive.
func (a *admin) send(queue string, p amqp.Publishing) error {
	return a.do(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, p)
		if err == nil && !confirm.Wait() {
			err = errors.New("not confirmed")
		}
		return err
	})
}

// sendUnreadable is a hook of brokertest.Harness.
func (a *admin) sendUnreadable(_ context.Context, _ brokers.Broker, topic string) error {
	return a.send(topic, amqp.Publishing{Body: []byte("unreadable"), Headers: hostile()["nested arrays"], DeliveryMode: amqp.Persistent})
}

func open(t testing.TB, options rabbitmq.Options) *rabbitmq.Broker {
	t.Helper()
	b, err := rabbitmq.New(options)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, target livetest.Target) {
		a := newAdmin(t, target.URL)
		brokertest.Run(t, brokertest.Harness{
			Open: func(t testing.TB) brokers.Broker {
				return open(t, rabbitmq.Options{URLs: []string{target.URL}})
			},
			Topic:           a.topic,
			Unit:            500 * time.Millisecond,
			AbandonedMargin: bystanders,
			Slack:           2 * time.Second, // of a busy machine
			SortsHeaders:    true,
			TypedHeaders:    typed(),

			PublishUnreadable: a.sendUnreadable,
			Delete:            a.deleteInUse,
		})
	})
}

// TestConformanceOfLeases runs the clauses that wait for leases, and those that
// need faults: the broker is told of a short consumer timeout, which the
// adapter then keeps by itself.
func TestConformanceOfLeases(t *testing.T) {
	each(t, func(t *testing.T, target livetest.Target) {
		a := newAdmin(t, target.URL)
		var taps sync.Map // of brokers
		brokertest.Run(t, brokertest.Harness{
			Open: func(t testing.TB) brokers.Broker {
				tap := &tap{}
				b := open(t, rabbitmq.Options{URLs: []string{target.URL}, Dial: tap.Dial, ConsumerTimeout: 3 * time.Second})
				taps.Store(b, tap)
				return b
			},
			Topic:             a.topic,
			Unit:              500 * time.Millisecond,
			AbandonedMargin:   bystanders,
			Slack:             time.Second,
			SortsHeaders:      true,
			PublishUnreadable: a.sendUnreadable,
			LoseRequests:      func(b brokers.Broker) (heal func()) { return tapOf(&taps, b).swallow() },
			LoseConfirms: func(b brokers.Broker) (heal func()) {
				tap := tapOf(&taps, b)
				tap.set(func(_ *tapped, f frame) verdict {
					if f.is(classBasic, methodAck) {
						return drop
					}
					return pass
				})
				return func() {
					tap.set(nil)
					tap.cut()
				}
			},
			Crash: func(b brokers.Broker, _ brokers.Source) { tapOf(&taps, b).cut() },
		})
	})
}

// How many lost deliveries are not in Delivery.Abandoned.
const bystanders, bystandersOrdered = 4, 14

func tapOf(taps *sync.Map, b brokers.Broker) *tap {
	t, _ := taps.Load(b)
	return t.(*tap)
}

// typed has a header of every type of AMQP.
func typed() brokers.Headers {
	return brokers.Headers{
		{Name: "bool", Value: "true", Type: "bool"},
		{Name: "count", Value: "9007199254740993", Type: "int64"},
		{Name: "small", Value: "-7", Type: "int8"},
		{Name: "ratio", Value: "0.1", Type: "float64"},
		{Name: "at", Value: "1790000000", Type: "timestamp"},
		{Name: "price", Value: "1234e-2", Type: "decimal"},
		{Name: "nothing", Type: "void"},
		{Name: "key", Value: "\x00\xff", Type: "bytes"},
		{Name: "nested", Value: `{"a":["int64","1"],"b":["array",[["","x"],["raw","/w=="]]]}`, Type: "table"},
		{Name: "list", Value: `[["bool","false"],["table",{}]]`, Type: "array"},
		{Name: "content-type", Value: "application/json", Type: "property"},
		{Name: "content-type", Value: "a header of the same name"},
		{Name: "priority", Value: "3", Type: "property"},
		{Name: "correlation-id", Value: "c-1", Type: "property"},
		{Name: "reply-to", Value: "answers", Type: "property"},
		{Name: "expiration", Value: "1", Type: "property"},
		{Name: "user-id", Value: "somebody", Type: "property"},
		{Name: "CC", Value: `[["","elsewhere"]]`, Type: "array"},
	}
}
