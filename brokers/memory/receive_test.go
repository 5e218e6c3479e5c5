package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

func TestReceiveBlocksUntilPublish(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		out := w.later(w.Context(), w.source, 10)
		time.Sleep(24 * time.Hour)
		w.publish("in", "a")
		if r := w.now(out); r.err != nil || len(r.ds) != 1 {
			w.Errorf("Receive = %v, %v; want the message", idsOf(r.ds), r.err)
		}
	})
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

func TestReceiveEndsWithItsContext(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		cause := errors.New("the worker stops")
		ctx, cancel := context.WithCancelCause(w.Context())
		out := w.later(ctx, w.source, 1)
		cancel(cause)
		if r := w.now(out); r.err != cause {
			w.Errorf("Receive = %v, want the cause of its context, %v", r.err, cause)
		}
		w.publish("in", "a")
		if _, err := w.source.Receive(ctx, 1); err != cause {
			w.Errorf("Receive under an ended context = %v, want %v although a message is there", err, cause)
		}
		w.stats("in", memory.Stats{Ready: 1})
		w.expect(w.source, "a")
	})
}

func TestReceiveEndsWithItsSource(t *testing.T) {
	closers := map[string]func(w *world) error{
		"source": func(w *world) error { return w.source.Close(w.Context()) },
		"broker": func(w *world) error { return w.broker.Close(w.Context()) },
		"crash":  func(w *world) error { w.broker.Crash(w.source); return nil },
	}
	for name, end := range closers {
		run(t, memory.Options{}, func(w *world) {
			out := w.later(w.Context(), w.source, 1)
			if err := end(w); err != nil {
				w.Errorf("%s: %v", name, err)
			}
			if r := w.now(out); r.err != brokers.ErrClosed {
				w.Errorf("%s: Receive = %v, want ErrClosed", name, r.err)
			}
		})
	}
}

func TestReceiveRespectsMax(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b", "c", "d", "e")
		for _, want := range []int{2, 2, 1} {
			if got := len(w.receive(w.source, 2)); got != want {
				w.Errorf("Receive(2) returned %d messages, want %d", got, want)
			}
		}
		if _, err := w.source.Receive(w.Context(), 0); err == nil {
			w.Error("Receive(0) returned no error")
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

func TestBusyTopicStarvesNobody(t *testing.T) {
	for _, max := range []int{1, 3, 10, 64} {
		run(t, memory.Options{}, func(w *world) {
			src := w.open("busy", "calm", "idle")
			for range 1000 {
				w.send("busy", brokers.Message{})
			}
			for range 20 {
				w.send("calm", brokers.Message{})
			}
			got := map[string]int{}
			for n := 0; n < 80+max; {
				for _, d := range w.receive(src, max) {
					got[d.Message.Topic]++
					n++
				}
			}
			if got["calm"] < 20 {
				w.Errorf("Receive(%d): of the first %d messages, %v; want all 20 of the calm topic", max, 80+max, got)
			}
		})
	}
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
		var ids []string
		for len(ids) < 3 {
			ids = append(ids, idsOf(w.receive(src, 1))...)
		}
		if want := []string{"c1", "a1", "c2"}; !slices.Equal(ids, want) {
			w.Errorf("received %v, want the topics in turn, %v", ids, want)
		}
	})
}

func TestSourcesCompete(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		var mu sync.Mutex
		seen := map[string]int{}
		share := make([]int, 3)
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		for i := range share {
			src := w.open("in")
			wg.Go(func() {
				for {
					ds, err := src.Receive(ctx, 5)
					if err != nil {
						return
					}
					time.Sleep(time.Second)
					mu.Lock()
					for _, d := range ds {
						seen[d.Message.ID]++
						share[i]++
						src.Settle(w.Context(), []brokers.Settlement{{Delivery: d}})
					}
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		for i := range 300 {
			w.publish("in", fmt.Sprint(i))
		}
		time.Sleep(30 * time.Second)
		cancel()
		wg.Wait()
		if len(seen) != 300 || w.broker.Len("in") != 0 {
			w.Errorf("%d of 300 messages were received, %d are left", len(seen), w.broker.Len("in"))
		}
		for i, n := range share {
			if n < 50 {
				w.Errorf("source %d got %d of 300 messages, shares are %v", i, n, share)
			}
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

func TestOpenFindsWhatIsThere(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("early", "a", "b")
		w.expect(w.open("early"), "a", "b")
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
		{"lease over the cap", brokers.Subscription{Topics: []string{"a"}, Lease: 2 * time.Hour}, brokers.ErrMisconfigured},
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
