package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// foreign publishes as a program does that knows nothing of redrive.
func (w *world) foreign(queue string, p amqp.Publishing) {
	w.Helper()
	if err := w.send(queue, p); err != nil {
		w.Fatalf("publish a foreign message: %v", err)
	}
}

// again retries the only message in flight and returns what comes back.
func (w *world) again(d *brokers.Delivery) *brokers.Delivery {
	w.Helper()
	if err := w.settle(retry(d, 250*time.Millisecond))[0]; err != nil {
		w.Fatalf("Retry: %v", err)
	}
	return w.receive(1)[0]
}

func has(h brokers.Headers, want brokers.Header) bool {
	for _, header := range h {
		if header == want {
			return true
		}
	}
	return false
}

func TestForeignMessage(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		other := w.topic + ".dead"
		w.foreign(w.topic, amqp.Publishing{
			Body: []byte("a"), ContentType: "application/json", Priority: 7, CorrelationId: "c", ReplyTo: "r", Type: "t",
			AppId: "app", Expiration: "60000", UserId: "guest", Timestamp: time.Unix(1790000000, 0), DeliveryMode: amqp.Transient,
			Headers: amqp.Table{
				"CC": []any{other}, "n": int32(5), "redrive-attempt": "9", "redrive-due-at": "9999999999999", "redrive-death-reason": "poison", "redrive-death-error-message": "forged",
				"x-death": []any{amqp.Table{"queue": w.retries(), "reason": "expired", "count": int64(1)}},
			},
		})
		w.await("the copy that CC asked for", func() bool { return w.depth(other) == 1 })
		d := w.receive(1)[0]
		if d.Message.ID == "" || d.Meta().Attempt != 0 || !d.Meta().DueAt.IsZero() || d.Meta().Death != nil {
			w.Errorf("ID %q, attempt %d, due at %v; want an ID and nothing of what was forged", d.Message.ID, d.Meta().Attempt, d.Meta().DueAt)
		}
		if want := time.Unix(1790000000, 0); !d.Message.PublishedAt.Equal(want) {
			w.Errorf("published at %v, want the timestamp %v", d.Message.PublishedAt, want)
		}
		want := []brokers.Header{
			{Name: "content-type", Value: "application/json", Type: "property"}, {Name: "priority", Value: "7", Type: "property"},
			{Name: "correlation-id", Value: "c", Type: "property"}, {Name: "reply-to", Value: "r", Type: "property"},
			{Name: "type", Value: "t", Type: "property"}, {Name: "app-id", Value: "app", Type: "property"},
			{Name: "expiration", Value: "60000", Type: "property"}, {Name: "user-id", Value: "guest", Type: "property"},
			{Name: "timestamp", Value: "1790000000", Type: "property"}, {Name: "n", Value: "5", Type: "int32"},
			{Name: "CC", Value: `[["","` + other + `"]]`, Type: "array"},
		}
		for hop := range 3 {
			for _, h := range want {
				if !has(d.Message.Headers, h) {
					w.Errorf("after %d retries the header %q is missing: %q", hop, h, d.Message.Headers)
				}
			}
			if len(d.Message.Headers) != len(want) || d.Meta().Attempt != hop {
				w.Errorf("after %d retries: attempt %d, headers %q", hop, d.Meta().Attempt, d.Message.Headers)
			}
			id := d.Message.ID
			if d = w.again(d); d.Message.ID != id {
				w.Errorf("after %d retries the ID is %q, it was %q", hop+1, d.Message.ID, id)
			}
		}
		w.ack(d)
		if n := w.depth(other); n != 1 {
			w.Errorf("%d messages where CC leads to, want 1: a retry must not go there again", n)
		}
	})
}

func TestRefusesWhatTheBrokerWould(t *testing.T) {
	long := strings.Repeat("x", 256)
	inWorlds(t, rabbitmq.Options{MessageLimit: 1 << 20}, func(w *world) {
		for _, tt := range []struct {
			name string
			m    brokers.Message
		}{
			{"headers over the frame", brokers.Message{Headers: brokers.Headers{{Name: "h", Value: strings.Repeat("x", 130<<10)}}}},
			{"header name", brokers.Message{Headers: brokers.Headers{{Name: long}}}},
			{"property", brokers.Message{Headers: brokers.Headers{{Name: "content-type", Value: long, Type: "property"}}}},
			{"priority", brokers.Message{Headers: brokers.Headers{{Name: "priority", Value: "256", Type: "property"}}}},
			{"timestamp", brokers.Message{Headers: brokers.Headers{{Name: "timestamp", Value: "now", Type: "property"}}}},
			{"unknown property", brokers.Message{Headers: brokers.Headers{{Name: "cluster-id", Value: "x", Type: "property"}}}},
			{"body", brokers.Message{Body: make([]byte, 1<<20)}},
		} {
			err := w.broker.Publish(w.Context(), w.topic, tt.m)
			if !errors.Is(err, brokers.ErrRefused) {
				w.Errorf("%s: error %v, want ErrRefused", tt.name, err)
			}
		}
		large := brokers.Message{Body: []byte("large"), Headers: brokers.Headers{{Name: "h", Value: strings.Repeat("x", 110<<10)}}}
		if err := w.broker.Publish(w.Context(), w.topic, large, brokers.Message{ID: strings.Repeat("i", 400), Body: []byte("long")}); err != nil {
			w.Fatalf("Publish of headers that just fit: %v", err)
		}
		for _, d := range w.receive(2) {
			again := w.again(d)
			if again.Message.ID != d.Message.ID || len(again.Message.Headers) != len(d.Message.Headers) {
				w.Errorf("message %.9q did not survive its retry", d.Message.ID)
			}
			w.ack(again)
		}
	})
}

// A retry whose headers no longer fit leaves the original as it is.
func TestRefusedRetryIsHeld(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		m := brokers.Message{ID: "a", Body: []byte("a"), Headers: brokers.Headers{{Name: "h", Value: strings.Repeat("x", 122500)}}}
		if err := w.broker.Publish(w.Context(), w.topic, m); err != nil {
			w.Fatal(err)
		}
		s := retry(w.receive(1)[0], 0)
		for range 10 {
			s.Meta.History = append(s.Meta.History, brokers.Failure{Attempt: 1, Class: "transient", Fingerprint: strings.Repeat("f", 60), At: time.Now()})
		}
		if err := w.settle(s)[0]; !errors.Is(err, brokers.ErrRefused) {
			w.Fatalf("Retry with a long history: error %v, want ErrRefused", err)
		}
		w.ack(s.Delivery)
	})
}

// What the broker gives up by itself has no story, but it says why it is there.
func TestDeadLetteredByTheBroker(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.foreign(w.topic, amqp.Publishing{MessageId: "limit", Body: []byte("limit")})
		w.foreign(w.topic, amqp.Publishing{MessageId: "expired", Body: []byte("expired"), Expiration: "1", DeliveryMode: amqp.Persistent})
		dead := w.topic + ".dead"
		w.await("the broker gives both up", func() bool {
			if err := w.do(func(ch *amqp.Channel) error {
				d, ok, err := ch.Get(w.topic, false)
				if ok {
					err = d.Nack(false, true)
				}
				return err
			}); err != nil {
				w.Fatal(err)
			}
			return w.depth(dead) == 2
		})
		src, err := w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{dead}, InFlight: 2})
		if err != nil {
			w.Fatal(err)
		}
		w.source = src
		want := map[string]string{"limit": "delivery_limit", "expired": "expired"}
		for _, d := range w.receive(2) {
			origin := d.Meta().Origin
			if got := origin.Get("death-reason"); got != want[d.Message.ID] {
				w.Errorf("%s: death-reason %q, want %q, in %q", d.Message.ID, got, want[d.Message.ID], origin)
			}
			if origin.Get("death-queue") != w.topic || origin.Get("death-count") != "1" {
				w.Errorf("%s: origin %q, want the queue %q, once", d.Message.ID, origin, w.topic)
			}
			if origin.Get("first-death-queue") != w.topic || origin.Get("first-death-routing-key") != w.topic || origin.Get("first-death-time") == "" {
				w.Errorf("%s: origin %q, want the first death in %q, with its time", d.Message.ID, origin, w.topic)
			}
			for _, h := range d.Message.Headers {
				if strings.HasPrefix(h.Name, "x-") {
					w.Errorf("%s: the header %s of the broker is still there", d.Message.ID, h.Name)
				}
			}
			w.ack(d)
		}
	})
}
