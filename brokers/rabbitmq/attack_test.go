package rabbitmq_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// hostile are headers that the broker takes from anybody and the client library
// from nobody.
func hostile() map[string]amqp.Table {
	deep := any("x")
	for range 33 {
		deep = []any{deep}
	}
	fields := amqp.Table{}
	for i := range 8193 {
		fields[strconv.Itoa(i)] = nil
	}
	return map[string]amqp.Table{
		"nested arrays": {"a": deep},
		"many values":   {"a": make([]any, 8193)},
		"many fields":   fields,
	}
}

// A message that the client library does not read ends no connection, is run by
// nobody, and leaves its queue whole: in its dead letter, or by rejection.
func TestAttackUnreadableHeaders(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const good = 100
		for i := range good / 2 {
			w.publish(strconv.Itoa(i))
		}
		for name, headers := range hostile() {
			w.foreign(w.topic, amqp.Publishing{MessageId: name, Body: []byte(name), Headers: headers})
		}
		for i := good / 2; i < good; i++ {
			w.publish(strconv.Itoa(i))
		}
		session, harmed := "", good
		for n := 0; n < good+len(hostile()); {
			for _, d := range w.receive(1) {
				n++
				switch now := fmt.Sprintf("%p", d.Session); {
				case session == "":
					session = now
				case session != now:
					t.Fatal("the connection was lost")
				}
				if _, bad := hostile()[d.Message.ID]; !bad {
					if d.Unreadable != nil {
						w.Errorf("message %s: %v", d.Message.ID, d.Unreadable)
					}
					w.ack(d)
					harmed--
					continue
				}
				if d.Unreadable == nil || !strings.Contains(d.Unreadable.Error(), "redrive-unreadable") || string(d.Message.Body) != d.Message.ID {
					w.Errorf("message %q with the body %q: %v, want it to say where its headers are", d.Message.ID, d.Message.Body, d.Unreadable)
				}
				letter := brokers.Message{ID: d.Message.ID, Body: d.Message.Body, Headers: d.Message.Headers}
				if err := w.broker.Publish(w.Context(), w.topic+".dead", letter); err != nil {
					w.Errorf("dead letter of %s: %v", d.Message.ID, err)
				}
				if err := w.settle(brokers.Settlement{Delivery: d, Action: brokers.Reject})[0]; err != nil {
					w.Errorf("reject %s: %v", d.Message.ID, err)
				}
			}
		}
		w.Attr("innocents_harmed", strconv.Itoa(harmed))
		w.await("each is there twice", func() bool { return w.depth(w.topic+".dead") == 2*len(hostile()) })
		w.openDead()
		for _, d := range w.receive(2 * len(hostile())) {
			if d.Unreadable == nil {
				w.Errorf("%s in the dead-letter queue is not said to be unreadable", d.Message.ID)
			}
			w.ack(d)
		}
	})
}

// openDead opens the dead-letter queue instead of the other.
func (w *world) openDead() {
	w.Helper()
	w.closeSource()
	dead := w.topic + ".dead"
	var err error
	if w.source, err = w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{dead}, InFlight: 50}); err != nil {
		w.Fatalf("Open the dead-letter queue: %v", err)
	}
}

// Headers that fill a frame leave no room for those of a copy. The message can
// be rejected, and comes from the dead-letter queue as it was, for all that the
// broker adds.
func TestAttackLargestHeaders(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const room = 131072 - 8 - 14 // of a frame, without what comes before properties
		large := amqp.Table{"h": strings.Repeat("x", room-4-2-5-2-1-1)}
		w.foreign(w.topic, amqp.Publishing{MessageId: "m", Body: []byte("large"), Headers: large, DeliveryMode: amqp.Persistent})
		w.publish("good")
		var d *brokers.Delivery
		for _, got := range w.receive(2) {
			if string(got.Message.Body) == "good" {
				w.ack(got)
			} else {
				d = got
			}
		}
		if err := w.settle(retry(d, 0))[0]; !errors.Is(err, brokers.ErrRefused) {
			w.Fatalf("Retry: %v, want ErrRefused", err)
		}
		if err := w.settle(brokers.Settlement{Delivery: d, Action: brokers.Reject})[0]; err != nil {
			w.Fatalf("Reject: %v", err)
		}
		w.openDead()
		d = w.receive(1)[0]
		if string(d.Message.Body) != "large" || d.Message.ID != "m" {
			w.Errorf("the dead-letter queue has %q", d.Message.Body)
		}
		if d.Unreadable == nil && len(d.Message.Headers.Get("h")) != len(large["h"].(string)) {
			w.Errorf("its header has %d bytes, it had %d", len(d.Message.Headers.Get("h")), len(large["h"].(string)))
		}
		if d.Unreadable != nil {
			if err := w.settle(retry(d, 0))[0]; !errors.Is(err, brokers.ErrRefused) {
				w.Errorf("a copy of what has no headers any more: %v, want ErrRefused", err)
			}
		}
		w.ack(d)
	})
}

// Where the broker would drop what is rejected, the adapter refuses, and the
// delivery is still held.
func TestRejectNeedsDeadLetters(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		sub := w.subscription(w.topic)
		sub.DeadLetters = nil
		w.delete(w.topic, w.retries())
		var err error
		if w.source, err = w.broker.Open(w.Context(), sub); err != nil {
			w.Fatal(err)
		}
		w.publish("a")
		d := w.receive(1)[0]
		if err := w.settle(brokers.Settlement{Delivery: d, Action: brokers.Reject})[0]; !errors.Is(err, brokers.ErrRefused) {
			w.Errorf("Reject without a dead-letter queue: %v, want ErrRefused", err)
		}
		w.ack(d)
	})
}

// The count of the broker is the broker's: what a producer wrote in its place
// makes nothing suspicious.
func TestAttackForgedCount(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		for _, forged := range []any{int64(1000), int32(1000), int64(-5)} {
			w.foreign(w.topic, amqp.Publishing{Body: []byte("a"), Headers: amqp.Table{"x-delivery-count": forged}})
			d := w.receive(1)[0]
			if d.Abandoned != 0 {
				w.Errorf("x-delivery-count %v: abandoned %d times, want 0", forged, d.Abandoned)
			}
			if err := w.settle(release(d))[0]; err != nil {
				w.Fatal(err)
			}
			if d = w.receive(1)[0]; d.Abandoned != 0 {
				w.Errorf("x-delivery-count %v, once given back: abandoned %d times, want 0", forged, d.Abandoned)
			}
			w.ack(d)
		}
	})
}

// Whoever writes to the queue of retries may spoil messages of its own: a due
// time beyond all delay queues is clamped, and others come.
func TestAttackForgedRetry(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		far := time.Now().AddDate(9, 0, 0).UTC().Format(time.RFC3339Nano)
		w.foreign(w.retries(), amqp.Publishing{MessageId: "forged", Body: []byte("forged"), Headers: amqp.Table{
			"redrive-attempt": "9999", "redrive-due-at": far,
		}})
		w.publish("good")
		for _, d := range w.receive(2) {
			if d.Message.ID == "forged" && time.Until(d.Meta().DueAt) > 24*time.Hour+time.Minute {
				w.Errorf("due at %v, want at most a day from now", d.Meta().DueAt)
			}
			w.ack(d)
		}
	})
}

// With a secret, what others write to the queue of retries has come no way at all,
// and what a worker has signed by an older key has.
func TestAttackForgedRetryUnderSecret(t *testing.T) {
	old, new := bytes.Repeat([]byte("o"), 32), bytes.Repeat([]byte("n"), 32)
	inWorlds(t, rabbitmq.Options{Secret: [][]byte{old}}, func(w *world) {
		w.publish("good")
		long := brokers.Message{ID: strings.Repeat("i", 300), Key: "k", Body: []byte("long"), Headers: brokers.Headers{{Name: "a"}, {Name: "a"}}}
		if err := w.broker.Publish(w.Context(), w.topic, long); err != nil {
			w.Fatal(err)
		}
		for _, d := range w.receive(2) {
			if err := w.settle(retry(d, 300*time.Millisecond))[0]; err != nil {
				w.Fatal(err)
			}
		}
		w.closeSource()
		w.broker = open(t, rabbitmq.Options{URLs: []string{w.url}, Prefix: w.prefix, Secret: [][]byte{new, old}})
		w.source = w.open(w.topic)
		w.foreign(w.retries(), amqp.Publishing{MessageId: "forged", Body: []byte("forged"), Headers: amqp.Table{"redrive-attempt": "9", "redrive-death-reason": "poison"}})
		for _, d := range w.receive(3) {
			want := 1
			if d.Message.ID == "forged" {
				want = 0
			}
			if d.Meta().Attempt != want || d.Meta().Death != nil {
				w.Errorf("message %.9q has come %d attempts, want %d", d.Message.ID, d.Meta().Attempt, want)
			}
			w.ack(d)
		}
	})
}

// Retries of a queue that is gone, more than a delay queue has on their way at once, hold
// up those of no other queue, and are kept.
func TestDeletedQueueHoldsUpNobody(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		const stranded = 50
		other := w.admin.topic("gone")
		w.Cleanup(func() { w.delete(other, other+".dead") })
		source := w.source
		w.source = w.open(other)
		w.number(other, 0, stranded)
		batch := make([]brokers.Settlement, 0, stranded)
		for _, d := range w.receive(stranded) {
			batch = append(batch, retry(d, 2*time.Second)) // with the others, all on one delay queue
		}
		for _, err := range w.settle(batch...) {
			if err != nil {
				w.Fatal(err)
			}
		}
		w.closeSource()
		w.delete(w.prefix + ".retry.v1." + other)
		w.source = source
		w.publish("good")
		d := w.receive(1)[0]
		if err := w.settle(retry(d, 2*time.Second))[0]; err != nil {
			w.Fatal(err)
		}
		start := time.Now()
		w.ack(w.receive(1)...)
		w.Logf("the retry came after %v", time.Since(start))
		w.await("the stranded ones are kept", func() bool { return w.depth(w.prefix+".unroutable.v1") == stranded })
	})
}

// In an ordered queue the message that ends its workers is found, and no other is
// taken for it, though all are charged. Where one consumer at a time has the queue,
// they keep their order.
func TestAttackKillerInOrder(t *testing.T) {
	const messages, killer, limit = 12, 4, 3
	for name, single := range map[string]bool{"one worker": false, "single active consumer": true} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, rabbitmq.Options{}, func(w *world) {
				w.closeSource()
				w.redeclare(w.topic, with(w.topicArgs(), amqp.Table{"x-single-active-consumer": single}))
				w.number(w.topic, 0, messages)
				w.openOrdered(50)
				var done []string // each once: acks before a death may be lost with it
				handle := func(ds []*brokers.Delivery) {
					for _, d := range ds {
						if body := string(d.Message.Body); !slices.Contains(done, body) {
							done = append(done, body)
						}
					}
					w.ack(ds...)
				}
				for len(done) < messages {
					ds, err := w.source.Receive(w.Context(), 10)
					if err != nil {
						w.Fatal(err)
					}
					kills := func(d *brokers.Delivery) bool { return string(d.Message.Body) == strconv.Itoa(killer) }
					if i := slices.IndexFunc(ds, kills); i >= 0 && ds[i].Abandoned < limit {
						handle(ds[:i])
						w.die(ds[i])
						w.await("the broker has them back", func() bool { return w.depth(w.topic) >= messages-len(done) })
						w.openOrdered(50)
						continue
					}
					for _, d := range ds {
						if d.Abandoned >= limit && !kills(d) {
							w.Fatalf("message %s is taken for the one that kills", d.Message.Body)
						}
					}
					handle(ds)
				}
				for i, body := range done {
					// Of what several consumers of a worker had, a broker returns that of the
					// newest first, when their connection is lost.
					if single && body != strconv.Itoa(i) {
						w.Fatalf("the order was %v", done)
					}
				}
			})
		})
	}
}

// Large messages behind small ones that have the prefetch grow take no more memory
// than the buffer has, and all of them come.
func TestAttackLargestMessages(t *testing.T) {
	livetest.Nightly(t)
	const small, large, size, most = 3000, 60, 8 << 20, 64 << 20
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		sub := w.subscription(w.topic)
		sub.InFlight = 1000
		var err error
		if w.source, err = w.broker.Open(w.Context(), sub); err != nil {
			w.Fatal(err)
		}
		w.number(w.topic, 0, small)
		body := make([]byte, size)
		for range large {
			if err := w.broker.Publish(w.Context(), w.topic, brokers.Message{Body: body}); err != nil {
				w.Fatal(err)
			}
		}
		peak := 0
		for seen := 0; seen < small+large; {
			ds := w.receive(1)
			seen += len(ds)
			if len(ds[0].Message.Body) == size {
				<-time.After(20 * time.Millisecond) // as the handler of such a message would take
			}
			peak = max(peak, rabbitmq.Buffered(w.source))
			if ds[0].Abandoned > 0 {
				w.Errorf("a message counts as abandoned %d times", ds[0].Abandoned)
			}
			w.settleAll(ds)
		}
		if peak > most {
			w.Errorf("of %d messages of %d bytes, %d bytes were buffered at a time, want at most %d", large, size, peak, most)
		}
	})
}

// A topic that is paused with all the large messages that it may buffer takes no
// room from another.
func TestAttackLargeMessagesOfAPausedTopic(t *testing.T) {
	const messages, size = 12, 4 << 20
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		other := w.admin.topic("refunds")
		w.Cleanup(func() { w.delete(other, w.prefix+".retry.v1."+other) })
		sub := w.subscription(w.topic, other)
		sub.Ordered = true // so that it keeps its buffer
		var err error
		if w.source, err = w.broker.Open(w.Context(), sub); err != nil {
			w.Fatal(err)
		}
		fill := func(topic string) {
			for range messages {
				if err := w.broker.Publish(w.Context(), topic, brokers.Message{Body: make([]byte, size)}); err != nil {
					w.Fatal(err)
				}
			}
		}
		w.number(w.topic, 0, 40) // which have more prefetched
		w.settleAll(w.receive(40))
		fill(w.topic)
		w.receive(2) // which are held, so that more than one is prefetched
		w.await("some of them are buffered", func() bool { return rabbitmq.Buffered(w.source) > size })
		w.source.Pause(w.topic)
		fill(other)
		for range messages {
			d := w.receive(1)[0]
			if d.Message.Topic != other {
				w.Fatalf("received a message of %s, which is paused", d.Message.Topic)
			}
			w.ack(d)
		}
	})
}

// What a copy takes is measured as it travels: by the table in its frame.
func TestSizeOfHeaders(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		sizes := make(chan int, 1)
		w.tap.hear(func(f frame) {
			if n, ok := rabbitmq.TableInFrame(f.raw); ok {
				sizes <- n
			}
		})
		if err := w.broker.Publish(w.Context(), w.topic, brokers.Message{ID: "id"}); err != nil {
			w.Fatal(err)
		}
		identity := <-sizes // when it was published
		for name, headers := range map[string]brokers.Headers{
			"text":      {{Name: "a", Value: "text"}, {Name: "a", Value: "twice"}},
			"numbers":   {{Name: "b", Type: "bool", Value: "true"}, {Name: "i8", Type: "int8", Value: "1"}, {Name: "i16", Type: "int16", Value: "1"}, {Name: "i32", Type: "int32", Value: "1"}, {Name: "i64", Type: "int64", Value: "1"}},
			"unsigned":  {{Name: "u8", Type: "uint8", Value: "1"}, {Name: "u16", Type: "uint16", Value: "1"}, {Name: "u32", Type: "uint32", Value: "1"}},
			"fractions": {{Name: "f", Type: "float32", Value: "1"}, {Name: "d", Type: "float64", Value: "1"}, {Name: "D", Type: "decimal", Value: "1e-2"}},
			"others":    {{Name: "t", Type: "timestamp", Value: "1"}, {Name: "x", Type: "bytes", Value: "abc"}, {Name: "v", Type: "void"}},
			"nested":    {{Name: "n", Type: "table", Value: `{"a":["array",[["int64","1"],["","x"]]]}`}},
		} {
			if err := w.broker.Publish(w.Context(), w.topic, brokers.Message{ID: "id", Headers: headers}); err != nil {
				w.Fatalf("%s: %v", name, err)
			}
			if got, want := rabbitmq.SizeOfHeaders(headers), <-sizes-identity; got != want {
				w.Errorf("%s: measured %d bytes, %d travelled", name, got, want)
			}
		}
	})
}

// A password that others could read on its way is not sent, and no error has it.
func TestAttackLoginInPlainText(t *testing.T) {
	for url, refused := range map[string]bool{
		"amqp://u:pa55@mq.shop.example/":     true,
		"amqp://u:pa55@10.0.0.7:5673/v":      true,
		"amqps://u:pa55@mq.shop.example/":    false,
		"amqp://u:pa55@localhost/":           false,
		"amqp://u:pa55@127.0.0.1:5672/":      false,
		"amqp://u:pa55@[::1]:5672/":          false,
		"amqp://u:pa55@localhost.example.x/": true,
	} {
		for _, allow := range []bool{false, true} {
			_, err := rabbitmq.New(rabbitmq.Options{URLs: []string{url}, AllowPlaintext: allow})
			if got := errors.Is(err, brokers.ErrMisconfigured); got != (refused && !allow) || got && !strings.Contains(err.Error(), "AllowPlaintext") {
				t.Errorf("%s, allowed %v: %v", url, allow, err)
			}
			if err != nil && strings.Contains(err.Error(), "pa55") {
				t.Errorf("%q tells the password", err)
			}
		}
	}
}
