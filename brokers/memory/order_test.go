package memory_test

import (
	"fmt"
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

func TestOrderedHoldsBackTheKey(t *testing.T) {
	run(t, ordered, func(w *world) {
		if !w.source.Capabilities().Ordered {
			w.Error("Capabilities.Ordered is false")
		}
		w.keyed("a1", "a2", "b1", "a3", "b2")
		other := w.open("in")
		a1 := w.one(w.source)
		b1 := w.one(other)
		w.stats("in", memory.Stats{Ready: 3, InFlight: 2})
		w.nothing(other, 59*time.Second)
		w.ack(w.source, a1)
		w.expect(w.source, "a2")
		w.ack(other, b1)
		w.expect(other, "b2")
	})
}

func TestOrderedReceiveMayReturnAKeyInOrder(t *testing.T) {
	run(t, ordered, func(w *world) {
		w.keyed("a1", "b1", "a2", "a3")
		ds := w.receive(w.source, 10)
		if got := fmt.Sprint(idsOf(ds)); got != "[a1 a2 a3 b1]" {
			w.Errorf("Receive(10) = %s, want all, and each key in order", got)
		}
	})
}

func TestOrderedRetryKeepsThePlace(t *testing.T) {
	for _, delay := range []time.Duration{0, 10 * time.Second} {
		run(t, ordered, func(w *world) {
			w.keyed("a1", "a2", "a3")
			ds := w.expect(w.source, "a1", "a2")
			w.retry(w.source, ds[0], delay)
			start := time.Now()
			w.nothing(w.source, 5*time.Second) // a2 is held still
			w.release(w.source, ds[1])
			w.keyed("a4")
			for _, id := range []string{"a1", "a2", "a3", "a4"} {
				d := w.expect(w.source, id)[0]
				if id == "a1" && time.Since(start) < delay {
					w.Errorf("a1 came back after %v, want %v", time.Since(start), delay)
				}
				w.ack(w.source, d)
			}
		})
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

func TestOrderedExpiryKeepsThePlace(t *testing.T) {
	run(t, ordered, func(w *world) {
		w.keyed("a1", "a2", "a3")
		ds := w.expect(w.source, "a1", "a2")
		time.Sleep(30 * time.Second)
		w.extend(w.source, ds[1], time.Minute, nil)
		w.nothing(w.source, 59*time.Second) // a1 is back, but a2 is held
		for _, d := range w.expect(w.source, "a1", "a2", "a3") {
			want := map[string]int{"a1": 1, "a2": 1}[d.Message.ID]
			if d.Abandoned != want {
				w.Errorf("Abandoned of %s = %d, want %d", d.Message.ID, d.Abandoned, want)
			}
		}
	})
}

func TestOrderedCloseKeepsThePlace(t *testing.T) {
	run(t, ordered, func(w *world) {
		w.keyed("a1", "a2", "a3", "b1")
		w.expect(w.source, "a1", "a2")
		w.source.Close(w.Context())
		w.expect(w.open("in"), "a1", "a2", "a3", "b1")
	})
}

func TestOrderedLeavesOthersAlone(t *testing.T) {
	run(t, ordered, func(w *world) {
		w.publish("in", "x", "y")
		w.retry(w.source, w.one(w.source), time.Second)
		w.expect(w.source, "y", "x")
		w.keyed("a1")
		w.send("elsewhere", brokers.Message{ID: "a2", Key: "a"})
		w.one(w.source)
		w.expect(w.open("elsewhere"), "a2")
	})
}

func TestOrderedKeyCanBeReused(t *testing.T) {
	run(t, ordered, func(w *world) {
		for range 3 {
			w.keyed("a1", "a2")
			w.ack(w.source, w.expect(w.source, "a1", "a2")...)
			w.stats("in", memory.Stats{})
		}
	})
}
