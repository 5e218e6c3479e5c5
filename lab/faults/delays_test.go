package faults

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	randv2 "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/retry"
)

// own is a part of a broker that belongs to one test.
type own struct {
	*testing.T
	broker *rabbitmq.Broker
	admin  *amqp.Connection
	prefix string
	topic  string
}

func newOwn(t *testing.T, url string, maxDelay time.Duration) *own {
	t.Helper()
	o := &own{T: t, prefix: "faults-" + strings.ToLower(rand.Text()[:8])}
	o.topic = o.prefix + ".orders"
	var err error
	if o.admin, err = amqp.Dial(url); err != nil {
		t.Fatalf("connect: %v", err)
	}
	if o.broker, err = rabbitmq.New(rabbitmq.Options{URLs: []string{url}, Prefix: o.prefix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.broker.Close(context.Background())
		o.clean(maxDelay)
		o.admin.Close()
	})
	source, err := o.broker.Open(t.Context(), brokers.Subscription{ // declares, so that there is something to publish to
		Topics: []string{o.topic}, DeadLetters: map[string]string{o.topic: o.topic + ".dead"}, MaxDelay: maxDelay})
	must(t, err)
	must(t, source.Close(t.Context()))
	return o
}

// clean deletes what the test has declared, which is found by its names.
func (o *own) clean(maxDelay time.Duration) {
	names := []string{o.topic, o.topic + ".dead", o.prefix + ".retry.v1." + o.topic}
	for octave := 250 * time.Millisecond; octave <= maxDelay; octave *= 2 {
		for eighth := range 8 {
			delay := octave + (octave * time.Duration(eighth) / 8).Truncate(time.Millisecond)
			names = append(names, fmt.Sprintf("%s.delay.v2.%d", o.prefix, delay.Milliseconds()))
		}
	}
	for _, name := range append(names, o.prefix+".dead.v1", o.prefix+".return.v1", o.prefix+".copy.v1", o.prefix+".unroutable.v1") {
		if ch, err := o.admin.Channel(); err == nil {
			ch.QueueDelete(name, false, false, false)
			ch.ExchangeDelete(name, false, false)
			ch.Close()
		}
	}
}

func (o *own) ready(queue string) (n int, err error) {
	q, err := o.look(queue)
	return q.Messages, err
}

// look returns the counts of a queue.
func (o *own) look(queue string) (amqp.Queue, error) {
	ch, err := o.admin.Channel()
	if err != nil {
		return amqp.Queue{}, err
	}
	defer ch.Close()
	return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
}

func (o *own) publish(n int) {
	o.Helper()
	msgs := make([]brokers.Message, n)
	for i := range msgs {
		msgs[i] = brokers.Message{ID: fmt.Sprint("m", i), Body: []byte("body")}
	}
	if err := o.broker.Publish(o.Context(), o.topic, msgs...); err != nil {
		o.Fatal(err)
	}
}

func (o *own) eventually(what string, done func() bool) {
	o.Helper()
	o.Log("waiting until", what)
	until(o, done)
}

// unguarded is for tests in which every message fails at first, on purpose: a
// guard takes that for an outage.
var unguarded = consumer.Guard{Off: true}

// run works until the returned function is called.
func (o *own) run(config consumer.Config, handler consumer.Handler) (stop func() error) {
	o.Helper()
	config.DeadLetter = "*.dead"
	config.Guard = unguarded
	config.Logger = slog.New(slog.DiscardHandler)
	c, err := consumer.New(o.broker, config)
	if err != nil {
		o.Fatal(err)
	}
	c.Handle(o.topic, handler)
	ctx, cancel := context.WithCancel(o.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

var delayed = flag.Int("delayed", 0, "how many messages the tests of mixed delays retry on each broker, all of them at once; 0: as many as a broker is to bear, one broker at a time")

// delays returns how many messages t retries on its broker, most unless told.
// With most the broker needs the machine, with fewer others work beside it.
func delays(t *testing.T, most int) int {
	if *delayed == 0 {
		return most
	}
	t.Parallel()
	return *delayed
}

// Delays of 50 ms to 10 min, compressed 40 times: all come, and none is early. How late
// they are is in the log.
func TestMixedDelaysOnRabbitMQ(t *testing.T) {
	const compression = 40
	const shortest, longest = 50 * time.Millisecond / compression, 10 * time.Minute / compression
	errThrottled := errors.New("come back later")
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		messages := delays(t, 50_000)
		o := newOwn(t, target.URL, longest*5/4)
		random := randv2.New(randv2.NewPCG(1, 0))
		hints := map[string]time.Duration{}
		for i := range messages {
			hints[fmt.Sprint("m", i)] = time.Duration(float64(shortest) * math.Pow(float64(longest)/float64(shortest), random.Float64()))
		}
		var mu sync.Mutex
		var late []time.Duration
		handled := map[string]bool{}
		stop := o.run(consumer.Config{
			Concurrency: 50,
			Retry:       retry.Policy{MaxRetryAfter: longest * 9 / 8, Backoff: retry.Backoff{Base: time.Millisecond, Cap: shortest}},
		}, func(ctx context.Context, m *brokers.Message) error {
			due := consumer.MetaFrom(ctx).DueAt
			if due.IsZero() {
				return classify.Throttled(errThrottled, hints[m.ID])
			}
			mu.Lock()
			defer mu.Unlock()
			late = append(late, time.Since(due))
			handled[m.ID] = true
			return nil
		})
		begun := time.Now()
		o.publish(messages)
		o.eventually("every message is handled", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(handled) >= messages
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
		slices.Sort(late)
		t.Logf("%d retries in %v: lateness median %v, p99 %v, most %v", len(late), time.Since(begun).Round(time.Millisecond),
			late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
		if len(handled) != messages {
			t.Errorf("%d of %d messages are lost", messages-len(handled), messages)
		}
		if len(late) != messages || late[0] < 0 {
			t.Errorf("%d retries, the first %v after it was due; want %d, and none early", len(late), late[0], messages)
		}
	})
}

// A dead-letter queue that is deleted takes no message with it that comes
// later: the originals stay until it is there again.
func TestDeadLetterQueueDeletedInUse(t *testing.T) {
	const messages = 200
	onRabbitMQ(t, func(t *testing.T, target livetest.Target) {
		o := newOwn(t, target.URL, 15*time.Minute)
		dead := o.topic + ".dead"
		var runs atomic.Int64
		poison := func(context.Context, *brokers.Message) error {
			runs.Add(1)
			return classify.Permanent(errors.New("declined"))
		}
		stop := o.run(consumer.Config{DrainTimeout: 2 * time.Second}, poison)
		o.publish(messages / 2)
		o.eventually("the first half is dead", func() bool {
			n, err := o.ready(dead)
			return err == nil && n == messages/2
		})
		ch, err := o.admin.Channel()
		must(t, err)
		if _, err := ch.QueueDelete(dead, false, false, false); err != nil {
			t.Fatal(err)
		}
		begun := runs.Load()
		o.publish(messages / 2)
		o.eventually("a worker tries the second half", func() bool { return runs.Load() > begun })
		select { // a hot loop would show
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
		}
		t.Logf("after 3 s without its dead-letter queue the worker has made %d runs; it says: %v", runs.Load(), stop())
		if n := runs.Load() - begun; n > messages {
			t.Errorf("%d runs of %d messages in 3 s: a hot loop", n, messages/2)
		}
		stop = o.run(consumer.Config{}, poison) // declares the queue again
		defer func() { stop() }()
		o.eventually("the second half is dead", func() bool {
			n, err := o.ready(dead)
			return err == nil && n >= messages/2
		})
	})
}
