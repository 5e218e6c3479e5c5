package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
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
func batches(d *diary, settings consumer.TopicConfig, results func(ctx context.Context, names []string) []error) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
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
	for name, tt := range map[string]struct {
		settings consumer.TopicConfig
		sent     []string // such as "1.5s 5"
		want     []string
	}{
		"by both":              {consumer.TopicConfig{BatchSize: 3, BatchWait: time.Second}, []string{"0s 1", "0s 2", "0s 3", "0s 4", "1.5s 5", "2.2s 6"}, []string{"0s 1+2+3", "1s 4", "2.5s 5+6"}},
		"by the default":       {consumer.TopicConfig{BatchSize: 1000}, []string{"0s 1"}, []string{"100ms 1"}},
		"of one":               {consumer.TopicConfig{BatchSize: 1, BatchWait: time.Hour}, []string{"0s 1"}, []string{"0s 1"}},
		"larger than Prefetch": {consumer.TopicConfig{BatchSize: 100}, slices.Repeat([]string{"0s x"}, 100), []string{"0s x" + strings.Repeat("+x", 99)}},
	} {
		bubble(t, name, func(t *testing.T) {
			broker, d := memory.New(memory.Options{}), newDiary()
			w := start(t, broker, quiet(), batches(d, tt.settings, allDone))
			for _, line := range tt.sent {
				after, body, _ := strings.Cut(line, " ")
				time.Sleep(time.Until(d.born.Add(must(time.ParseDuration(after)))))
				publish(t, broker, "orders", body)
			}
			w.stopAfter(time.Minute)
			d.expect(t, tt.want...)
			empty(t, broker, "orders")
		})
	}
}

func TestBatchSettlesEachMessageByItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "done", "held", "long", "poison", "skip")
		d := newDiary()
		cfg := quiet()
		cfg.Retry = every(time.Second, 5)
		failed := map[string]bool{}
		w := start(t, broker, cfg, batches(d, consumer.TopicConfig{BatchSize: 5, BatchWait: time.Second}, func(_ context.Context, names []string) []error {
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
		w.stopAfter(time.Minute)
		if at := d.times(); len(d.lines) != 4 || !slices.Equal(d.lines[:3], []string{"0s done+held+long+poison+skip", "2s held", "2.5s new"}) ||
			!strings.HasSuffix(d.lines[3], " long") || at[3] < 10*time.Second || at[3] > 13*time.Second {
			t.Errorf("batches %q, want all, then the retry and the new message apart, then the message that asked for 10 s", d.lines)
		}
		calls := broker.did("ack", "retry", "release")
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
		"too many results": {func(context.Context, []string) []error { return make([]error, 3) }, "unclassified", 6, `the batch handler of "orders" returned 3 results for 1 messages`},
		"no results":       {func(context.Context, []string) []error { return []error{} }, "unclassified", 6, "0 results for 1"},
		"panic":            {func(context.Context, []string) []error { panic("boom") }, "panic", 6, "boom"},
		"Goexit":           {func(context.Context, []string) []error { runtime.Goexit(); return nil }, "unclassified", 6, "runtime.Goexit"},
		"timeout": {func(ctx context.Context, names []string) []error {
			<-ctx.Done()
			return slices.Repeat([]error{ctx.Err()}, len(names))
		}, "timeout", 5, "deadline"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := brokerWith("orders", "1", "2")
			d := newDiary()
			cfg := quiet()
			cfg.Retry = every(time.Second, 10)
			w := start(t, broker, cfg, batches(d, consumer.TopicConfig{BatchSize: 2, BatchWait: time.Second}, test.handler))
			w.stopAfter(time.Hour)
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
		broker := tapWith("orders", "1", "2")
		d := newDiary()
		w := start(t, broker, quiet(), batches(d, consumer.TopicConfig{BatchSize: 5, BatchWait: time.Hour}, allDone))
		time.Sleep(time.Minute)
		began := time.Now()
		w.mustShutdown()
		if took := time.Since(began); took != 0 {
			t.Errorf("the drain took %v, want no time", took)
		}
		d.expect(t)
		broker.settled(t, "release 1", "release 2")
		holds(t, broker, "orders", memory.Stats{Ready: 2})
	})
}

func TestDrainInterruptsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "1", "2")
		d := newDiary()
		cfg := quiet()
		cfg.DrainTimeout = time.Second
		w := start(t, broker, cfg, batches(d, consumer.TopicConfig{BatchSize: 2}, func(ctx context.Context, _ []string) []error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), consumer.ErrShutdown) {
				t.Errorf("cause %v, want ErrShutdown", context.Cause(ctx))
			}
			return []error{nil, ctx.Err()}
		}))
		w.stopAfter(0)
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
		cfg := quiet()
		seen := record(&cfg)
		w := start(t, broker, cfg, batches(d, consumer.TopicConfig{BatchSize: 2, BatchWait: time.Second}, func(ctx context.Context, names []string) []error {
			select {
			case <-ctx.Done():
				d.write("lost %v: %v", names, errors.Is(context.Cause(ctx), errChannel))
			case <-time.After(time.Minute):
				d.write("finished %v", names)
			}
			return nil
		}))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		ends["1"](errChannel)
		ends["3"](errChannel)
		w.stopAfter(2 * time.Minute)
		d.expect(t, "0s 1+2", "1s 3", "10s lost [3]: true", "1m0s finished [1 2]")
		broker.settled(t, "ack 2")
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
		w := start(t, broker, cfg, batches(d, consumer.TopicConfig{BatchSize: 2, BatchWait: time.Second}, allDone))
		w.stopAfter(time.Minute)
		d.expect(t, "0s a-1+b-1", "0s a-2+b-2", "1s a-3")
		empty(t, broker, "orders")
	})
}

// Each item has its Meta. The context has none, also in a batch of one message.
func TestBatchMetaTellsEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "new", "old", "last")
		broker.deliver = func(d *brokers.Delivery) {
			if string(d.Message.Body) == "old" {
				d.Carried = &brokers.Meta{Attempt: 4, IdempotencyKey: "key"}
			}
		}
		var got []string
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
				for _, item := range batch {
					key := map[string]string{item.Message.ID: "its ID"}[item.Meta.IdempotencyKey]
					got = append(got, fmt.Sprint(string(item.Message.Body), " of ", len(batch), ": ", item.Meta.Attempt, " ", cmp.Or(key, item.Meta.IdempotencyKey)))
				}
				if m := consumer.MetaFrom(ctx); consumer.MessageFrom(ctx) != nil || !reflect.DeepEqual(m, brokers.Meta{}) {
					t.Errorf("MetaFrom = %+v in a batch of %d, want zero, and no message", m, len(batch))
				}
				return nil
			}, consumer.TopicConfig{BatchSize: 2})
		})
		w.stopAfter(time.Second)
		if want := []string{"new of 2: 1 its ID", "old of 2: 5 key", "last of 1: 1 its ID"}; !slices.Equal(got, want) {
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
		w := start(t, broker, quiet(), batches(d, consumer.TopicConfig{BatchSize: 2, NoRepeat: true, HandlerTimeout: time.Minute},
			func(ctx context.Context, names []string) []error {
				<-ctx.Done()
				return []error{ctx.Err(), ctx.Err()}
			}))
		w.stopAfter(time.Hour)
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
		w := start(t, broker, quiet(), batches(d, consumer.TopicConfig{BatchSize: 2}, func(context.Context, []string) []error {
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
