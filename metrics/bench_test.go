package metrics_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
)

// BenchmarkHandled observes all events of a message that succeeds at once.
func BenchmarkHandled(b *testing.B) {
	m := must(metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "refunds"}, metrics.Topic{Name: "mails"}))
	message := &brokers.Message{ID: "0192-4711", Topic: "orders"}
	base := consumer.Event{Time: time.Now(), Topic: "orders", Message: message, Attempt: 1}
	var events []consumer.Event
	for _, kind := range []string{
		consumer.EventReceived, consumer.EventStarted, consumer.EventSucceeded, consumer.EventSettled,
	} {
		e := base
		e.Kind = kind
		events = append(events, e)
	}
	events[2].Duration = 12 * time.Millisecond
	var observer consumer.Observer = m
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		for i := range events {
			observer.Observe(ctx, events[i])
		}
	}
}
