package memory_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestAckRemoves(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b")
		w.ack(w.source, w.expect(w.source, "a", "b")...)
		w.stats("in", memory.Stats{})
		w.nothing(w.source, time.Hour)
	})
}

func TestRetryDelayIsExact(t *testing.T) {
	for _, delay := range []time.Duration{-time.Second, 0, 1, 3 * time.Second, 40 * time.Minute, 24 * time.Hour} {
		run(t, memory.Options{}, func(w *world) {
			w.publish("in", "a")
			time.Sleep(time.Minute)
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
		w.retry(w.source, w.one(w.source), math.MaxInt64)
		w.nothing(w.source, 24*365*time.Hour)
		w.stats("in", memory.Stats{Delayed: 1})
	})
}

func TestRetriesComeBackByDueTime(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b", "c", "d")
		ds := w.expect(w.source, "a", "b", "c", "d")
		w.retry(w.source, ds[0], 3*time.Second)
		w.retry(w.source, ds[1], time.Second)
		w.retry(w.source, ds[2], 3*time.Second)
		w.retry(w.source, ds[3], 2*time.Second)
		w.stats("in", memory.Stats{Delayed: 4})
		w.expect(w.source, "b", "d", "a", "c")
	})
}

func TestDueRetryQueuesBehindWhatWasReady(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		w.retry(w.source, w.one(w.source), time.Second)
		w.publish("in", "b")
		time.Sleep(2 * time.Second)
		w.publish("in", "c")
		w.expect(w.source, "b", "a", "c")
	})
}

func TestRetryStoresMeta(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		if want := (brokers.Headers{{Name: "topic", Value: "in"}}); !reflect.DeepEqual(d.Meta, brokers.Meta{Origin: want}) {
			w.Errorf("Meta of the first delivery = %+v, want nothing but the origin %v", d.Meta, want)
		}
		now := time.Now()
		meta := brokers.Meta{
			Attempt: 3, Throttles: 2, FirstFailedAt: now.Add(-time.Hour), LastFailedAt: now, DueAt: now.Add(time.Minute),
			Delay: time.Minute, Class: "transient", IdempotencyKey: "key", RedriveCount: 1,
			History: []brokers.Failure{{Attempt: 3, At: now, Class: "transient", Fingerprint: "f", Delay: time.Minute}},
			Origin:  brokers.Headers{{Name: "topic", Value: "elsewhere"}},
		}
		want := meta
		want.History = []brokers.Failure{meta.History[0]}
		w.settle(w.source, brokers.Settlement{Delivery: d, Action: brokers.Retry, Meta: meta}, nil)
		for _, editor := range []string{"the settler", "the first receiver", "the second receiver"} {
			meta.History[0].Class = "edited in place"
			d = w.one(w.source)
			if !reflect.DeepEqual(d.Meta, want) {
				w.Errorf("after %s edited its copy, Meta = %+v, want %+v", editor, d.Meta, want)
			}
			meta = d.Meta
			w.release(w.source, d)
		}
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
			if d.Abandoned != 0 || d.Meta.Attempt != 0 {
				w.Errorf("%s came back with Abandoned %d and Attempt %d, want both 0", d.Message.ID, d.Abandoned, d.Meta.Attempt)
			}
		}
	})
}

func TestSecondSettlement(t *testing.T) {
	actions := []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release}
	for _, first := range actions {
		for _, second := range actions {
			run(t, memory.Options{}, func(w *world) {
				w.publish("in", "a")
				d := w.one(w.source)
				w.settle(w.source, brokers.Settlement{Delivery: d, Action: first, Delay: time.Second}, nil)
				before := w.broker.Stats("in")
				w.settle(w.source, brokers.Settlement{Delivery: d, Action: second}, brokers.ErrSettled)
				w.stats("in", before)
			})
		}
	}
}

func TestSettleAfterExpiryHasNoEffect(t *testing.T) {
	for _, action := range []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release} {
		run(t, memory.Options{Lease: time.Minute}, func(w *world) {
			w.publish("in", "a")
			d := w.one(w.source)
			time.Sleep(time.Minute)
			w.settle(w.source, brokers.Settlement{Delivery: d, Action: action, Delay: time.Hour}, brokers.ErrLeaseLost)
			w.stats("in", memory.Stats{Ready: 1})
			again := w.one(w.source)
			w.settle(w.source, brokers.Settlement{Delivery: d, Action: action}, brokers.ErrLeaseLost)
			w.stats("in", memory.Stats{InFlight: 1})
			w.ack(w.source, again)
		})
	}
}

func TestSettleJustInTime(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		time.Sleep(time.Minute - 1)
		w.ack(w.source, d)
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

func TestSettleBatch(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b", "c")
		ds := w.expect(w.source, "a", "b", "c")
		errs := w.source.Settle(w.Context(), []brokers.Settlement{
			{Delivery: ds[0]}, {Delivery: ds[0]}, {Delivery: ds[1], Action: brokers.Release}, {Delivery: ds[2]},
		})
		if len(errs) != 4 || errs[0] != nil || !errors.Is(errs[1], brokers.ErrSettled) || errs[2] != nil || errs[3] != nil {
			w.Errorf("Settle = %v, want one error per entry, and only the second to be ErrSettled", errs)
		}
		w.stats("in", memory.Stats{Ready: 1})
		if errs := w.source.Settle(w.Context(), nil); errs != nil {
			w.Errorf("Settle of nothing = %v, want nil", errs)
		}
	})
}

func TestSettleUnderEndedContext(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		cause := errors.New("the worker stops")
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(cause)
		check(w.T, "Settle", w.source.Settle(ctx, []brokers.Settlement{{Delivery: d}}), cause)
		check(w.T, "Extend", w.source.Extend(ctx, time.Hour, []*brokers.Delivery{d}), cause)
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
