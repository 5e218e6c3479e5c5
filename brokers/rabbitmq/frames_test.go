package rabbitmq_test

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// counted keeps what the frames of one method say.
type counted[T any] struct {
	mu     sync.Mutex
	values []T
}

// count makes w keep read of every frame of a method that is sent from now on.
func count[T any](w *world, method uint16, read func(arguments []byte) T) *counted[T] {
	c := &counted[T]{}
	w.tap.hear(func(f frame) {
		if f.is(classBasic, method) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.values = append(c.values, read(f.raw[11:]))
		}
	})
	return c
}

func (c *counted[T]) all() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.values)
}

// reopen opens the source again, with acks that wait for each other without end.
func (w *world) reopen() {
	w.Helper()
	w.closeSource()
	w.broker.HoldAcks(time.Hour)
	w.source = w.open(w.topic)
}

func isMultiple(arguments []byte) bool { return arguments[8]&1 == 1 }

// Each ack that travels alone costs the broker as much as one for a hundred. A
// message that failed does not keep the acks of those after it from travelling
// together: its copy is at the broker until it is due.
func TestFailureBreaksNoMultipleAck(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages = 20 // of 32 or more that the broker may send, so that it need not wait for acks
		w.reopen()
		w.publish(strings.Split(strings.Repeat("x", messages), "")...)
		ds := w.receive(messages)
		acks := count(w, methodAck, isMultiple)
		batch := []brokers.Settlement{retry(ds[5], 1500*time.Millisecond)}
		for i, d := range ds {
			if i != 5 {
				batch = append(batch, brokers.Settlement{Delivery: d})
			}
		}
		for i, err := range w.settle(batch...) {
			if err != nil {
				w.Errorf("settlement %d: %v", i, err)
			}
		}
		copied := w.receive(1) // which is early, and held
		if multiple := acks.all(); len(multiple) == 0 || len(multiple) > 4 || slices.Contains(multiple, false) {
			w.Errorf("%d acks travelled in %d frames, multiple: %v; want 1 to 4, all of them multiple", messages, len(multiple), multiple)
		}
		w.ack(copied...)
	})
}

// Acks that wait for one earlier delivery go on waiting for a while when they use
// up the prefetch: a hole that closes soon, as the copy of a retry does, costs no
// ack for each of them.
func TestAcksWaitForAHoleThatCloses(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages = 32
		w.reopen()
		w.publish(strings.Split(strings.Repeat("x", messages), "")...)
		ds := w.receive(messages)
		acks := count(w, methodAck, isMultiple)
		w.ack(ds[0])
		w.ack(ds[2:]...)
		w.ack(ds[1])
		w.closeSource()
		if n := w.depth(w.topic); n > 0 {
			w.Errorf("%d messages are in the queue after their acks, want 0", n)
		}
		if multiple := acks.all(); len(multiple) > 4 || slices.Contains(multiple, false) {
			w.Errorf("%d acks travelled in %d frames, multiple: %v; want 1 to 4, all of them multiple", messages, len(multiple), multiple)
		}
	})
}

// A hole that stays keeps nobody from going on.
func TestAcksPassAHoleThatStays(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const messages = 32
		w.publish(strings.Split(strings.Repeat("x", messages), "")...)
		ds := w.receive(messages)
		multiple := count(w, methodAck, isMultiple)
		w.ack(ds[0])
		w.await("it is acked", func() bool { return len(multiple.all()) == 1 })
		w.ack(ds[2:]...)
		w.await("all acks but one travel", func() bool { return len(multiple.all()) == messages-1 })
		if slices.Contains(multiple.all()[1:], true) {
			w.Error("a multiple ack travelled, which acks the message before them, too")
		}
		w.ack(ds[1])
	})
}

// Beside a message that kills its worker again and again, what is done with has
// to be gone before the next time: each is charged to what was not acked.
func TestWhatWasLostBeforeIsAckedAtOnce(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.publish("kills", "innocent")
		w.lose(2)
		w.source = w.open(w.topic)
		ds := w.receive(2)
		acks := count(w, methodAck, isMultiple)
		w.ack(ds[1])
		w.ack(ds[0])
		w.await("both acks travel, each by itself", func() bool { return len(acks.all()) == 2 })
	})
}

// exchanges counts the exchanges that messages are published to from now on,
// without the prefix of the world.
func exchanges(w *world) func() map[string]int {
	sent := count(w, methodPublish, func(arguments []byte) string {
		return strings.TrimPrefix(string(arguments[3:3+arguments[2]]), w.prefix+".")
	})
	return func() map[string]int {
		counts := make(map[string]int)
		for _, exchange := range sent.all() {
			counts[exchange]++
		}
		return counts
	}
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// A short delay needs no delay queue as long as there is room to hold the copy. What
// nobody had room for goes to a delay queue, and so does what the next worker has not.
func TestShortDelaysNeedNoQueue(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const delay = 1500 * time.Millisecond
		bodies := strings.Split("abcdefghijklmnopqrst", "")
		w.publish(bodies...)
		ds := w.receive(len(bodies))
		published := exchanges(w)
		var batch []brokers.Settlement
		for _, d := range ds {
			batch = append(batch, retry(d, delay))
		}
		for i, err := range w.settle(batch...) {
			if err != nil {
				w.Fatalf("Retry %d: %v", i, err)
			}
		}
		sent := func(n int) func() bool {
			return func() bool { return sum(published()) == n }
		}
		w.await("all copies are sent", sent(len(bodies)))
		const direct = 7 // at 7 of 50 that are held at most, 1.5 s is too long
		if got, want := published(), map[string]int{"copy.v1": direct, "delay.v2.1000": len(bodies) - direct}; !maps.Equal(got, want) {
			w.Errorf("copies went to %v, want %v", got, want)
		}
		early := w.receive(direct) // before those that are on a delay queue
		for _, d := range early {
			if body := string(d.Message.Body); !slices.Contains(bodies[:direct], body) || d.Meta().Attempt != 1 || time.Until(d.Meta().DueAt) > delay {
				w.Errorf("%s came first, due in %v, with attempt %d; want %v, up to %v, and 1",
					body, time.Until(d.Meta().DueAt), d.Meta().Attempt, bodies[:direct], delay)
			}
		}
		again := brokers.Settlement{Delivery: early[0], Action: brokers.Retry, Meta: early[0].Meta(), Delay: delay / 2} // what is left, or more
		before := published()
		if err := w.settle(again)[0]; err != nil {
			w.Fatalf("Retry of what came early: %v", err)
		}
		w.await("the next copy is sent", sent(len(bodies)+1))
		if after := published(); after["copy.v1"] != before["copy.v1"] {
			w.Errorf("what came early and was sent back came without a delay queue again: %v, then %v", before, after)
		}
		w.ack(early[1:]...)
		w.ack(w.receive(len(bodies) - direct + 1)...)
		w.nothing(100 * time.Millisecond)
	})
}

// What is prefetched no other worker can take, so a worker asks for more only
// when it has used up what it was sent.
func TestPrefetchGrows(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		grants := count(w, methodQos, func(arguments []byte) int { return int(binary.BigEndian.Uint16(arguments[4:])) })
		w.source = w.open(w.topic)
		first := []int{1, 1, 2} // of the queue and of its retries, and when a message has come
		w.publish("a")
		w.ack(w.receive(1)...)
		w.await("the prefetch of the start has grown once", func() bool {
			w.nothing(10 * time.Millisecond)
			return slices.Equal(grants.all(), first)
		})
		const inFlight = 50 // of the subscription
		w.publish(strings.Split(strings.Repeat("b", inFlight+10), "")...)
		w.receive(inFlight) // and keep them
		w.await("all but what it cannot hold is with the worker", func() bool {
			w.nothing(10 * time.Millisecond)
			return w.depth(w.topic) == 10
		})
		w.nothing(100 * time.Millisecond)
		if n := w.depth(w.topic); n != 10 {
			w.Errorf("%d messages are left in the queue, want 10: the prefetch has grown to what can be held", n)
		}
		if got, want := grants.all(), append(first, 4, 8, 16); len(got) > len(want)+2 || !slices.Equal(got[:min(len(got), len(want))], want) {
			w.Errorf("the prefetch was %v, want %v and then what can be held", got, want)
		}
	})
}

// A worker gets as much as it can hold, also if that is more than fast ones prefetch.
func TestPrefetchOfWhoHoldsMuch(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const inFlight = 4500
		w.closeSource()
		sub := w.subscription(w.topic)
		sub.InFlight = inFlight
		var err error
		if w.source, err = w.broker.Open(w.Context(), sub); err != nil {
			w.Fatal(err)
		}
		w.publish(make([]string, inFlight+100)...)
		ds := w.receive(inFlight)
		w.nothing(100 * time.Millisecond)
		if n := w.depth(w.topic); n != 100 {
			w.Errorf("%d messages are left in the queue, want 100: the others are held", n)
		}
		w.settleAll(ds)
	})
}
