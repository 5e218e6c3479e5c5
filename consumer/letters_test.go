package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// poisonous fails every message for good and counts the runs.
func poisonous(runs *atomic.Int32) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) {
		c.Handle("orders", func(context.Context, *brokers.Message) error {
			runs.Add(1)
			return classify.Permanent(errors.New("no such article"))
		})
	}
}

func TestPoisonIsDeadLetteredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		var runs atomic.Int32
		w := start(t, broker, quiet(), poisonous(&runs))
		synctest.Wait()
		entry := oneDeadLetter(t, broker, "orders")
		if runs.Load() != 1 || entry.Reason != "poison" || entry.Meta.Attempt != 1 || !entry.Meta.DueAt.IsZero() || !entry.DeadAt.Equal(time.Now()) {
			t.Errorf("%d runs, entry %+v; want one run and death by poison at once", runs.Load(), entry)
		}
		w.mustShutdown()
	})
}

// The group is that of the source: an adapter may have one that Config does not name.
func TestDeadLetterNamesTheGroupOfItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.group = "billing"
		send(t, broker, "orders", brokers.Message{})
		w := start(t, broker, quiet(), orders(func(context.Context, *brokers.Message) error { return classify.Permanent(errors.New("no")) }))
		synctest.Wait()
		if got := oneDeadLetter(t, broker.Broker, "orders").Group; got != "billing" {
			t.Errorf("the dead letter is of the group %q, want that of the source", got)
		}
		w.mustShutdown()
	})
}

func TestDeadLetterTellsTheWholeStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		sent := brokers.Message{ID: "m-1", Key: "customer-7", Body: []byte(`{"no":1}`),
			Headers:     brokers.Headers{{Name: "traceparent", Value: "00-1"}, {Name: "b", Value: "2"}, {Name: "b", Value: "3"}},
			PublishedAt: time.Now().Add(-time.Hour).UTC()}
		send(t, broker, "orders", sent)
		cfg := quiet()
		cfg.Group, cfg.Instance, cfg.Retry = "billing", "worker-1", every(10*time.Second, 3)
		began := time.Now()
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			return classify.Transient(errors.New("charge card: password=hunter2 declined by gateway"))
		}))
		w.stopAfter(time.Minute)
		entry := oneDeadLetter(t, broker, "orders")
		sent.Topic = "orders"
		if !reflect.DeepEqual(entry.Message, sent) {
			t.Errorf("message %+v\nwant    %+v", entry.Message, sent)
		}
		end := began.Add(20 * time.Second)
		if entry.Reason != "exhausted" || entry.Group != "billing" || entry.DeadBy != "worker-1" ||
			!entry.DeadAt.Equal(end) || entry.Fingerprint == "" || entry.Rule == "" || entry.Abandoned != 0 {
			t.Errorf("entry %+v", entry)
		}
		if !strings.Contains(entry.ErrorText, "declined by gateway") || strings.Contains(entry.ErrorText, "hunter2") {
			t.Errorf("error text %q, want the error without its secret", entry.ErrorText)
		}
		m := entry.Meta
		if m.Attempt != 3 || !m.FirstFailedAt.Equal(began) || !m.LastFailedAt.Equal(end) || m.Class != "transient" || len(m.History) != 3 {
			t.Fatalf("Meta = %+v", m)
		}
		for i, f := range m.History {
			if f.Attempt != i+1 || !f.At.Equal(began.Add(time.Duration(i)*10*time.Second)) || f.Class != "transient" || f.Fingerprint != entry.Fingerprint {
				t.Errorf("History[%d] = %+v", i, f)
			}
		}
		if got := m.Origin.Get("topic"); got != "orders" {
			t.Errorf("Origin = %v, want that of the first delivery", m.Origin)
		}
	})
}

// A message that was returned, failed again and died again says by which sending.
func TestDeadLetterOfAReturnedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		if err := broker.SendBack(t.Context(), "", "orders", brokers.Item{
			Message: &brokers.Message{ID: "m-1", Key: "customer-7", Body: []byte("one")},
			Meta: brokers.Meta{
				Attempt: 3, Class: "transient", IdempotencyKey: "once", RedriveCount: 1, Send: "12.3.f00d",
				History: []brokers.Failure{{Attempt: 3, Class: "transient"}},
			},
		}); err != nil {
			t.Fatal(err)
		}
		cfg := quiet()
		cfg.Retry = every(10*time.Second, 2)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			return classify.Transient(errors.New("the bank is closed"))
		}))
		w.stopAfter(time.Minute)
		entry := oneDeadLetter(t, broker, "orders")
		m := entry.Meta
		if entry.Message.ID != "m-1" || entry.Message.Key != "customer-7" || m.Send != "12.3.f00d" || m.RedriveCount != 2 || m.IdempotencyKey != "once" {
			t.Errorf("it died again as %q with %+v, want what identifies it, and the token", entry.Message.ID, m)
		}
		if m.Attempt != 2 || len(m.History) != 3 || m.History[0].Attempt != 3 || m.History[1].Attempt != 1 {
			t.Errorf("attempt %d, history %+v; want two runs of its own after that of the life before", m.Attempt, m.History)
		}
	})
}

func TestOriginalIsAckedOnlyAfterTheConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		broker = &tap{Broker: broker.Broker, born: time.Now()}
		slow := slowPublish{broker, 3 * time.Second}
		var runs atomic.Int32
		w := start(t, slow, quiet(), poisonous(&runs))
		time.Sleep(2 * time.Second)
		if got := broker.Stats("orders"); got.InFlight != 1 || len(broker.of("ack")) != 0 {
			t.Errorf("before the confirm: %+v and acks %+v, want the original in flight", got, broker.of("ack"))
		}
		w.stopAfter(time.Minute)
		calls := broker.of("publish", "ack", "retry", "release")
		if len(calls) != 2 || calls[0].what != "publish" || calls[0].topic != "orders.dead" || calls[1].what != "ack" || calls[1].at != 3*time.Second {
			t.Errorf("calls %+v, want the publish and then, 3s after the start, the ack", calls)
		}
	})
}

// slowPublish confirms late.
type slowPublish struct {
	*tap
	delay time.Duration
}

func (b slowPublish) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	err := b.tap.Publish(ctx, topic, msgs...)
	time.Sleep(b.delay)
	return err
}

func TestDeadLetterTopicDownForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		down := 10 * time.Minute
		broker := newTap(memory.Options{Lease: 10 * time.Second, Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Publish && op.Topic == "orders.dead" && time.Since(began) < down {
				return memory.Fault{Err: errors.New("connection refused")}
			}
			return memory.Fault{}
		}})
		publish(t, broker, "orders", "one", "two", "three")
		var runs, healthy atomic.Int32
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			poisonous(&runs)(c)
			c.Handle("refunds", func(context.Context, *brokers.Message) error {
				healthy.Add(1)
				return nil
			})
		})
		for range 600 {
			publish(t, broker, "refunds", "refund")
			time.Sleep(time.Second)
			if broker.Len("refunds") > 0 {
				t.Fatalf("after %v a healthy message waits for the dead letters of another topic", time.Since(began))
			}
		}
		if broker.Len("orders") != 3 || broker.Len("orders.dead") != 0 {
			t.Errorf("while the topic is down: %d messages and %d dead letters", broker.Len("orders"), broker.Len("orders.dead"))
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := broker.Len("orders.dead"); n != 3 {
			t.Errorf("%d dead letters after the recovery, want 3", n)
		}
		for _, entry := range deadLetters(t, broker, "orders") {
			if entry.Abandoned != 0 {
				t.Errorf("the lease ran out %d times", entry.Abandoned)
			}
		}
		w.mustShutdown()
		if runs.Load() != 3 || healthy.Load() != 600 {
			t.Errorf("%d runs of 3 poisonous messages and %d of 600 healthy ones", runs.Load(), healthy.Load())
		}
		checkSpacing(t, broker)
		empty(t, broker.Broker, "orders")
	})
}

// checkSpacing fails if the dead-letter topic was not called ever more rarely,
// after the first calls, which come before anybody knows that it is down.
func checkSpacing(t *testing.T, broker *tap) {
	t.Helper()
	var times []time.Duration
	for _, c := range broker.of("publish") {
		if c.topic == "orders.dead" && !slices.Contains(times, c.at) {
			times = append(times, c.at)
		}
	}
	if len(times) < 7 || len(times) > 60 {
		t.Errorf("%d tries in 10 min, want them ever more rarely", len(times))
	}
	for i := 1; i < len(times); i++ {
		if gap := times[i] - times[i-1]; gap < time.Second || gap > 5*time.Minute {
			t.Errorf("tries at %v and %v, want 1 s to 5 min between them", times[i-1], times[i])
		}
	}
}

func TestUnknownOutcomeOfADeadLetterLosesNothing(t *testing.T) {
	for _, done := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fault := memory.Fault{Err: brokers.ErrUnknownOutcome, Done: done}
			broker := memory.New(memory.Options{Fault: func(op memory.Op) memory.Fault {
				if op.Topic == "orders.dead" {
					return on(memory.Publish, 2, fault)(op)
				}
				return memory.Fault{}
			}})
			publish(t, broker, "orders", "one")
			var runs atomic.Int32
			w := start(t, broker, quiet(), poisonous(&runs))
			synctest.Wait()
			if n := broker.Len("orders"); n != 1 {
				t.Errorf("done %v: the original is gone before a confirm", done)
			}
			w.stopAfter(time.Minute)
			dead := deadLetters(t, broker, "orders")
			want := 1
			if done {
				want = 3
			}
			if len(dead) != want || runs.Load() != 1 {
				t.Fatalf("done %v: %d dead letters and %d runs, want %d and 1", done, len(dead), runs.Load(), want)
			}
			for _, entry := range dead {
				if entry.Message.ID != dead[0].Message.ID {
					t.Errorf("done %v: the copies have different ids", done)
				}
			}
			empty(t, broker, "orders")
		})
	}
}

func TestPartlyPublishedDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Fault: func(op memory.Op) memory.Fault {
			switch {
			case op.Topic != "orders.dead" || op.Operation != memory.Publish:
			case op.ID == "m-0":
				return memory.Fault{Latency: time.Second} // lets the others gather
			case op.ID == "m-2" && op.Nth <= 2:
				return memory.Fault{Err: errors.New("partition without a leader")}
			}
			return memory.Fault{}
		}})
		for i := range 4 {
			send(t, broker.Broker, "orders", brokers.Message{ID: fmt.Sprintf("m-%d", i)})
		}
		var runs atomic.Int32
		cfg := quiet()
		cfg.Concurrency, cfg.Prefetch = 1, 3
		w := start(t, broker, cfg, poisonous(&runs))
		w.stopAfter(time.Minute)
		acked := map[string]time.Duration{}
		for _, c := range broker.of("ack") {
			acked[c.id] = c.at
		}
		if acked["m-1"] != time.Second || acked["m-3"] != time.Second || acked["m-2"] < 3*time.Second {
			t.Errorf("acked at %v; want m-1 and m-3 at once after the first second, m-2 after its two retries", acked)
		}
		published := map[string]int{}
		for _, m := range broker.Messages("orders.dead") {
			published[m.ID]++
		}
		if want := map[string]int{"m-0": 1, "m-1": 1, "m-2": 1, "m-3": 1}; !reflect.DeepEqual(published, want) {
			t.Errorf("dead letters %v, want each message once", published)
		}
		empty(t, broker.Broker, "orders")
	})
}

func TestDeadLetterRefusedForItsSizeIsShrunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{MessageLimit: 3000})
		publish(t, broker, "orders", strings.Repeat("x", 1500))
		cfg := quiet()
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			return classify.Permanent(errors.New(strings.Repeat("long text ", 200)))
		}))
		w.stopAfter(time.Minute)
		entry := oneDeadLetter(t, broker, "orders")
		if len(entry.Message.Body) != 1500 || entry.Reason != "poison" || !slices.Contains(entry.Truncated, "error-message") {
			t.Errorf("body of %d bytes, reason %q, truncated %q", len(entry.Message.Body), entry.Reason, entry.Truncated)
		}
		failed := seen.of(consumer.EventError)
		if len(failed) != 1 || !errors.Is(failed[0].Err, brokers.ErrRefused) || failed[0].Operation != "dead-letter" {
			t.Errorf("errors %+v, want the one refusal of the dead letter", failed)
		}
	})
}

func TestDeadLetterFitsTheRoomForHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{HeaderLimit: 1500})
		publish(t, broker.Broker, "orders", "one")
		w := start(t, broker, quiet(), orders(func(context.Context, *brokers.Message) error {
			return classify.Permanent(errors.New(strings.Repeat("long text ", 200)))
		}))
		w.stopAfter(time.Minute)
		entry := oneDeadLetter(t, broker.Broker, "orders")
		if calls := broker.of("publish"); len(calls) != 1 || !slices.Contains(entry.Truncated, "error-message") {
			t.Errorf("%d publishes, truncated %q; want the first to fit", len(calls), entry.Truncated)
		}
	})
}

func TestDiscardAcksAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		cfg := quiet()
		cfg.DeadLetter = dlq.Discard
		seen := record(&cfg)
		var runs atomic.Int32
		w := start(t, broker, cfg, poisonous(&runs))
		synctest.Wait()
		empty(t, broker.Broker, "orders")
		w.mustShutdown()
		dropped := seen.of(discarded)
		if len(dropped) != 1 || dropped[0].DeadLetter == nil || dropped[0].DeadLetter.Reason != "poison" {
			t.Errorf("discarded events %+v, want one with its dead letter", dropped)
		}
		if calls := broker.of("publish"); len(calls) != 0 {
			t.Errorf("something was published: %+v", calls)
		}
	})
}

func TestRetryRefusedByTheBrokerIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := fmt.Errorf("message of 300 KiB: %w", brokers.ErrRefused)
		broker := memory.New(with(memory.Fault{Err: refusal}, func(op memory.Op) bool { return op.Operation == memory.Settle && op.Action == brokers.Retry }))
		publish(t, broker, "orders", "one")
		cfg := quiet()
		cfg.Retry = every(time.Minute, 5)
		var runs atomic.Int32
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			runs.Add(1)
			return errBusy
		}))
		synctest.Wait()
		entry := oneDeadLetter(t, broker, "orders")
		if runs.Load() != 1 || entry.Reason != "refused" || entry.Meta.Attempt != 1 || !strings.Contains(entry.ErrorText, "300 KiB") {
			t.Errorf("%d runs, entry %+v; want the broker's refusal as the reason", runs.Load(), entry)
		}
		w.mustShutdown()
	})
}

// A dead letter that was not published when its lease was lost is somebody
// else's to write.
func TestDeadLetterOfALostLeaseIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		broker := newTap(memory.Options{Lease: 10 * time.Second, Fault: func(op memory.Op) memory.Fault {
			switch {
			case op.Operation == memory.Publish && op.Topic == "orders.dead" && time.Since(began) < time.Minute:
				return memory.Fault{Err: errors.New("connection refused")}
			case op.Operation == memory.Extend && op.Nth == 3:
				return memory.Fault{Lost: true}
			}
			return memory.Fault{}
		}})
		publish(t, broker.Broker, "orders", "one")
		cfg := quiet()
		seen := record(&cfg)
		var runs atomic.Int32
		w := start(t, broker, cfg, poisonous(&runs))
		w.stopAfter(5 * time.Minute)
		if lost := len(seen.of(consumer.EventLeaseLost)); lost != 1 || runs.Load() != 2 {
			t.Errorf("%d leases lost, %d runs, want 1 and a run per delivery", lost, runs.Load())
		}
		oneDeadLetter(t, broker.Broker, "orders")
	})
}

// So much poison would stop the topic before it fills the room.
func TestDeadLettersThatWaitLeaveRoomForOtherTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		broker := newTap(with(memory.Fault{Err: errors.New("connection refused")}, func(op memory.Op) bool {
			return op.Operation == memory.Publish && op.Topic == "orders.dead" && time.Since(began) < 10*time.Minute
		}))
		for range 100 {
			publish(t, broker.Broker, "orders", "poison")
		}
		var runs, healthy atomic.Int32
		cfg := quiet()
		cfg.MaxHeld, cfg.Guard.Off = 150, true
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			poisonous(&runs)(c)
			c.Handle("refunds", func(context.Context, *brokers.Message) error { healthy.Add(1); return nil })
		})
		time.Sleep(time.Minute)
		publish(t, broker.Broker, "refunds", "refund")
		time.Sleep(time.Minute)
		if healthy.Load() != 1 {
			t.Errorf("%d of 1 healthy message handled while %d dead letters of another topic wait", healthy.Load(), runs.Load())
		}
		for range 200 { // now more than may wait: intake must stop, not memory grow
			publish(t, broker.Broker, "orders", "poison")
		}
		time.Sleep(time.Minute)
		if held := broker.Stats("orders").InFlight; held > 150+20 {
			t.Errorf("%d dead letters wait in the process, want at most MaxHeld and the window", held)
		}
		time.Sleep(15 * time.Minute) // a try comes after up to five, and what found no room for it after up to three
		if n := broker.Len("orders.dead"); n != 300 || broker.Len("orders") != 0 {
			t.Errorf("%d dead letters and %d messages left, want 300 and 0", n, broker.Len("orders"))
		}
		w.mustShutdown()
	})
}

// What a handler of dead letters fails for good is never discarded: it stays until
// there is a topic for it.
func TestDeadLettersAreNotDiscarded(t *testing.T) {
	for name, fail := range map[string]error{
		"poison": classify.Permanent(errBusy), "transient": classify.Transient(errBusy),
	} {
		bubble(t, name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			w := start(t, broker, quiet(), orders(func(context.Context, *brokers.Message) error { return classify.Permanent(errBusy) }))
			w.stopAfter(time.Second)
			letter := broker.Messages("orders.dead")[0]

			var runs atomic.Int64 // the two of them may run at once
			cfg := quiet()
			cfg.DeadLetter = dlq.Discard
			seen := record(&cfg, consumer.EventDeadLetterRefused)
			reader := func(c *consumer.Consumer) {
				c.Handle("orders.dead", func(context.Context, *brokers.Message) error { runs.Add(1); return fail })
			}
			publish(t, broker, "orders.dead", "not a dead letter")
			w = start(t, broker, cfg, reader)
			w.stopAfter(48 * time.Hour)
			if n := broker.Len("orders.dead"); n != 1 || runs.Load() > 20 {
				t.Fatalf("%d left after %d runs, want the dead letter kept, and not run again and again", n, runs.Load())
			}
			if n := len(seen.events); n < 40 || n > 200 || !strings.Contains(seen.events[0].Err.Error(), `DeadLetter: "*-refused"`) {
				t.Errorf("%d events, the first says %v, want some each day that say what to do", n, seen.events[0].Err)
			}

			before := runs.Load()
			cfg.DeadLetter = "*.refused"
			w = start(t, broker, cfg, reader)
			w.stopAfter(2 * time.Hour)
			refused := broker.Messages("orders.dead.refused")
			if len(refused) != 1 || refused[0].ID != letter.ID || !slices.Equal(refused[0].Body, letter.Body) || runs.Load() != before {
				t.Errorf("%+v after %d more runs, want the dead letter in the topic that is named at last", refused, runs.Load()-before)
			}
			empty(t, broker, "orders.dead")
		})
	}
}
