package rabbitmq_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// two is a world whose source has another topic, too, with a short grace.
type two struct {
	*world
	other string
}

func inTwo(t *testing.T, options rabbitmq.Options, grace time.Duration, f func(w *two)) {
	inWorlds(t, options, func(w *world) {
		w.closeSource()
		w.broker.SetGrace(grace)
		other := w.admin.topic("mails")
		w.Cleanup(func() { w.delete(w.prefix + ".retry.v1." + other) })
		w.source = w.open(w.topic, other)
		f(&two{w, other})
	})
}

// flows has messages of the other topic published, handed out and acked.
func (w *two) flows(n int) {
	w.Helper()
	w.number(w.other, 0, n)
	for n > 0 {
		ds := w.receive(1)
		for _, d := range ds {
			if d.Message.Topic != w.other {
				w.Fatalf("received %q of %q, want messages of %q only", d.Message.Body, d.Message.Topic, w.other)
			}
		}
		w.settleAll(ds)
		n -= len(ds)
	}
}

// requests returns how many methods of class basic are sent from now on.
func (w *two) requests() func() int {
	sent := &counted[uint16]{}
	w.tap.hear(func(f frame) {
		if f.class == classBasic && f.method != methodPublish {
			sent.mu.Lock()
			defer sent.mu.Unlock()
			sent.values = append(sent.values, f.method)
		}
	})
	return func() int { return len(sent.all()) }
}

// A pause of a moment keeps what is buffered, and costs no requests.
func TestPauseOfAMoment(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, time.Hour, func(w *two) {
		w.publish("a")
		w.await("it waits with the worker", func() bool { return w.depth(w.topic) == 0 })
		requests := w.requests()
		for range 1000 {
			w.source.Pause(w.topic, "no topic of this source")
			w.nothing(0)
			w.source.Pause()
			w.source.Pause(w.topic)
		}
		w.nothing(50 * time.Millisecond)
		if n := requests(); n > 0 {
			w.Errorf("%d requests were sent, want 0", n)
		}
		w.flows(200)
		w.source.Pause()
		w.settleAll(w.receive(1))
	})
}

// What is buffered of a topic that stays paused goes to others, and no more
// requests are sent for it. It goes on when the pause ends.
func TestPauseThatLasts(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 200*time.Millisecond, func(w *two) {
		w.publish("held", "a", "b")
		held := w.receive(1)
		w.source.Pause(w.topic)
		w.flows(200)
		w.await("the buffer is given back", func() bool { return w.depth(w.topic) == 2 })
		w.publish("c")
		w.flows(200)
		if n := w.depth(w.topic); n != 3 {
			w.Errorf("%d messages are in the queue, want 3", n)
		}
		w.await("no more requests are sent", func() bool { // the acks are
			requests := w.requests()
			w.nothing(500 * time.Millisecond)
			return requests() == 0
		})
		paused := w.source
		w.source = w.open(w.topic)
		ds := w.receive(3)
		for _, d := range ds {
			if d.Abandoned > 0 {
				w.Errorf("%q counts as abandoned", d.Message.Body)
			}
		}
		w.settleAll(ds)
		w.closeSource()
		w.source = paused
		w.ack(held...)
		w.source.Pause()
		w.publish("d")
		w.settleAll(w.receive(1))
	})
}

// What is being worked on when a topic is parked stays with a consumer: of one that
// has ended a cluster would give nothing back when its node is lost. The consumer ends
// with the work.
func TestConsumerOfAParkedTopicLingers(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 200*time.Millisecond, func(w *two) {
		// RabbitMQ 3.10 lets none go on, and counts one that was cancelled until what it
		// has is settled.
		lingers := func() (yes bool) {
			if err := w.do(func(ch *amqp.Channel) error {
				q, err := ch.QueueDeclarePassive(w.topic, true, false, false, false, nil)
				yes = q.Consumers > 0
				return err
			}); err != nil {
				w.Fatal(err)
			}
			return yes
		}
		defer func() {
			if w.Failed() {
				w.Logf("at the end %d messages are in the queue and %d in that of retries, a consumer is there: %t", w.depth(w.topic), w.depth(w.retries()), lingers())
			}
		}()
		w.number(w.topic, 0, 16) // a prefetch begins at one, and grows
		w.settleAll(w.receive(16))
		w.publish("a", "b", "c", "d")
		held := w.receive(2)
		w.await("the others wait with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.source.Pause(w.topic)
		w.await("the buffer is given back", func() bool { return w.depth(w.topic) == 2 && lingers() })
		w.ack(held[0])
		if w.drops() {
			w.await("it takes one message for the one that is done", func() bool { return w.depth(w.topic) == 1 })
		}
		w.nothing(0)
		w.ack(held[1])
		w.await("nobody consumes", func() bool { return w.depth(w.topic) == 2 && !lingers() })
		w.source.Pause()
		ds := w.receive(2)
		for _, d := range ds {
			if d.Abandoned > 0 {
				w.Errorf("%q counts as abandoned", d.Message.Body)
			}
		}
		w.settleAll(ds)
	})
}

// Pauses are not held against messages, however many there are: a worker that
// probes a topic takes one message each time.
func TestManyPauses(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 10*time.Millisecond, func(w *two) {
		const messages, pauses = 50, 30
		w.number(w.topic, 0, messages)
		for n := range pauses {
			w.source.Pause()
			d := w.receive(1)[0]
			if d.Abandoned > 0 {
				w.Fatalf("%q counts as abandoned after %d pauses", d.Message.Body, n)
			}
			w.source.Pause(w.topic)
			if n%2 == 0 {
				w.ack(d)
			} else if err := w.settle(release(d))[0]; err != nil {
				w.Fatal(err)
			}
			w.await("all others are back", func() bool {
				w.nothing(0)
				return w.depth(w.topic)+w.depth(w.retries()) == messages-1-n/2
			})
		}
		w.closeSource()
		if n := w.depth(w.topic + ".dead"); n > 0 {
			w.Errorf("%d messages are dead", n)
		}
		for _, queue := range []string{w.topic, w.retries()} {
			for n := w.depth(queue); n > 0; n-- {
				if c := w.countOf(queue); c > bystanders {
					w.Errorf("the broker counts %d deliveries of a message in %s, want %d at most", c, queue, bystanders)
				}
			}
		}
	})
}

// countOf takes a message from a queue and returns the broker's count.
func (w *two) countOf(queue string) (n int64) {
	w.Helper()
	if err := w.do(func(ch *amqp.Channel) error {
		d, _, err := ch.Get(queue, true)
		n, _ = d.Headers["x-delivery-count"].(int64)
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return n
}

// What has been lost often is given back by a copy, so that a pause does not make it
// look as if it killed its workers.
func TestPauseRenewsWhatWasLostOften(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 200*time.Millisecond, func(w *two) {
		w.closeSource()
		w.publish("unlucky")
		for range 2 { // suspicious the next time
			w.lose(1)
		}
		w.source = w.open(w.topic)
		w.await("the message waits with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.source.Pause(w.topic)
		w.await("a copy has taken its place", func() bool { return w.depth(w.topic) == 0 && w.depth(w.retries()) == 1 })
		w.source.Pause()
		d := w.receive(1)[0]
		if d.Message.ID != "unlucky" || d.Meta().Attempt != 0 {
			w.Errorf("received %+v, want the message as it was", d)
		}
		w.ack(d)
	})
}

// A new session does not consume what is paused.
func TestReconnectWhilePaused(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 50*time.Millisecond, func(w *two) {
		w.source.Pause(w.topic)
		w.publish("a", "b")
		w.await("the buffer is given back", func() bool { return w.depth(w.topic) == 2 })
		for range 2 {
			w.tap.cut()
			w.nothingBut(w.other)
			if n := w.depth(w.topic); n != 2 {
				w.Fatalf("%d messages of the paused topic are in the queue, want 2", n)
			}
		}
		w.source.Pause()
		w.settleAll(w.receive(2))
	})
}

// nothingBut has a message of a topic come through, and no other. What a session
// that is lost had of it may come first.
func (w *two) nothingBut(topic string) {
	w.Helper()
	if err := w.do(func(ch *amqp.Channel) error { // the broker's own publisher may be cut off, too
		return ch.Publish("", topic, false, false, amqp.Publishing{Body: []byte("x")})
	}); err != nil {
		w.Fatal(err)
	}
	w.await("a message can be acked", func() bool {
		d := w.receive(1)[0]
		if d.Message.Topic != topic {
			w.Fatalf("received %q of %q", d.Message.Body, d.Message.Topic)
		}
		return w.settle(brokers.Settlement{Delivery: d})[0] == nil
	})
}

// A pause that begins or ends while the session is lost has its effect on the next.
func TestPauseWithoutSession(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 50*time.Millisecond, func(w *two) {
		w.publish("a")
		w.await("it waits with the worker", func() bool { return w.depth(w.topic) == 0 })
		w.tap.cut()
		w.source.Pause(w.topic)
		w.nothingBut(w.other)
		w.await("it is in its queue", func() bool { return w.depth(w.topic) == 1 })
		w.tap.cut()
		w.source.Pause()
		w.settleAll(w.receive(1))
	})
}

// An ordered topic keeps its buffer over a pause, and its order.
func TestPauseKeepsTheOrder(t *testing.T) {
	inTwo(t, rabbitmq.Options{}, 10*time.Millisecond, func(w *two) {
		w.closeSource()
		w.openOrdered(1000)
		const messages = 500
		w.number(w.topic, 0, messages)
		for next := 0; next < messages; {
			ds := w.receive(1)
			w.inOrder(ds, next)
			next += len(ds)
			w.source.Pause(w.topic)
			w.settleAll(ds)
			w.nothing(time.Millisecond)
			w.source.Pause()
			if next == 100 {
				w.source.Pause(w.topic)
				w.nothing(200 * time.Millisecond)
				w.source.Pause()
			}
		}
	})
}
