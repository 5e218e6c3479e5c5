package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// world is a broker behind a tap, with a source for one topic, and helpers
// that fail the test.
type world struct {
	*admin
	tap    *tap
	broker *rabbitmq.Broker
	source brokers.Source
	topic  string
	prefix string
	url    string

	management string // may be empty
}

const patience = time.Minute

// inWorlds runs f on every broker, with exchanges and queues of its own.
func inWorlds(t *testing.T, options rabbitmq.Options, f func(w *world)) {
	each(t, func(t *testing.T, target livetest.Target) {
		url := target.URL
		w := &world{admin: newAdmin(t, url), tap: &tap{}, url: url, management: target.ManagementURL}
		w.topic = w.admin.topic("orders")
		w.prefix = w.topic[len("test.orders."):]
		options := options
		options.URLs, options.Dial, options.Prefix = []string{url}, w.tap.Dial, w.prefix
		w.Cleanup(w.clean)
		w.broker = open(t, options)
		w.source = w.open(w.topic)
		f(w)
	})
}

// clean deletes what the prefix of this world names.
func (w *world) clean() {
	w.delete(w.topic, w.topic+".dead", w.retries(), w.prefix+".unroutable.v1")
	for _, ms := range []int{250, 500, 1000, 2000} {
		name := fmt.Sprintf("%s.delay.v2.%d", w.prefix, ms)
		w.delete(name)
		w.deleteExchanges(name)
	}
	w.deleteExchanges(w.prefix+".dead.v1", w.prefix+".return.v1", w.prefix+".copy.v1", w.prefix+".unroutable.v1")
}

func (w *world) deleteExchanges(names ...string) {
	for _, name := range names {
		w.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })
	}
}

func (w *world) retries() string { return w.prefix + ".retry.v1." + w.topic }

func (w *world) subscription(topics ...string) brokers.Subscription {
	return brokers.Subscription{
		Topics:      topics,
		DeadLetters: map[string]string{topics[0]: topics[0] + ".dead"},
		InFlight:    50,
		MaxDelay:    2 * time.Second,
		MaxAge:      time.Hour,
		MaxAttempts: 10,
	}
}

func (w *world) open(topics ...string) brokers.Source {
	w.Helper()
	src, err := w.broker.Open(w.Context(), w.subscription(topics...))
	if err != nil {
		w.Fatalf("Open(%q): %v", topics, err)
	}
	return src
}

func (w *world) publish(bodies ...string) {
	w.Helper()
	msgs := make([]brokers.Message, len(bodies))
	for i, body := range bodies {
		msgs[i] = brokers.Message{ID: body, Body: []byte(body)}
	}
	if err := w.broker.Publish(w.Context(), w.topic, msgs...); err != nil {
		w.Fatalf("Publish: %v", err)
	}
}

// receive returns n deliveries. It backs off after temporary errors, as the
// pipeline does.
func (w *world) receive(n int) []*brokers.Delivery {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var ds []*brokers.Delivery
	for len(ds) < n {
		got, err := w.source.Receive(ctx, n-len(ds))
		switch {
		case errors.Is(err, brokers.ErrMisconfigured), errors.Is(err, brokers.ErrClosed), ctx.Err() != nil:
			w.Fatalf("Receive after %d of %d messages: %v", len(ds), n, err)
		case err != nil:
			w.Logf("Receive: %v", err)
			<-time.After(50 * time.Millisecond)
		}
		ds = append(ds, got...)
	}
	return ds
}

// nothing checks that nothing is delivered for d.
func (w *world) nothing(d time.Duration) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	for ctx.Err() == nil {
		if ds, _ := w.source.Receive(ctx, 1); len(ds) > 0 {
			w.Fatalf("received %q, want nothing for %v", ds[0].Message.Body, d)
		}
	}
}

func (w *world) settle(batch ...brokers.Settlement) []error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	errs := w.source.Settle(ctx, batch)
	if errs == nil {
		errs = make([]error, len(batch))
	}
	return errs
}

func (w *world) ack(ds ...*brokers.Delivery) {
	w.Helper()
	for _, d := range ds {
		if err := w.settle(brokers.Settlement{Delivery: d})[0]; err != nil {
			w.Fatalf("ack: %v", err)
		}
	}
}

func retry(d *brokers.Delivery, delay time.Duration) brokers.Settlement {
	meta := d.Meta()
	meta.Attempt++
	meta.DueAt = time.Now().Add(delay)
	meta.Delay = delay
	return brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: delay, Meta: meta}
}

func release(d *brokers.Delivery) brokers.Settlement {
	return brokers.Settlement{Delivery: d, Action: brokers.Release}
}

func bodies(ds []*brokers.Delivery) map[string]int {
	counts := make(map[string]int)
	for _, d := range ds {
		counts[string(d.Message.Body)]++
	}
	return counts
}

// closeSource closes the source, which gives back what it holds.
func (w *world) closeSource() {
	w.Helper()
	if err := w.source.Close(w.Context()); err != nil {
		w.Fatalf("Close: %v", err)
	}
}

// await checks cond until it holds.
func (w *world) await(what string, cond func() bool) {
	w.Helper()
	for start := time.Now(); !cond(); {
		if time.Since(start) > patience {
			w.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(20 * time.Millisecond)
	}
}
