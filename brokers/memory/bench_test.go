package memory_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

const batch = 100

// backlog returns a source and a broker with n messages in its topic.
func backlog(b *testing.B, n int) (*memory.Broker, brokers.Source) {
	b.Helper()
	broker := memory.New(memory.Options{Limit: n + batch})
	src, err := broker.Open(b.Context(), brokers.Subscription{Topics: []string{"in"}})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, broker, n)
	return broker, src
}

func fill(b *testing.B, broker *memory.Broker, n int) {
	b.Helper()
	body := []byte(`{"order":1}`)
	for range n {
		if err := broker.Publish(b.Context(), "in", brokers.Message{Body: body}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	b.ReportAllocs()
	broker := memory.New(memory.Options{Limit: 1 << 30})
	msg := brokers.Message{Body: []byte(`{"order":1}`)}
	for b.Loop() {
		if err := broker.Publish(b.Context(), "in", msg); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReceiveSettle measures one message: its share of a Receive of 100
// and of a Settle of 100, on a backlog of a million.
func BenchmarkReceiveSettle(b *testing.B) {
	benchmarkSettle(b, brokers.Ack, 0)
}

// BenchmarkRetry is the same with messages that always fail: a million wait
// for their retry or for a worker.
func BenchmarkRetry(b *testing.B) {
	benchmarkSettle(b, brokers.Retry, time.Millisecond)
}

func benchmarkSettle(b *testing.B, action brokers.Action, delay time.Duration) {
	const n = 1 << 20
	broker, src := backlog(b, n)
	settlements := make([]brokers.Settlement, 0, batch)
	b.ReportAllocs()
	for done := 0; b.Loop(); done++ {
		if done%batch > 0 {
			continue
		}
		if action == brokers.Ack && broker.Len("in") < batch {
			b.StopTimer()
			fill(b, broker, n)
			b.StartTimer()
		}
		ds, err := src.Receive(b.Context(), batch)
		if err != nil {
			b.Fatal(err)
		}
		settlements = settlements[:0]
		for _, d := range ds {
			d.Meta.Attempt++
			settlements = append(settlements, brokers.Settlement{Delivery: d, Action: action, Delay: delay, Meta: d.Meta})
		}
		if errs := src.Settle(b.Context(), settlements); errs != nil {
			b.Fatal(errs)
		}
	}
}
