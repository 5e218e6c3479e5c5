package rabbitmq_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	retries "github.com/redrive-go/redrive/retry"
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

// So does one whose worker holds what it gets, as it does with retries whose keys
// wait for them.
func TestOrderedSourceOfWhoHolds(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const inFlight = 3000
		w.closeSource()
		w.number(w.topic, 0, inFlight)
		w.openOrdered(inFlight)
		ds := w.receive(inFlight)
		w.inOrder(ds, 0)
		w.settleAll(ds)
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

// Without failures, one worker that keeps the order of keys runs the messages of a
// key as they were published.
func TestByKeyOneWorker(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.runByKey(1, nil)
	})
}

// Several do if the broker lets one of them at a time have the queue.
func TestByKeySingleActiveConsumer(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.runByKey(3, amqp.Table{"x-single-active-consumer": true})
	})
}

// runByKey has workers run 5,000 messages of 50 keys and wants no message of a key
// to start after a later one. The queue has these arguments besides its own.
func (w *world) runByKey(workers int, arguments amqp.Table) {
	w.Helper()
	const messages, keys = 5000, 50
	topic := w.admin.topic("keys")
	w.Cleanup(func() { w.delete(topic+".dead", w.prefix+".retry.v1."+topic) })
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 20, "x-overflow": "reject-publish",
		"x-dead-letter-exchange": w.prefix + ".dead.v1", "x-dead-letter-routing-key": topic, "x-dead-letter-strategy": "at-least-once"}
	for name, value := range arguments {
		args[name] = value
	}
	if err := w.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(topic, true, false, false, false, args)
		return err
	}); err != nil {
		w.Fatal(err)
	}
	msgs := make([]brokers.Message, messages)
	for i := range msgs {
		msgs[i] = brokers.Message{Key: fmt.Sprint(i % keys), Body: fmt.Append(nil, i)}
	}
	if err := w.broker.Publish(w.Context(), topic, msgs...); err != nil {
		w.Fatal(err)
	}
	seen := &sequence{newest: make(map[string]int), want: messages, all: make(chan struct{})}
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	for range workers {
		c := byKey(w.T, w.broker)
		c.Handle(topic, seen.handle)
		work.Go(func() { c.Run(ctx) })
	}
	select {
	case <-seen.all:
	case <-time.After(3 * patience):
		w.Error("not all messages were handled")
	}
	if handled, inversions := seen.counts(); inversions > 0 {
		w.Errorf("%d of %d messages ran after a later one of their key", inversions, handled)
	}
}

func byKey(t *testing.T, b brokers.Broker) *consumer.Consumer {
	c, err := consumer.New(b, consumer.Config{
		DeadLetter: dlq.Suffix(".dead"), OrderByKey: true, Concurrency: 20, Prefetch: 200,
		Retry:  retries.Policy{Backoff: retries.Backoff{Base: 100 * time.Millisecond, Cap: time.Second}, MaxRetryAfter: time.Second, EnvironmentDelay: time.Second},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sequence counts the messages that start after a later one of their key.
type sequence struct {
	mu                        sync.Mutex
	newest                    map[string]int
	handled, inversions, want int
	all                       chan struct{}
}

func (s *sequence) handle(_ context.Context, m *brokers.Message) error {
	n, err := strconv.Atoi(strings.TrimSpace(string(m.Body)))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < s.newest[m.Key] {
		s.inversions++
	}
	s.newest[m.Key] = max(n, s.newest[m.Key])
	if s.handled++; s.handled == s.want {
		close(s.all)
	}
	return nil
}

func (s *sequence) counts() (handled, inversions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handled, s.inversions
}
