package rabbitmq_test

import (
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// An ordered source hands out a queue in its order, also while its prefetch grows.
func TestOrderedSource(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages = 5000
		w.closeSource()
		w.number(w.topic, 0, messages)
		w.openOrdered(1000)
		for next := 0; next < messages; {
			ds, err := w.source.Receive(w.Context(), 100)
			if err != nil {
				w.Fatal(err)
			}
			w.inOrder(ds, next)
			next += len(ds)
			w.settleAll(ds)
		}
	})
}

func (w *world) openOrdered(inFlight int) {
	w.Helper()
	sub := w.subscription(w.topic)
	sub.Ordered, sub.InFlight = true, inFlight
	var err error
	if w.source, err = w.broker.Open(w.Context(), sub); err != nil {
		w.Fatal(err)
	}
}

// grow has the worker take so many messages at a time that its prefetch is 32.
func (w *world) grow() {
	w.Helper()
	w.number(w.topic, 0, 16)
	ds := w.receive(16)
	w.nothing(100 * time.Millisecond)
	w.settleAll(ds)
}

// number publishes messages whose bodies count from first on, in this order.
func (w *world) number(topic string, first, n int) {
	w.Helper()
	msgs := make([]brokers.Message, n)
	for i := range msgs {
		msgs[i] = brokers.Message{Body: strconv.AppendInt(nil, int64(first+i), 10)}
	}
	if err := w.broker.Publish(w.Context(), topic, msgs...); err != nil {
		w.Fatal(err)
	}
}

// inOrder checks that the bodies of ds count from next on.
func (w *world) inOrder(ds []*brokers.Delivery, next int) {
	w.Helper()
	for i, d := range ds {
		if got, want := string(d.Message.Body), strconv.Itoa(next+i); got != want {
			w.Fatalf("message %s was handed out, want %s", got, want)
		}
	}
}

// settleAll acks ds at once.
func (w *world) settleAll(ds []*brokers.Delivery) {
	w.Helper()
	batch := make([]brokers.Settlement, len(ds))
	for i, d := range ds {
		batch[i].Delivery = d
	}
	for _, err := range w.settle(batch...) {
		if err != nil {
			w.Fatal(err)
		}
	}
}

// Of a queue with a single active consumer a worker holds as much as of any other.
func TestSingleActiveConsumerHoldsAll(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.redeclare(w.topic, with(w.topicArgs(), amqp.Table{"x-single-active-consumer": true}))
		w.source = w.open(w.topic)
		w.number(w.topic, 0, 50)
		w.settleAll(w.receive(50))
	})
}

// Several workers keep the order if the broker lets one of them at a time have the
// queue.
func TestSingleActiveConsumerKeepsTheOrder(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages, workers = 2000, 3
		w.closeSource()
		w.redeclare(w.topic, with(w.topicArgs(), amqp.Table{"x-single-active-consumer": true}))
		var sources []brokers.Source
		for range workers {
			w.openOrdered(1000)
			sources = append(sources, w.source)
		}
		w.number(w.topic, 0, messages)
		next, turn := 0, 0
		w.await("all messages come", func() bool {
			turn++
			w.source = sources[turn%workers]
			ds := w.within(10 * time.Millisecond)
			w.inOrder(ds, next)
			w.settleAll(ds)
			next += len(ds)
			return next == messages
		})
	})
}
