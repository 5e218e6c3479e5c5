package memory_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestRetryDelayIsExact(t *testing.T) {
	for _, delay := range []time.Duration{-time.Second, 0, 1, 3 * time.Second, 40 * time.Minute, 24 * time.Hour} {
		run(t, memory.Options{}, func(w *world) {
			w.publish("in", "a")
			w.pass(time.Minute)
			start := time.Now()
			w.retry(w.source, w.one(w.source), delay)
			w.one(w.source)
			if got, want := time.Since(start), max(delay, 0); got != want {
				w.Errorf("settled with a delay of %v, it came back after %v", delay, got)
			}
		})
	}
}

func TestRetryForEver(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		w.pass(time.Minute) // from now on the sum would overflow
		w.retry(w.source, w.one(w.source), math.MaxInt64)
		w.nothing(w.source, 24*365*time.Hour)
		w.stats("in", memory.Stats{Delayed: 1})
	})
}

func TestDueRetryQueuesBehindWhatWasReady(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		w.retry(w.source, w.one(w.source), time.Second)
		w.publish("in", "b")
		w.pass(2 * time.Second)
		w.publish("in", "c")
		w.expect(w.source, "b", "a", "c")
	})
}

func TestReleaseGoesToTheFront(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b", "c", "d", "e")
		ds := w.expect(w.source, "a", "b", "c", "d")
		w.settle(w.source, brokers.Settlement{
			Delivery: ds[2], Action: brokers.Release, Delay: time.Hour, Meta: brokers.Meta{Attempt: 7},
		}, nil)
		w.release(w.source, ds[0], ds[1])
		again := w.expect(w.source, "a", "b", "c", "e")
		for _, d := range again {
			if d.Abandoned != 0 || d.Meta().Attempt != 0 {
				w.Errorf("%s came back with Abandoned %d and Attempt %d, want both 0", d.Message.ID, d.Abandoned, d.Meta().Attempt)
			}
		}
	})
}

func TestSettleWhatIsNotHeld(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		other := w.open("in")
		d := w.one(w.source)
		foreign := []brokers.Settlement{
			{}, {Delivery: &brokers.Delivery{}}, {Delivery: &brokers.Delivery{Token: 1}},
		}
		for _, s := range foreign {
			w.settle(w.source, s, brokers.ErrLeaseLost)
		}
		w.settle(other, brokers.Settlement{Delivery: d}, brokers.ErrLeaseLost)
		w.refuse(w.source, brokers.Settlement{Delivery: d, Action: 99}, "action 99")
		w.ack(w.source, d)
	})
}

func TestErrorsNameMessageAndTopic(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "order-7")
		d := w.one(w.source)
		w.ack(w.source, d)
		err := w.source.Settle(w.Context(), []brokers.Settlement{{Delivery: d, Action: brokers.Retry}})[0]
		if want := `memory: retry message "order-7" of "in": ` + brokers.ErrSettled.Error(); err.Error() != want {
			w.Errorf("error = %q, want %q", err, want)
		}
	})
}

// What is rejected is in the dead-letter topic as it was, whatever the limits.
func TestRejectMovesTheMessageAsItIs(t *testing.T) {
	run(t, memory.Options{Limit: 1, MessageLimit: 12, HeaderLimit: 1}, func(w *world) {
		source := w.subscribe(brokers.Subscription{Topics: []string{"orders"}, DeadLetters: map[string]string{"orders": "orders.dead"}})
		w.publish("orders.dead", "a")
		sent := brokers.Message{ID: "b", Key: "k", Body: []byte("twelve bytes"), PublishedAt: time.Now()}
		if err := w.broker.Publish(w.Context(), "orders", sent); err != nil {
			w.Fatal(err)
		}
		d := w.one(source)
		w.settle(source, brokers.Settlement{Delivery: d, Action: brokers.Reject, Delay: time.Hour, Meta: brokers.Meta{Attempt: 7}}, nil)
		w.settle(source, brokers.Settlement{Delivery: d, Action: brokers.Reject}, brokers.ErrSettled)
		w.stats("orders", memory.Stats{})
		sent.Topic = "orders.dead"
		records := w.broker.Records("orders.dead")
		if len(records) != 2 || !reflect.DeepEqual(records[1].Message, sent) || records[1].Meta.Attempt != 0 {
			w.Errorf("the dead-letter topic has %+v, want what was there and the message as it was", records)
		}
	})
}
