package memory_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var errBadDay = errors.New("a bad day")

// when returns options with a hook that gives fault to some operations.
func when(some func(op memory.Op) bool, fault memory.Fault) memory.Options {
	return memory.Options{Lease: time.Minute, Fault: func(op memory.Op) memory.Fault {
		if some(op) {
			return fault
		}
		return memory.Fault{}
	}}
}

// once returns options with a hook that gives fault to the first operation of
// this kind on each message.
func once(operation memory.Operation, fault memory.Fault) memory.Options {
	return when(func(op memory.Op) bool { return op.Operation == operation && op.Nth == 1 }, fault)
}

func TestFaultSeesEveryOperation(t *testing.T) {
	var got []memory.Op
	options := memory.Options{Fault: func(op memory.Op) memory.Fault {
		got = append(got, op)
		return memory.Fault{}
	}}
	run(t, options, func(w *world) {
		w.publish("in", "a")
		w.retry(w.source, w.one(w.source), 0)
		d := w.one(w.source)
		w.extend(w.source, d, time.Hour, nil)
		w.release(w.source, d)
		w.ack(w.source, w.one(w.source))
		w.settle(w.source, brokers.Settlement{}, brokers.ErrLeaseLost)
	})
	op := func(o memory.Operation, nth int) memory.Op {
		return memory.Op{Operation: o, Topic: "in", ID: "a", Nth: nth}
	}
	settle := func(a brokers.Action) memory.Op {
		return memory.Op{Operation: memory.Settle, Action: a, Topic: "in", ID: "a", Nth: 1}
	}
	want := []memory.Op{
		op(memory.Publish, 1),
		{Operation: memory.Receive, Nth: 1}, op(memory.Deliver, 1), settle(brokers.Retry),
		{Operation: memory.Receive, Nth: 2}, op(memory.Deliver, 2), op(memory.Extend, 1), settle(brokers.Release),
		{Operation: memory.Receive, Nth: 3}, op(memory.Deliver, 3), settle(brokers.Ack),
		{Operation: memory.Settle, Nth: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("the hook saw\n%v, want\n%v", got, want)
	}
}

func TestFaultyPublish(t *testing.T) {
	tests := []struct {
		name   string
		fault  memory.Fault
		stored int
	}{
		{"none", memory.Fault{}, 1},
		{"failed", memory.Fault{Err: errBadDay}, 0},
		{"request lost", memory.Fault{Err: brokers.ErrUnknownOutcome}, 0},
		{"confirmation lost", memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}, 1},
		{"duplicate", memory.Fault{Duplicate: true}, 2},
		{"lost means nothing here", memory.Fault{Lost: true}, 1},
	}
	for _, tt := range tests {
		run(t, once(memory.Publish, tt.fault), func(w *world) {
			err := w.broker.Publish(w.Context(), "in", brokers.Message{ID: "a"})
			if !errors.Is(err, tt.fault.Err) {
				w.Errorf("%s: Publish = %v, want %v", tt.name, err, tt.fault.Err)
			}
			if got := w.broker.Len("in"); got != tt.stored {
				w.Errorf("%s: %d messages are stored, want %d", tt.name, got, tt.stored)
			}
		})
	}
}

func TestFaultyPartOfAPublish(t *testing.T) {
	run(t, when(func(op memory.Op) bool { return op.ID == "b" }, memory.Fault{Err: errBadDay}), func(w *world) {
		err := w.broker.Publish(w.Context(), "in", brokers.Message{ID: "a"}, brokers.Message{ID: "b"}, brokers.Message{ID: "c"})
		failed, ok := errors.AsType[*brokers.PublishError](err)
		if !ok || len(failed.Failed) != 1 || failed.Failed[1] != errBadDay {
			w.Errorf("Publish = %v, want a *PublishError for the second message", err)
		}
		w.expect(w.source, "a", "c")
	})
}

func TestFaultyReceive(t *testing.T) {
	tests := []struct {
		name      string
		operation memory.Operation
		fault     memory.Fault
		abandoned int // when it comes back
		after     time.Duration
	}{
		{"failed before it took anything", memory.Receive, memory.Fault{Err: errBadDay}, 0, 0},
		{"failed, and the message was given back", memory.Deliver, memory.Fault{Err: errBadDay}, 0, 0},
		{"response lost", memory.Deliver, memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}, 1, time.Minute},
	}
	for _, tt := range tests {
		run(t, once(tt.operation, tt.fault), func(w *world) {
			w.publish("in", "a")
			if _, err := w.source.Receive(w.Context(), 1); !errors.Is(err, tt.fault.Err) {
				w.Errorf("%s: Receive = %v, want %v", tt.name, err, tt.fault.Err)
			}
			start := time.Now()
			w.abandoned(tt.abandoned)
			if after := time.Since(start); after != tt.after {
				w.Errorf("%s: it came back after %v, want %v", tt.name, after, tt.after)
			}
		})
	}
}

func TestLeaseLostOnDelivery(t *testing.T) {
	run(t, once(memory.Deliver, memory.Fault{Lost: true}), func(w *world) {
		w.publish("in", "a")
		old := w.one(w.source)
		again := w.abandoned(1)
		w.settle(w.source, brokers.Settlement{Delivery: old}, brokers.ErrLeaseLost)
		w.ack(w.source, again)
	})
}

func TestFaultyPartOfADelivery(t *testing.T) {
	first := func(op memory.Op) bool { return op.Operation == memory.Deliver && op.ID == "b" && op.Nth == 1 }
	run(t, when(first, memory.Fault{Err: errBadDay}), func(w *world) {
		w.publish("in", "a", "b", "c")
		if got := idsOf(w.receive(w.source, 3)); !slices.Equal(got, []string{"a", "c"}) {
			w.Errorf("Receive(3) = %v, want a and c", got)
		}
		w.expect(w.source, "b")
	})
}

func TestFaultyDeliveryKeepsOrder(t *testing.T) {
	for _, fault := range []memory.Fault{{Err: errBadDay}, {Err: errBadDay, Done: true}, {Latency: 40 * time.Second}} {
		options := when(func(op memory.Op) bool { return op.Operation == memory.Deliver && op.ID == "a2" && op.Nth == 1 }, fault)
		options.Ordered = true
		run(t, options, func(w *world) {
			w.keyed("a1", "a2", "a3", "b1")
			var got []string
			for len(got) < 4 {
				ds := w.receive(w.source, 10)
				got = append(got, idsOf(ds)...)
				w.ack(w.source, ds...)
			}
			slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
			if want := []string{"a1", "a2", "a3", "b1"}; !slices.Equal(got, want) {
				w.Errorf("with %+v on a2, the keys arrived as %v, want %v", fault, got, want)
			}
		})
	}
}

func TestDuplicateDelivery(t *testing.T) {
	for _, winner := range []int{0, 1} {
		for _, action := range []brokers.Action{brokers.Ack, brokers.Retry} {
			run(t, once(memory.Deliver, memory.Fault{Duplicate: true}), func(w *world) {
				w.publish("in", "a")
				other := w.open("in")
				sources := []brokers.Source{w.source, other}
				ds := []*brokers.Delivery{w.one(w.source), w.one(other)}
				w.stats("in", memory.Stats{InFlight: 1})
				w.settle(sources[winner], brokers.Settlement{Delivery: ds[winner], Action: action, Delay: time.Hour}, nil)
				w.settle(sources[1-winner], brokers.Settlement{Delivery: ds[1-winner], Action: action}, brokers.ErrLeaseLost)
				w.extend(sources[1-winner], ds[1-winner], time.Hour, brokers.ErrLeaseLost)
				want := memory.Stats{}
				if action == brokers.Retry {
					want.Delayed = 1
				}
				w.stats("in", want)
			})
		}
	}
}

func TestDuplicateOutlivesItsTwin(t *testing.T) {
	run(t, once(memory.Deliver, memory.Fault{Duplicate: true}), func(w *world) {
		w.publish("in", "a")
		first, second := w.one(w.source), w.one(w.source)
		w.extend(w.source, first, time.Hour, nil)
		w.nothing(w.source, time.Minute)
		w.settle(w.source, brokers.Settlement{Delivery: second}, brokers.ErrLeaseLost)
		w.stats("in", memory.Stats{InFlight: 1})
		w.release(w.source, first)
		w.abandoned(1)
	})
}

func TestDuplicateOfWhatIsGone(t *testing.T) {
	run(t, once(memory.Deliver, memory.Fault{Duplicate: true}), func(w *world) {
		w.publish("in", "a")
		w.ack(w.source, w.one(w.source))
		w.nothing(w.source, time.Hour)
		w.publish("in", "b")
		w.expect(w.source, "b")
	})
}

func TestDuplicateWakesReceive(t *testing.T) {
	fault := memory.Fault{Duplicate: true, Latency: time.Second}
	run(t, once(memory.Deliver, fault), func(w *world) {
		w.publish("in", "a")
		first := w.later(w.Context(), w.source, 1)
		second := w.later(w.Context(), w.open("in"), 1)
		w.pass(time.Second)
		for _, out := range []<-chan received{first, second} {
			if r := w.now(out); r.err != nil || len(r.ds) != 1 {
				w.Errorf("Receive = %v, %v; want the message, and its duplicate", idsOf(r.ds), r.err)
			}
		}
	})
}

func TestFaultySettlement(t *testing.T) {
	left := map[brokers.Action]memory.Stats{
		brokers.Retry: {Delayed: 1}, brokers.Release: {Ready: 1},
	}
	tests := []struct {
		name  string
		fault memory.Fault
		first error // of the settlement
		done  bool  // by the first attempt
		again error // of the second attempt
	}{
		{"failed", memory.Fault{Err: errBadDay}, errBadDay, false, nil},
		{"request lost", memory.Fault{Err: brokers.ErrUnknownOutcome}, brokers.ErrUnknownOutcome, false, nil},
		{"stale token", memory.Fault{Err: brokers.ErrLeaseLost}, brokers.ErrLeaseLost, false, nil},
		{"confirmation lost", memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}, brokers.ErrUnknownOutcome, true, brokers.ErrSettled},
	}
	for _, tt := range tests {
		for _, action := range []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release} {
			run(t, once(memory.Settle, tt.fault), func(w *world) {
				w.publish("in", "a")
				d := w.one(w.source)
				s := brokers.Settlement{Delivery: d, Action: action, Delay: time.Hour}
				w.settle(w.source, s, tt.first)
				if tt.done {
					w.stats("in", left[action])
				} else {
					w.stats("in", memory.Stats{InFlight: 1})
				}
				w.settle(w.source, s, tt.again)
				w.stats("in", left[action])
			})
		}
	}
}

func TestLeaseLostBeforeSettlement(t *testing.T) {
	for _, operation := range []memory.Operation{memory.Settle, memory.Extend} {
		run(t, once(operation, memory.Fault{Lost: true}), func(w *world) {
			w.publish("in", "a")
			d := w.one(w.source)
			if operation == memory.Extend {
				w.extend(w.source, d, time.Hour, brokers.ErrLeaseLost)
			}
			w.settle(w.source, brokers.Settlement{Delivery: d}, brokers.ErrLeaseLost)
			w.abandoned(1)
		})
	}
}

func TestRetryThatLeavesACopy(t *testing.T) {
	fault := memory.Fault{Duplicate: true, Err: brokers.ErrUnknownOutcome}
	run(t, once(memory.Settle, fault), func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		s := brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Second, Meta: brokers.Meta{Attempt: 1}}
		w.settle(w.source, s, brokers.ErrUnknownOutcome)
		w.stats("in", memory.Stats{InFlight: 1, Delayed: 1})
		w.settle(w.source, s, nil)
		w.stats("in", memory.Stats{Delayed: 2})
		for _, d := range w.expect(w.source, "a", "a") {
			if d.Meta().Attempt != 1 {
				w.Errorf("Attempt = %d, want 1", d.Meta().Attempt)
			}
		}
	})
}

func TestFaultyExtend(t *testing.T) {
	tests := []struct {
		name  string
		fault memory.Fault
		left  time.Duration
	}{
		{"failed", memory.Fault{Err: errBadDay}, time.Minute},
		{"confirmation lost", memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}, time.Hour},
	}
	for _, tt := range tests {
		run(t, once(memory.Extend, tt.fault), func(w *world) {
			w.publish("in", "a")
			d := w.one(w.source)
			w.extend(w.source, d, time.Hour, tt.fault.Err)
			if got := time.Until(w.broker.Records("in")[0].LeaseUntil); got != tt.left {
				w.Errorf("%s: %v of the lease are left, want %v", tt.name, got, tt.left)
			}
		})
	}
}

func TestLatency(t *testing.T) {
	always := func(memory.Op) bool { return true }
	run(t, when(always, memory.Fault{Latency: time.Second}), func(w *world) {
		start := time.Now()
		w.publish("in", "a")
		d := w.one(w.source) // twice: the call, and the message
		w.extend(w.source, d, time.Hour, nil)
		w.ack(w.source, d)
		if got := time.Since(start); got != 5*time.Second {
			w.Errorf("five operations took %v, want 5s", got)
		}
	})
}

func TestLatencyAndEndedContext(t *testing.T) {
	for _, operation := range []memory.Operation{memory.Publish, memory.Receive, memory.Deliver, memory.Settle, memory.Extend} {
		run(t, once(operation, memory.Fault{Latency: 10 * time.Second}), func(w *world) {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			err := w.broker.Publish(ctx, "in", brokers.Message{ID: "a"})
			if operation == memory.Publish {
				if !errors.Is(err, context.DeadlineExceeded) {
					w.Errorf("Publish = %v, want the cause of its context", err)
				}
				w.stats("in", memory.Stats{})
				return
			}
			ds, err := w.source.Receive(ctx, 1)
			if operation == memory.Receive || operation == memory.Deliver {
				if err != context.DeadlineExceeded {
					w.Errorf("%s: Receive = %v, want the cause of its context", operation, err)
				}
				w.stats("in", memory.Stats{Ready: 1})
				w.abandoned(0)
				return
			}
			if operation == memory.Settle {
				check(w.T, "Settle", w.source.Settle(ctx, []brokers.Settlement{{Delivery: ds[0]}}), context.DeadlineExceeded)
			} else {
				check(w.T, "Extend", w.source.Extend(ctx, time.Hour, ds), context.DeadlineExceeded)
				w.left(ds[0], time.Minute-time.Second)
			}
			w.stats("in", memory.Stats{InFlight: 1})
		})
	}
}

// What took too long on its way to the worker must not be returned with a
// lease that is nearly over.
func TestLatencyOfADelivery(t *testing.T) {
	tests := []struct {
		latency   time.Duration
		abandoned int
		took      time.Duration
	}{
		{30 * time.Second, 0, 30 * time.Second},
		{31 * time.Second, 0, 31 * time.Second}, // given back, received again
		{61 * time.Second, 1, 61 * time.Second}, // expired, received again
	}
	for _, tt := range tests {
		run(t, once(memory.Deliver, memory.Fault{Latency: tt.latency}), func(w *world) {
			w.publish("in", "a")
			start := time.Now()
			d := w.abandoned(tt.abandoned)
			if took := time.Since(start); took != tt.took {
				w.Errorf("latency %v: received after %v, want %v", tt.latency, took, tt.took)
			}
			if left := time.Until(d.LeaseUntil); left < 30*time.Second {
				w.Errorf("latency %v: %v of the lease are left, want at least half of 1m", tt.latency, left)
			}
		})
	}
}

func TestCloseDuringLatency(t *testing.T) {
	run(t, once(memory.Deliver, memory.Fault{Latency: 10 * time.Second}), func(w *world) {
		w.publish("in", "a")
		out := w.later(w.Context(), w.source, 1)
		w.source.Close(w.Context())
		w.stats("in", memory.Stats{Ready: 1})
		w.pass(10 * time.Second)
		if r := w.now(out); r.err != brokers.ErrClosed {
			w.Errorf("Receive = %v, %v; want ErrClosed", idsOf(r.ds), r.err)
		}
	})
}

func TestClosedIsStrongerThanFaults(t *testing.T) {
	always := func(memory.Op) bool { return true }
	run(t, when(always, memory.Fault{Err: errBadDay}), func(w *world) {
		if _, err := w.source.Receive(w.Context(), 1); !errors.Is(err, errBadDay) {
			w.Errorf("Receive = %v, want %v", err, errBadDay)
		}
		w.broker.Close(w.Context())
		if _, err := w.source.Receive(w.Context(), 1); err != brokers.ErrClosed {
			w.Errorf("Receive after Close = %v, want ErrClosed", err)
		}
		if err := w.broker.Publish(w.Context(), "in", brokers.Message{}); !errors.Is(err, brokers.ErrClosed) {
			w.Errorf("Publish after Close = %v, want ErrClosed", err)
		}
	})
}

func TestFaultHookMayUseTheBroker(t *testing.T) {
	var broker *memory.Broker
	options := memory.Options{Fault: func(op memory.Op) memory.Fault {
		if broker != nil {
			broker.Stats(op.Topic)
		}
		return memory.Fault{}
	}}
	run(t, options, func(w *world) {
		broker = w.broker
		w.publish("in", "a")
		w.ack(w.source, w.one(w.source))
	})
}
