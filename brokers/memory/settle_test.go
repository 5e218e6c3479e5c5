package memory_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestAckRemoves(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b")
		w.ack(w.source, w.expect(w.source, "a", "b")...)
		w.stats("in", memory.Stats{})
		w.nothing(w.source, time.Hour)
	})
}

func TestRetryIsExact(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		start := time.Now()
		w.retry(w.source, w.one(w.source), 40*time.Minute)
		w.one(w.source)
		if got := time.Since(start); got != 40*time.Minute {
			w.Errorf("came back after %v, want 40m", got)
		}
	})
}

func TestLeaseExpires(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		start := time.Now()
		old := w.one(w.source)
		again := w.one(w.source)
		if got := time.Since(start); got != time.Minute {
			w.Errorf("redelivered after %v, want the lease, 1m", got)
		}
		if again.Abandoned != 1 {
			w.Errorf("Abandoned = %d, want 1", again.Abandoned)
		}
		w.settle(w.source, brokers.Settlement{Delivery: old}, brokers.ErrLeaseLost)
		w.ack(w.source, again)
		w.settle(w.source, brokers.Settlement{Delivery: again}, brokers.ErrSettled)
	})
}
