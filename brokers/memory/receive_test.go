package memory_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// received is the outcome of a Receive that ran in the background.
type received struct {
	ds  []*brokers.Delivery
	err error
}

// later starts a Receive and returns where its outcome will be.
func (w *world) later(ctx context.Context, src brokers.Source, max int) <-chan received {
	out := make(chan received, 1)
	go func() {
		ds, err := src.Receive(ctx, max)
		out <- received{ds, err}
	}()
	synctest.Wait()
	return out
}

// now returns what has happened to a Receive by now; it fails if nothing has.
func (w *world) now(out <-chan received) received {
	w.Helper()
	synctest.Wait()
	select {
	case r := <-out:
		return r
	default:
		w.Fatal("Receive still blocks")
		return received{}
	}
}

// A Receive that waits for a far time must not miss a nearer one.
func TestReceiveWakesAtTheNearestTime(t *testing.T) {
	run(t, memory.Options{Lease: time.Hour}, func(w *world) {
		other := w.open("in")
		w.publish("in", "a", "b", "c")
		ds := w.expect(other, "a", "b", "c")
		out := w.later(w.Context(), w.source, 1)
		for i, delay := range []time.Duration{time.Minute, time.Second, 30 * time.Second} {
			w.retry(other, ds[i], delay)
		}
		time.Sleep(time.Second)
		if r := w.now(out); r.err != nil || len(r.ds) != 1 || r.ds[0].Message.ID != "b" {
			w.Errorf("after 1s, Receive = %v, %v; want b", idsOf(r.ds), r.err)
		}
		start := time.Now()
		w.expect(w.source, "c", "a")
		if got := time.Since(start); got != 59*time.Second {
			w.Errorf("the others took %v, want 59s", got)
		}
	})
}

func TestReceiveOfNothing(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		if _, err := w.source.Receive(w.Context(), 0); err == nil {
			w.Error("Receive(0) returned no error")
		}
		w.stats("in", memory.Stats{Ready: 1})
	})
}

// What a close does is in the suite.
func TestEndOfASourceThatCrashes(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		w.broker.Crash(w.source)
		w.broker.Crash(w.source)
		w.stats("in", memory.Stats{InFlight: 1})
		w.settle(w.source, brokers.Settlement{Delivery: d}, brokers.ErrClosed)
		if cause := context.Cause(d.Session); !errors.Is(cause, brokers.ErrClosed) {
			w.Errorf("cause of the session = %v, want ErrClosed", cause)
		}
	})
}

func TestReceiveFromTwoGoroutines(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		out := w.later(w.Context(), w.source, 1)
		if _, err := w.source.Receive(w.Context(), 1); err == nil {
			w.Error("a second Receive at the same time returned no error")
		}
		w.publish("in", "a")
		if r := w.now(out); r.err != nil {
			w.Errorf("the first Receive = %v", r.err)
		}
	})
}

func TestNewTopicsJoinTheTurn(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		src := w.open("a", "b", "c")
		for _, topic := range []string{"a", "b", "c", "b", "a"} {
			w.publish(topic, topic)
			w.ack(src, w.expect(src, topic)...)
		}
		w.publish("c", "c1")
		w.publish("a", "a1")
		w.publish("c", "c2")
		for _, id := range []string{"c1", "a1", "c2"} { // the topics in turn
			w.ack(src, w.expect(src, id)...)
		}
	})
}

func TestTopicsShareAReceive(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		src := w.open("a", "b", "c")
		for _, topic := range []string{"a", "b", "c"} {
			w.publish(topic, topic, topic, topic, topic, topic)
		}
		got := idsOf(w.receive(src, 6))
		slices.Sort(got)
		if want := []string{"a", "a", "b", "b", "c", "c"}; !slices.Equal(got, want) {
			w.Errorf("one Receive of six got %v, want as many of each topic", got)
		}
	})
}

// A source that is woken and gives up must not leave its message lying while
// another source waits.
func TestWakeIsPassedOn(t *testing.T) {
	leave := map[string]func(w *world, src brokers.Source, cancel context.CancelFunc){
		"context": func(_ *world, _ brokers.Source, cancel context.CancelFunc) { cancel() },
		"close":   func(w *world, src brokers.Source, _ context.CancelFunc) { src.Close(w.Context()) },
		"crash":   func(w *world, src brokers.Source, _ context.CancelFunc) { w.broker.Crash(src) },
	}
	for name, f := range leave {
		for range 20 {
			run(t, memory.Options{}, func(w *world) {
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				first, second := w.open("in"), w.open("in")
				a, b := w.later(ctx, first, 1), w.later(w.Context(), second, 1)
				w.publish("in", "a")
				f(w, first, cancel)
				for _, d := range w.now(a).ds { // it was quicker
					first.Settle(w.Context(), []brokers.Settlement{{Delivery: d, Action: brokers.Release}})
				}
				if w.broker.Stats("in").InFlight > 0 { // it was quicker, and crashed with it
					time.Sleep(time.Minute)
				}
				if r := w.now(b); r.err != nil || len(r.ds) != 1 {
					w.Errorf("%s: the second source got %v, %v", name, idsOf(r.ds), r.err)
				}
			})
		}
	}
}

func TestWakeReachesAllThatCanWork(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		var outs []<-chan received
		for range 4 {
			outs = append(outs, w.later(w.Context(), w.open("in", "other"), 1))
		}
		batch := make([]brokers.Message, 4)
		if err := w.broker.Publish(w.Context(), "in", batch...); err != nil {
			w.Fatal(err)
		}
		for _, out := range outs {
			if r := w.now(out); r.err != nil || len(r.ds) != 1 {
				w.Errorf("Receive = %v, %v; want one of four messages", idsOf(r.ds), r.err)
			}
		}
	})
}

// TestOpenCreates has a reader find what the subscription of a worker names.
func TestOpenCreates(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.subscribe(brokers.Subscription{Topics: []string{"a"}, DeadLetters: map[string]string{"a": "a.dead"}, Receipts: "receipts", MaxAttempts: 10})
		w.subscribe(brokers.Subscription{Topics: []string{"a", "a.dead", "receipts"}})
	})
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name string
		sub  brokers.Subscription
		want error
	}{
		{"no topic", brokers.Subscription{}, brokers.ErrMisconfigured},
		{"unnamed topic", brokers.Subscription{Topics: []string{"a", ""}}, brokers.ErrMisconfigured},
		{"topic twice", brokers.Subscription{Topics: []string{"a", "b", "a"}}, brokers.ErrMisconfigured},
		{"unnamed dead letters", brokers.Subscription{Topics: []string{"a"}, DeadLetters: map[string]string{"a": ""}}, brokers.ErrMisconfigured},
		{"lease over the cap", brokers.Subscription{Topics: []string{"a"}, MaxAttempts: 10, Lease: 2 * time.Hour}, brokers.ErrMisconfigured},
		{"nothing to read", brokers.Subscription{Topics: []string{"in", "a"}}, brokers.ErrMisconfigured},
	}
	run(t, memory.Options{MaxLease: time.Hour}, func(w *world) {
		for _, tt := range tests {
			if src, err := w.broker.Open(w.Context(), tt.sub); !errors.Is(err, tt.want) || src != nil {
				w.Errorf("%s: Open = %v, %v; want %v", tt.name, src, err, tt.want)
			}
		}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		good := brokers.Subscription{Topics: []string{"a"}, DeadLetters: map[string]string{"a": "a.dead"}}
		if _, err := w.broker.Open(ctx, good); !errors.Is(err, context.Canceled) {
			w.Errorf("Open under an ended context = %v, want its cause", err)
		}
		w.broker.Close(w.Context())
		if _, err := w.broker.Open(w.Context(), good); !errors.Is(err, brokers.ErrClosed) {
			w.Errorf("Open after Close = %v, want ErrClosed", err)
		}
	})
}
