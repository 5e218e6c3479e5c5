package memory_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var ordered = memory.Options{Ordered: true, Lease: time.Minute}

// keyed publishes messages whose key is the first letter of their id.
func (w *world) keyed(ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.send("in", brokers.Message{ID: id, Key: id[:1]})
	}
}

func TestOrderedDelayedBlocksOnlyLaterOnes(t *testing.T) {
	run(t, ordered, func(w *world) {
		w.keyed("a1", "a2", "a3", "b1")
		ds := w.expect(w.source, "a1", "a2")
		w.retry(w.source, ds[1], time.Hour)
		w.release(w.source, ds[0])
		got := w.receive(w.source, 10)
		if want := []string{"a1", "b1"}; !slices.Equal(idsOf(got), want) {
			w.Fatalf("Receive(10) = %v, want %v: a2 waits for its retry", idsOf(got), want)
		}
		w.ack(w.source, got...)
		start := time.Now()
		w.expect(w.source, "a2")
		if got := time.Since(start); got != time.Hour {
			w.Errorf("a2 came after %v, want its delay, 1h", got)
		}
	})
}
