package rabbitmq_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// dead is a message as its dead letter has it.
func dead(body string) brokers.Item {
	return brokers.Item{
		Message: &brokers.Message{ID: body, Body: []byte(body), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}},
		Meta: brokers.Meta{
			Attempt: 10, DueAt: time.Now().Add(time.Hour), Class: "transient", IdempotencyKey: "once", Send: "1.1.token",
			History: []brokers.Failure{{Attempt: 10, Class: "transient"}},
		},
	}
}

// tool is a broker that opens nothing, as the tool of an operator.
func (w *world) tool(url string, keys ...[]byte) *rabbitmq.Broker {
	w.Helper()
	options := w.options(url, false)
	options.Secret = keys
	return open(w.T, options)
}

// neighbour is a queue beside queue at an exchange of others.
func (w *world) neighbour(queue string) string {
	w.Helper()
	name := w.prefix + ".neighbour"
	w.redeclare(name, nil)
	w.Cleanup(func() {
		w.delete(name)
		w.deleteExchanges(name)
	})
	if err := w.do(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(name, "fanout", true, false, false, false, nil); err != nil {
			return err
		}
		if err := ch.QueueBind(queue, "", name, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(name, "", name, false, nil)
	}); err != nil {
		w.Fatal(err)
	}
	return name
}

// depths demands so many messages in queues.
func (w *world) depths(want map[string]int) {
	w.Helper()
	for queue, n := range want {
		w.await(queue, func() bool { return w.depth(queue) == n })
	}
}

// Workers get it where they alone write, with the rights of a producer on the other
// side, and it passes no exchange that leads elsewhere.
func TestReturnToWorkers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		neighbour := w.neighbour(w.topic)
		tool := w.tool(w.documented("producer"))
		if err := tool.SendBack(w.Context(), "", w.topic, dead("a"), dead("b")); err != nil {
			w.Fatal(err)
		}
		w.depths(map[string]int{w.retries(): 2, w.topic: 0, w.topic + ".dead": 0, neighbour: 0})
		w.source = w.open(w.topic)
		for _, d := range w.receive(2) {
			m := d.Meta()
			if d.Message.Topic != w.topic || m.Attempt != 0 || !m.DueAt.IsZero() || m.RedriveCount != 1 || m.Send != "1.1.token" || len(m.History) != 1 {
				w.Errorf("%s of %q came with %+v", d.Message.Body, d.Message.Topic, m)
			}
			w.ack(d)
		}
	})
}

// In front of consumers that are not redrive's it goes into their queue, whatever
// that is like, and leaves nothing else behind.
func TestReturnToForeignConsumers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		queue := w.admin.topic("foreign")
		w.redeclare(queue, nil) // a classic one
		neighbour := w.neighbour(queue)
		if err := w.tool(w.url).SendBack(w.Context(), "", queue, dead("a")); err != nil {
			w.Fatal(err)
		}
		w.depths(map[string]int{queue: 1, neighbour: 0})
		if err := w.do(func(ch *amqp.Channel) error {
			d, _, err := ch.Get(queue, true)
			if d.MessageId != "a" || string(d.Body) != "a" || d.DeliveryMode != amqp.Persistent || d.Headers["tenant"] != "acme" ||
				d.Headers["redrive-count"] != "1" || d.Headers["redrive-send"] != "1.1.token" {
				w.Errorf("a consumer gets %q, mode %d, %q with %v", d.MessageId, d.DeliveryMode, d.Body, d.Headers)
			}
			return err
		}); err != nil {
			w.Fatal(err)
		}
		if err := w.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(w.prefix+".retry.v1."+queue, true, false, false, false, nil)
			return err
		}); err == nil {
			w.Error("there is a queue of retries, which nobody asked for")
		}

		long := queue + strings.Repeat("x", 255-len(queue)) // the name of its retries would be too long
		w.redeclare(long, nil)
		w.Cleanup(func() { w.delete(long) })
		if err := w.tool(w.url).SendBack(w.Context(), "", long, dead("a")); err != nil {
			w.Fatal(err)
		}
		w.depths(map[string]int{long: 1})
	})
}

func TestReturnToNobody(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		tool := w.tool(w.url)
		fault(w.T, tool.SendBack(w.Context(), "", w.topic+".gone", dead("a")), w.topic+".gone", "declare the queue")
		fault(w.T, tool.SendBack(w.Context(), "", "", dead("a")), "topic has 0 bytes")
		fault(w.T, w.tool(w.documented("outsider")).SendBack(w.Context(), "", w.topic, dead("a")), "grant the user the rights", "amq.default")
	})
}

// Workers that share a secret believe the story of what a tool with the secret puts
// back. What another one sends back is no less handled, as what it is.
func TestReturnIsSigned(t *testing.T) {
	ours, others := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	inWorlds(t, rabbitmq.Options{Secret: [][]byte{ours}}, func(w *world) {
		for body, key := range map[string][]byte{"signed": ours, "not signed": others} {
			if err := w.tool(w.url, key).SendBack(w.Context(), "", w.topic, dead(body)); err != nil {
				w.Fatal(err)
			}
		}
		var got []string
		for _, d := range w.receive(2) {
			m, stories := d.Meta(), map[string]int{"signed": 1}[string(d.Message.Body)]
			if m.RedriveCount != 1 || m.Send != "1.1.token" || m.IdempotencyKey != "once" || len(m.History) != stories {
				w.Errorf("%s has %+v, want what identifies it, and %d failures", d.Message.Body, m, stories)
			}
			got = append(got, string(d.Message.Body))
			w.ack(d)
		}
		if slices.Sort(got); !slices.Equal(got, []string{"not signed", "signed"}) {
			w.Errorf("received %q", got)
		}
	})
}

// Receipts go where dead letters go, with the same rights.
func TestReceiptsGoThroughTheExchangeOfWorkers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.clean()
		receipts := w.topic + ".dead" // for which the documented worker has rights
		sub := w.subscription(w.topic)
		sub.DeadLetters, sub.Receipts = nil, receipts
		b := w.tool(w.documented("worker"))
		if _, err := b.Open(w.Context(), sub); err != nil {
			w.Fatalf("Open: %v", err)
		}
		if err := b.Publish(w.Context(), receipts, brokers.Message{Body: []byte("handled")}); err != nil {
			w.Fatalf("Publish: %v", err)
		}
		w.depths(map[string]int{receipts: 1})
	})
}
