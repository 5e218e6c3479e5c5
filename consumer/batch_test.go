package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// batches registers a batch handler that notes what it gets, and returns what
// results makes of it.
func batches(d *diary, settings consumer.Topic, results func(ctx context.Context, names []string) []error) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.HandleBatch("orders", func(ctx context.Context, batch []consumer.Item) []error {
			names := make([]string, len(batch))
			for i, item := range batch {
				names[i] = string(item.Message.Body)
			}
			d.write("%s", strings.Join(names, "+"))
			return results(ctx, names)
		}, settings)
	}
}

func allDone(context.Context, []string) []error { return nil }

func TestBatchIsHandedOverWhenFullOrOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := newDiary()
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 3, BatchWait: time.Second}, allDone))
		publish(t, broker, "orders", "1", "2", "3", "4")
		time.Sleep(1500 * time.Millisecond)
		publish(t, broker, "orders", "5")
		time.Sleep(700 * time.Millisecond)
		publish(t, broker, "orders", "6")
		time.Sleep(time.Minute)
		w.mustShutdown()
		d.expect(t, "0s 1+2+3", "1s 4", "2.5s 5+6")
		empty(t, broker, "orders")
	})
}

func TestBatchWaitHasADefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := newDiary()
		publish(t, broker, "orders", "1")
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 1000}, allDone))
		time.Sleep(time.Minute)
		w.mustShutdown()
		d.expect(t, "100ms 1")
	})
}

func TestBatchOfOneNeedsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := newDiary()
		publish(t, broker, "orders", "1")
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 1, BatchWait: time.Hour}, allDone))
		time.Sleep(time.Minute)
		w.mustShutdown()
		d.expect(t, "0s 1")
	})
}

func TestBatchSettlesEachMessageByItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		publish(t, broker.Broker, "orders", "done", "held", "long", "poison", "skip")
		d := newDiary()
		cfg := quiet()
		cfg.Retry = every(time.Second, 5)
		failed := map[string]bool{}
		w := start(t, broker, cfg, batches(d, consumer.Topic{BatchSize: 5, BatchWait: time.Second}, func(_ context.Context, names []string) []error {
			results := make([]error, len(names))
			for i := range names {
				again := failed[names[i]]
				failed[names[i]] = true
				switch {
				case again: // fails once
				case names[i] == "held":
					results[i] = errBusy
				case names[i] == "long":
					results[i] = classify.Throttled(errBusy, 10*time.Second)
				case names[i] == "poison":
					results[i] = classify.Permanent(errBusy)
				case names[i] == "skip":
					results[i] = classify.Skip(errBusy)
				}
			}
			return results
		}))
		time.Sleep(1500 * time.Millisecond)
		publish(t, broker.Broker, "orders", "new")
		time.Sleep(time.Minute)
		w.mustShutdown()
		if at := d.times(); len(d.lines) != 4 || !slices.Equal(d.lines[:3], []string{"0s done+held+long+poison+skip", "2s held", "2.5s new"}) ||
			!strings.HasSuffix(d.lines[3], " long") || at[3] < 10*time.Second || at[3] > 13*time.Second {
			t.Errorf("batches %q, want all, then the retry and the new message apart, then the message that asked for 10 s", d.lines)
		}
		var calls []string
		for _, c := range broker.of("ack", "retry", "release") {
			calls = append(calls, c.what+" "+c.body)
		}
		slices.Sort(calls)
		if want := []string{"ack done", "ack held", "ack long", "ack new", "ack poison", "ack skip", "retry long"}; !slices.Equal(calls, want) {
			t.Errorf("settlements %q, want %q", calls, want)
		}
		if entry := oneDeadLetter(t, broker.Broker, "orders"); string(entry.Message.Body) != "poison" {
			t.Errorf("dead letter of %q, want the poison", entry.Message.Body)
		}
	})
}

// A batch that fails as a whole runs again in halves, which counts against
// nobody; what then fails alone does.
func TestBatchFailsAsAWhole(t *testing.T) {
	for name, test := range map[string]struct {
		handler func(context.Context, []string) []error
		reason  string
		runs    int
		text    string
	}{
		"too many results": {func(context.Context, []string) []error { return make([]error, 3) }, "unclassified", 6, "3 results for 1"},
		"no results":       {func(context.Context, []string) []error { return []error{} }, "unclassified", 6, "0 results for 1"},
		"panic":            {func(context.Context, []string) []error { panic("boom") }, "panic", 6, "boom"},
		"timeout": {func(ctx context.Context, names []string) []error {
			<-ctx.Done()
			return slices.Repeat([]error{ctx.Err()}, len(names))
		}, "timeout", 5, "deadline"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			publish(t, broker, "orders", "1", "2")
			d := newDiary()
			cfg := quiet()
			cfg.Retry = every(time.Second, 10)
			w := start(t, broker, cfg, batches(d, consumer.Topic{BatchSize: 2, BatchWait: time.Second}, test.handler))
			time.Sleep(time.Hour)
			w.mustShutdown()
			dead := deadLetters(t, broker, "orders")
			if len(dead) != 2 || len(d.lines) != 1+2*test.runs {
				t.Fatalf("%d dead letters after the batches %q, want 2 after one of both and %d of each alone", len(dead), d.lines, test.runs)
			}
			for _, entry := range dead {
				if entry.Reason != test.reason || entry.Meta.Attempt != test.runs || !strings.Contains(entry.ErrorText, test.text) {
					t.Errorf("entry %+v, want reason %q after %d attempts and a text with %q", entry, test.reason, test.runs, test.text)
				}
			}
			empty(t, broker, "orders")
		})
	}
}

func TestDrainHandsOverTheBatchThatCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		publish(t, broker.Broker, "orders", "1", "2")
		d := newDiary()
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 5, BatchWait: time.Hour}, allDone))
		time.Sleep(time.Minute)
		began := time.Now()
		w.mustShutdown()
		if took := time.Since(began); took != 0 {
			t.Errorf("the drain took %v, want no time", took)
		}
		d.expect(t)
		if calls := broker.of("ack", "retry", "release"); len(calls) != 2 || calls[0].what != "release" || calls[1].what != "release" {
			t.Errorf("settlements %+v, want two releases", calls)
		}
		if got, want := broker.Stats("orders"), (memory.Stats{Ready: 2}); got != want {
			t.Errorf("after Run: %+v, want %+v", got, want)
		}
	})
}

func TestDrainInterruptsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		publish(t, broker.Broker, "orders", "1", "2")
		d := newDiary()
		cfg := quiet()
		cfg.DrainTimeout = time.Second
		w := start(t, broker, cfg, batches(d, consumer.Topic{BatchSize: 2}, func(ctx context.Context, _ []string) []error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), consumer.ErrShutdown) {
				t.Errorf("cause %v, want ErrShutdown", context.Cause(ctx))
			}
			return []error{nil, ctx.Err()}
		}))
		synctest.Wait()
		w.mustShutdown()
		records := broker.Records("orders")
		if len(records) != 1 || string(records[0].Message.Body) != "2" || records[0].Meta.Attempt != 0 {
			t.Errorf("left %+v, want the second message, uncounted", records)
		}
	})
}

// The context of a batch ends when all of its messages are lost, not before.
func TestBatchLosesItsLeasesOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: time.Hour})
		ends := map[string]context.CancelCauseFunc{}
		broker.deliver = func(d *brokers.Delivery) {
			d.Session, ends[string(d.Message.Body)] = context.WithCancelCause(context.Background())
		}
		publish(t, broker.Broker, "orders", "1", "2", "3")
		d := newDiary()
		var seen recorder
		cfg := quiet()
		cfg.Observers = []consumer.Observer{&seen}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			batches(d, consumer.Topic{BatchSize: 2, BatchWait: time.Second}, func(ctx context.Context, names []string) []error {
				select {
				case <-ctx.Done():
					d.write("lost %v: %v", names, errors.Is(context.Cause(ctx), errChannel))
				case <-time.After(time.Minute):
					d.write("finished %v", names)
				}
				return nil
			})(c)
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		ends["1"](errChannel)
		ends["3"](errChannel)
		time.Sleep(2 * time.Minute)
		w.mustShutdown()
		d.expect(t, "0s 1+2", "1s 3", "10s lost [3]: true", "1m0s finished [1 2]")
		if calls := broker.of("ack", "retry", "release"); len(calls) != 1 || calls[0].what != "ack" || calls[0].body != "2" {
			t.Errorf("settlements %+v, want the ack of the second message alone", calls)
		}
		if n := len(seen.of(consumer.EventLeaseLost)); n != 2 {
			t.Errorf("%d leases lost, want 2", n)
		}
	})
}

func TestBatchByKeyTakesOneOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		publishKeyed(t, broker, "a-1", "a-2", "b-1", "a-3", "b-2")
		d := newDiary()
		cfg := quiet()
		cfg.OrderByKey = true
		w := start(t, broker, cfg, batches(d, consumer.Topic{BatchSize: 2, BatchWait: time.Second}, allDone))
		time.Sleep(time.Minute)
		w.mustShutdown()
		d.expect(t, "0s a-1+b-1", "0s a-2+b-2", "1s a-3")
		empty(t, broker, "orders")
	})
}

func TestBatchMetaTellsEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.deliver = func(d *brokers.Delivery) {
			if string(d.Message.Body) == "old" {
				d.Carried = &brokers.Meta{Attempt: 4, IdempotencyKey: "key"}
			}
		}
		publish(t, broker.Broker, "orders", "new", "old")
		var got []string
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(ctx context.Context, batch []consumer.Item) []error {
				for _, item := range batch {
					got = append(got, fmt.Sprint(string(item.Message.Body), " ", item.Meta.Attempt, " ", item.Meta.IdempotencyKey == "key"))
				}
				if m := consumer.MetaFrom(ctx); !reflect.DeepEqual(m, brokers.Meta{}) {
					t.Errorf("MetaFrom = %+v in a batch of two, want zero", m)
				}
				return nil
			}, consumer.Topic{BatchSize: 2})
		})
		synctest.Wait()
		w.mustShutdown()
		if want := []string{"new 1 false", "old 5 true"}; !slices.Equal(got, want) {
			t.Errorf("metas %q, want %q", got, want)
		}
	})
}

// What may have had its effect is not repeated, in parts either.
func TestBatchWithNoRepeatIsNotSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := newDiary()
		publish(t, broker, "orders", "1", "2")
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 2, NoRepeat: true, HandlerTimeout: time.Minute},
			func(ctx context.Context, names []string) []error {
				<-ctx.Done()
				return []error{ctx.Err(), ctx.Err()}
			}))
		time.Sleep(time.Hour)
		w.mustShutdown()
		d.expect(t, "0s 1+2")
		if n := broker.Len("orders.dead"); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
	})
}

// Errors may have the same text and not mean the same: one asks to wait.
func TestBatchOfDifferentFailuresIsNotSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := newDiary()
		publish(t, broker, "orders", "1", "2")
		busy := classify.Transient(errors.New("busy"))
		runs := 0
		w := start(t, broker, quiet(), batches(d, consumer.Topic{BatchSize: 2}, func(context.Context, []string) []error {
			if runs++; runs == 1 {
				return []error{busy, classify.Throttled(busy, 10*time.Minute)}
			}
			return nil
		}))
		time.Sleep(10 * time.Second)
		if at := d.times(); len(at) != 2 {
			t.Errorf("runs at %v, want one of both and one of the first", at)
		}
		w.mustShutdown()
	})
}
