package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// world is a broker and a source in a bubble, and helpers that fail the test.
type world struct {
	*testing.T
	broker *memory.Broker
	source brokers.Source
}

// run runs f in a bubble, on a broker with one source for the topic "in".
func run(t *testing.T, options memory.Options, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, broker: memory.New(options)}
		w.source = w.open("in")
		f(w)
		if err := w.broker.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// pass lets so much of the time of the bubble pass, and all happen that is due by then.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) open(topics ...string) brokers.Source {
	w.Helper()
	return w.subscribe(brokers.Subscription{Topics: topics, MaxAttempts: 10})
}

func (w *world) subscribe(sub brokers.Subscription) brokers.Source {
	w.Helper()
	src, err := w.broker.Open(w.Context(), sub)
	if err != nil {
		w.Fatalf("Open(%q): %v", sub.Topics, err)
	}
	return src
}

// publish publishes messages with the given ids, as bodies too.
func (w *world) publish(topic string, ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.send(topic, brokers.Message{ID: id, Body: []byte(id)})
	}
}

func (w *world) send(topic string, m brokers.Message) {
	w.Helper()
	if err := w.broker.Publish(w.Context(), topic, m); err != nil {
		w.Fatalf("Publish: %v", err)
	}
}

// receive returns what one Receive on src returns.
func (w *world) receive(src brokers.Source, max int) []*brokers.Delivery {
	w.Helper()
	ds, err := src.Receive(w.Context(), max)
	if err != nil {
		w.Fatalf("Receive: %v", err)
	}
	if len(ds) == 0 || len(ds) > max {
		w.Fatalf("Receive(%d) returned %d deliveries", max, len(ds))
	}
	return ds
}

// expect receives until it has the messages ids, in this order.
func (w *world) expect(src brokers.Source, ids ...string) []*brokers.Delivery {
	w.Helper()
	var ds []*brokers.Delivery
	for len(ds) < len(ids) {
		ds = append(ds, w.receive(src, len(ids)-len(ds))...)
	}
	if got, want := fmt.Sprint(idsOf(ds)), fmt.Sprint(ids); got != want {
		w.Fatalf("received %v, want %v", got, want)
	}
	return ds
}

// one receives one message.
func (w *world) one(src brokers.Source) *brokers.Delivery {
	w.Helper()
	return w.receive(src, 1)[0]
}

// abandoned receives one message, and checks how often it was abandoned.
func (w *world) abandoned(want int) *brokers.Delivery {
	w.Helper()
	d := w.one(w.source)
	if d.Abandoned != want {
		w.Errorf("Abandoned = %d, want %d", d.Abandoned, want)
	}
	return d
}

// nothing checks that nothing is delivered within d.
func (w *world) nothing(src brokers.Source, d time.Duration) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	if ds, err := src.Receive(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
		w.Fatalf("Receive = %v, %v; want nothing for %v", idsOf(ds), err, d)
	}
}

// settle settles one delivery and checks the error.
func (w *world) settle(src brokers.Source, s brokers.Settlement, want error) {
	w.Helper()
	check(w.T, s.Action.String(), src.Settle(w.Context(), []brokers.Settlement{s}), want)
}

// refuse settles one delivery and checks that the error says text.
func (w *world) refuse(src brokers.Source, s brokers.Settlement, text string) {
	w.Helper()
	errs := src.Settle(w.Context(), []brokers.Settlement{s})
	if len(errs) != 1 || errs[0] == nil || !strings.Contains(errs[0].Error(), text) {
		w.Fatalf("Settle = %v, want one error that says %q", errs, text)
	}
}

func (w *world) ack(src brokers.Source, ds ...*brokers.Delivery) {
	w.Helper()
	for _, d := range ds {
		w.settle(src, brokers.Settlement{Delivery: d}, nil)
	}
}

func (w *world) release(src brokers.Source, ds ...*brokers.Delivery) {
	w.Helper()
	for _, d := range ds {
		w.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Release}, nil)
	}
}

func (w *world) retry(src brokers.Source, d *brokers.Delivery, delay time.Duration) {
	w.Helper()
	w.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: delay}, nil)
}

func (w *world) stats(topic string, want memory.Stats) {
	w.Helper()
	if got := w.broker.Stats(topic); got != want {
		w.Fatalf("Stats(%q) = %+v, want %+v", topic, got, want)
	}
}

// check compares the only error of a batch with want.
func check(t *testing.T, what string, errs []error, want error) {
	t.Helper()
	var got error
	if errs != nil {
		if len(errs) != 1 {
			t.Fatalf("%s returned %d errors for one entry", what, len(errs))
		}
		got = errs[0]
	}
	if !errors.Is(got, want) || want == nil && errs != nil {
		t.Fatalf("%s: got error %v, want %v", what, got, want)
	}
}

func idsOf(ds []*brokers.Delivery) []string {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.Message.ID
	}
	return ids
}
