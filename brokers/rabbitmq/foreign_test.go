package rabbitmq_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// The headers CC and BCC are wishes to the broker. On what redrive publishes
// they are data, and on what others publish they were heard once.
func TestCarbonCopies(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		other := w.topic + ".dead"
		list := brokers.Header{Value: `[["","` + other + `"]]`, Type: "array"}
		cc, bcc := list, list
		cc.Name, bcc.Name = "CC", "BCC"
		err := w.broker.Publish(w.Context(), w.topic, brokers.Message{ID: "a", Body: []byte("a"), Headers: brokers.Headers{cc, bcc}})
		if err != nil {
			w.Fatal(err)
		}
		d := w.receive(1)[0]
		for hop := range 2 {
			if !has(d.Message.Headers, cc) || !has(d.Message.Headers, bcc) {
				w.Errorf("after %d retries the headers are %q, want CC and BCC", hop, d.Message.Headers)
			}
			d = w.again(d)
		}
		w.ack(d)
		if n := w.depth(other); n != 0 {
			w.Errorf("%d messages where CC and BCC lead to, want none", n)
		}

		w.foreign(w.topic, amqp.Publishing{MessageId: "b", Body: []byte("b"), Headers: amqp.Table{"BCC": []any{other}}})
		w.await("the copy that BCC asked for", func() bool { return w.depth(other) == 1 })
		w.ack(w.again(w.receive(1)[0]))
		if n := w.depth(other); n != 1 {
			w.Errorf("%d messages where BCC leads to, want 1: a retry must not go there again", n)
		}
	})
}

// A worker does not care which exchanges lead to its queue, such as that of the
// delayed-message plugin, which leaves the header x-delay. A retry does not pass
// them again, and what they are bound to besides gets nothing twice.
func TestQueueBehindOtherExchanges(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		other := w.topic + ".dead"
		for _, tt := range []struct {
			kind string
			args amqp.Table // of the binding
		}{
			{"fanout", nil},
			{"topic", nil},
			{"headers", amqp.Table{"x-match": "any", "kind": "order"}},
		} {
			exchange := w.prefix + "." + tt.kind
			w.Cleanup(func() { w.deleteExchanges(exchange) })
			if err := w.do(func(ch *amqp.Channel) error {
				if err := ch.ExchangeDeclare(exchange, tt.kind, true, false, false, false, nil); err != nil {
					return err
				}
				for _, queue := range []string{w.topic, other} {
					if err := ch.QueueBind(queue, "order.*", exchange, false, tt.args); err != nil {
						return err
					}
				}
				return ch.Publish(exchange, "order.placed", true, false, amqp.Publishing{
					Body: []byte(tt.kind), DeliveryMode: amqp.Persistent,
					Headers: amqp.Table{"x-delay": int32(-1500), "kind": "order"},
				})
			}); err != nil {
				w.Fatalf("%s: %v", tt.kind, err)
			}
			d := w.receive(1)[0]
			origin := d.Meta().Origin
			if string(d.Message.Body) != tt.kind || origin.Get("exchange") != exchange || origin.Get("routing-key") != "order.placed" {
				w.Errorf("%s: received %q from %q", tt.kind, d.Message.Body, origin)
			}
			id := d.Message.ID
			d = w.again(d)
			if delay := (brokers.Header{Name: "x-delay", Value: "-1500", Type: "int32"}); !has(d.Message.Headers, delay) || d.Message.ID != id {
				w.Errorf("%s: after a retry the ID is %q (it was %q) and the headers are %q", tt.kind, d.Message.ID, id, d.Message.Headers)
			}
			w.ack(d)
		}
		w.await("each message went to the other queue once", func() bool { return w.depth(other) == 3 })
	})
}

// A message without message-id has the ID that its producer put elsewhere, in each
// delivery, and else one that is said to be made up.
func TestIDsOfOthers(t *testing.T) {
	inWorlds(t, rabbitmq.Options{IDFrom: rabbitmq.CeleryID()}, func(w *world) {
		for _, tt := range []struct {
			message   amqp.Publishing
			id        string
			anonymous bool
		}{
			{amqp.Publishing{MessageId: "own", CorrelationId: "c"}, "own", false},
			{amqp.Publishing{CorrelationId: "c", Headers: amqp.Table{"id": "task-1", "task": "charge"}}, "task-1", false},
			{amqp.Publishing{CorrelationId: "c", Headers: amqp.Table{"id": strings.Repeat("x", 256)}}, "c", false},
			{amqp.Publishing{ReplyTo: "r"}, "", true},
		} {
			tt.message.Body = []byte("a")
			w.foreign(w.topic, tt.message)
			d := w.receive(1)[0]
			if d.Anonymous != tt.anonymous || tt.id != "" && d.Message.ID != tt.id || d.Message.ID == "" {
				w.Errorf("%+v: ID %q, anonymous %v", tt, d.Message.ID, d.Anonymous)
			}
			first := d.Message.ID
			if err := w.settle(release(d))[0]; err != nil {
				w.Fatal(err)
			}
			d = w.receive(1)[0]
			if (d.Message.ID == first) == tt.anonymous {
				w.Errorf("%+v: ID %q in the second delivery after %q", tt, d.Message.ID, first)
			}
			again := w.again(d)
			if again.Message.ID != d.Message.ID || again.Anonymous {
				w.Errorf("%+v: a retry of %q has the ID %q, anonymous %v", tt, d.Message.ID, again.Message.ID, again.Anonymous)
			}
			w.ack(again)
		}
	})
	_, err := rabbitmq.New(rabbitmq.Options{URLs: []string{"amqp://localhost/"}, IDFrom: []rabbitmq.IDPlace{{}, {Property: "priority"}, {Property: "type", Header: "id"}}})
	fault(t, err, "entry 0 of Options.IDFrom", "entry 1", "entry 2")
}
