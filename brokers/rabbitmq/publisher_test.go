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

// The broker closes the channel for a message to an exchange that is not there.
// That one it has not stored. Those beside it are sent again, each by itself.
func TestRetryToMissingExchange(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a", "b", "c")
		ds := w.receive(3)
		w.deleteExchanges(w.prefix + ".delay.v2.2000")
		batch := []brokers.Settlement{retry(ds[0], 300*time.Millisecond), retry(ds[1], 2*time.Second), retry(ds[2], 300*time.Millisecond)}
		errs := w.settle(batch...)
		fault(w.T, errs[1], w.prefix+".delay.v2.2000", "create what is missing")
		if errors.Is(errs[1], brokers.ErrUnknownOutcome) {
			w.Errorf("the outcome of what had no exchange is known: %v", errs[1])
		}
		for _, i := range []int{0, 2} {
			if errs[i] != nil {
				w.Errorf("the retry beside it: error %v, want none", errs[i])
			}
		}
		w.opens(w.options(w.url, false)).Close(w.Context()) // declares it again
		for i := range batch {
			if errs[i] != nil {
				if err := w.settle(batch[i])[0]; err != nil {
					w.Errorf("Retry once more: %v", err)
				}
			}
		}
		seen := make(map[string]bool)
		for len(seen) < 3 {
			for _, d := range w.receive(1) {
				seen[string(d.Message.Body)] = true
				w.ack(d)
			}
		}
	})
}

// So it does for a message that is larger than it takes.
func TestMessageLargerThanTheBrokerTakes(t *testing.T) {
	inWorlds(t, rabbitmq.Options{MessageLimit: 1 << 30}, func(w *world) {
		if !w.drops() {
			w.Skip("RabbitMQ 3 takes 128 MiB")
		}
		err := w.broker.Publish(w.Context(), w.topic, brokers.Message{Body: []byte("before")},
			brokers.Message{Body: make([]byte, 17<<20)}, brokers.Message{Body: []byte("after")})
		failed, _ := errors.AsType[*brokers.PublishError](err)
		if failed == nil || len(failed.Failed) != 1 || !errors.Is(failed.Failed[1], brokers.ErrRefused) {
			w.Fatalf("Publish: %v, want ErrRefused of the second message alone", err)
		}
		seen := make(map[string]bool)
		for len(seen) < 2 {
			for _, d := range w.receive(1) {
				seen[string(d.Message.Body)] = true
				w.ack(d)
			}
		}
	})
}

// What is published survives a restart of the broker, whatever a foreign message
// was like that it is the copy of.
func TestPublishedIsPersistent(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.foreign(w.topic, amqp.Publishing{MessageId: "copied", Body: []byte("a"), DeliveryMode: amqp.Transient})
		if err := w.settle(retry(w.receive(1)[0], 2*time.Second))[0]; err != nil {
			w.Fatal(err)
		}
		dead := w.topic + ".dead"
		if err := w.broker.Publish(w.Context(), dead, brokers.Message{Body: []byte("b")}); err != nil {
			w.Fatal(err)
		}
		for _, queue := range []string{w.prefix + ".delay.v2.2000", dead} {
			if err := w.do(func(ch *amqp.Channel) error {
				d, ok, err := ch.Get(queue, false)
				if err == nil && (!ok || d.DeliveryMode != amqp.Persistent) {
					w.Errorf("in %q: found %t, with delivery mode %d, want a persistent message", queue, ok, d.DeliveryMode)
				}
				return err
			}); err != nil {
				w.Fatal(err)
			}
		}
	})
}

// A user who may not write to an exchange is told so, and its message is not
// stored.
func TestPublishWithoutTheRight(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		b := open(w.T, w.options(w.user("^$", "^$", ".*"), true))
		err := b.Publish(w.Context(), w.topic, brokers.Message{Body: []byte("a")})
		fault(w.T, err, "grant the user the rights", "amq.default")
		if errors.Is(err, brokers.ErrUnknownOutcome) {
			w.Errorf("the outcome is known: %v", err)
		}
	})
}

// What a queue of a limited length has no room for is refused, and stays with
// whoever wants to publish it.
func TestFullQueue(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		w.redeclare(w.topic, with(w.topicArgs(), amqp.Table{"x-max-length": int64(3)}))
		b := open(w.T, w.options(w.url, true))
		stored := 0
		var err error
		w.await("the full queue refuses", func() bool {
			if err = b.Publish(w.Context(), w.topic, brokers.Message{Body: []byte("a")}); err == nil {
				stored++
			}
			return stored >= 3 && err != nil
		})
		if !strings.Contains(err.Error(), "full or unavailable") || errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrUnknownOutcome) {
			w.Errorf("Publish to a full queue: error %v, want a temporary one", err)
		}
		w.await("all that was confirmed is there", func() bool { return w.depth(w.topic) == stored })
	})
}
