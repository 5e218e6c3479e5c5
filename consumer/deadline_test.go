package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/settings"
)

// until is a message with a deadline in its header.
func until(deadline string) brokers.Message {
	return brokers.Message{ID: "m", Headers: brokers.Headers{{Name: "redrive-deadline", Value: deadline}}}
}

// Each message comes in a minute after it was published.
func TestDeadlines(t *testing.T) {
	const start = "2000-01-01T00:00:00Z" // of every bubble
	letter := dlq.Entry{Message: until(start), Reason: "exhausted", DeadAt: time.Unix(1, 0)}
	for name, tt := range map[string]struct {
		message    brokers.Message
		topic      time.Duration
		unknown    bool // when it was published
		runs, errs int
	}{
		"none":                             {runs: 1},
		"of the topic, to come":            {topic: 61 * time.Second, runs: 1},
		"of the topic, now":                {topic: time.Minute},
		"of the topic, past":               {topic: time.Second},
		"of the topic, from arrival":       {topic: time.Second, unknown: true, runs: 1},
		"header, to come":                  {message: until("2000-01-01T00:01:00.5Z"), runs: 1},
		"header, in another zone":          {message: until("2000-01-01T05:31:01+05:30"), runs: 1},
		"header, now":                      {message: until("2000-01-01T00:01:00Z")},
		"header, long past":                {message: until("1999-12-31T23:59:59-00:00")},
		"header, end of time":              {message: until("9999-12-31T23:59:59Z"), runs: 1},
		"header, a zero time":              {message: until("0001-01-01T00:00:00Z"), runs: 1},
		"header, a zero time, and a topic": {message: until("0001-01-01T00:00:00Z"), topic: time.Second},
		"header, the earlier one":          {message: until(start), topic: time.Hour},
		"header, the later one":            {message: until("2000-01-02T00:00:00Z"), topic: time.Second},
		"header, twice":                    {message: brokers.Message{Headers: append(until(start).Headers, until("2000-01-02T00:00:00Z").Headers...)}, runs: 1},
		"header, empty":                    {message: until(""), runs: 1, errs: 1},
		"header, seconds since 1970":       {message: until("946684860"), runs: 1, errs: 1},
		"header, no zone":                  {message: until("2000-01-01T00:00:00"), runs: 1, errs: 1},
		"header, megabytes":                {message: until(strings.Repeat("9", 1<<20)), runs: 1, errs: 1},
		"header, no time, and a topic":     {message: until("soon"), topic: time.Second, errs: 1},
		"header, no time, and a retry":     {message: brokers.Message{ID: "fails", Headers: until("soon").Headers}, runs: 2, errs: 1},
		"sent back by a tool":              {message: brokers.Message{Headers: append(until(start).Headers, brokers.Header{Name: "redrive-count", Value: "1"})}, topic: time.Second, runs: 1},
		"sent back by hand":                {message: letter.Encode(0), topic: time.Second, runs: 1},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			broker.deliver = func(d *brokers.Delivery) {
				if tt.unknown {
					d.Message.PublishedAt = time.Time{}
				}
			}
			send(t, broker, "orders", tt.message)
			time.Sleep(time.Minute)
			var runs atomic.Int32
			cfg := quiet()
			seen := record(&cfg)
			cfg.HoldLimit = -1
			w := startCounting(t, broker, cfg, &runs, consumer.TopicConfig{Deadline: tt.topic})
			w.stopAfter(5 * time.Second)
			empty(t, broker.Broker, "orders")
			letters := deadLetters(t, broker.Broker, "orders")
			if int(runs.Load()) != tt.runs || len(letters) != max(0, 1-tt.runs) {
				t.Fatalf("%d runs and %d dead letters, want %d runs", runs.Load(), len(letters), tt.runs)
			}
			for _, l := range letters {
				if l.Reason != "expired" || l.Meta.Attempt != 0 || !strings.HasPrefix(l.ErrorText, consumer.ErrDeadline.Error()) || l.Rule != "deadline" {
					t.Errorf("dead letter %+v, want it expired without an attempt", l)
				}
			}
			errs := seen.of(consumer.EventError)
			for _, e := range errs {
				if e.Operation != "deadline" || e.Message == nil || len(e.Err.Error()) > 200 || !strings.Contains(e.Err.Error(), "redrive-deadline") {
					t.Errorf("event %+v, want that of the header", e)
				}
			}
			if len(errs) != tt.errs {
				t.Errorf("%d errors, want %d", len(errs), tt.errs)
			}
		})
	}
}

// startCounting starts a worker that counts its runs. The first one of a message
// may fail.
func startCounting(t *testing.T, broker brokers.Broker, cfg consumer.Config, runs *atomic.Int32, settings consumer.TopicConfig) *worker {
	t.Helper()
	return start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
		if runs.Add(1) == 1 && m.ID == "fails" {
			return errBusy
		}
		return nil
	}, settings))
}

// A message whose retry would be too late ends with its last error.
func TestRetryAfterTheDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retry.Policy
		err    error
		guard  consumer.Guard
		runs   int
		class  string
	}{
		"at the first":            {every(5*time.Minute, 10), errBusy, consumer.Guard{Off: true}, 1, "unknown"},
		"in the broker":           {every(time.Minute, 10), errBusy, consumer.Guard{Off: true}, 5, "unknown"},
		"held":                    {every(time.Second, 1000), classify.Transient(errBusy), consumer.Guard{Off: true}, 300, "transient"},
		"uncounted":               {every(time.Minute, 10), classify.Transient(errBusy), consumer.Guard{}, 0, "transient"},
		"hint":                    {every(time.Second, 10), classify.RetryAfter(errBusy, 10*time.Minute), consumer.Guard{Off: true}, 1, "transient"},
		"hint of no attempt":      {every(time.Second, 10), classify.Defer(errBusy, 10*time.Minute), consumer.Guard{Off: true}, 1, "transient"},
		"exhausted before":        {every(time.Second, 3), classify.Transient(errBusy), consumer.Guard{Off: true}, 3, "exhausted"},
		"a skip is not a retry":   {every(5*time.Minute, 10), classify.Skip(errBusy), consumer.Guard{Off: true}, 1, "skipped"},
		"poison before it is due": {every(5*time.Minute, 10), classify.Permanent(errBusy), consumer.Guard{Off: true}, 1, "poison"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := tapWith("orders", "one")
			cfg := quiet()
			cfg.Retry, cfg.Guard = tt.policy, tt.guard
			began, runs, last := time.Now(), 0, time.Time{}
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				runs, last = runs+1, time.Now()
				return tt.err
			}, consumer.TopicConfig{Deadline: 5 * time.Minute}))
			w.stopAfter(time.Hour)
			empty(t, broker.Broker, "orders")
			letters := deadLetters(t, broker.Broker, "orders")
			if tt.class == "skipped" {
				if len(letters) != 0 || runs != 1 {
					t.Errorf("%d dead letters after %d runs, want none after 1", len(letters), runs)
				}
				return
			}
			if len(letters) != 1 || tt.runs > 0 && runs != tt.runs || last.Sub(began) >= 5*time.Minute {
				t.Fatalf("%d dead letters after %d runs, the last after %v; want one after %d runs within 5m", len(letters), runs, last.Sub(began), tt.runs)
			}
			l := letters[0]
			if tt.class == "exhausted" || tt.class == "poison" {
				if l.Reason != tt.class {
					t.Errorf("reason %q, want %q", l.Reason, tt.class)
				}
				return
			}
			if l.Reason != "expired" || l.ErrorText != errBusy.Error() || l.Meta.Class != tt.class || !l.DeadAt.Equal(last) {
				t.Errorf("dead letter %+v at %v, want the error of the last run at %v", l, l.DeadAt, last)
			}
		})
	}
}

// The deadline of a message is that of its context. A run that it ends says
// nothing about the dependency.
func TestDeadlineCutsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		cfg := guarded()
		seen := record(&cfg)
		began := time.Now()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "good" {
				return nil
			}
			at, _ := ctx.Deadline()
			<-ctx.Done()
			if !at.Equal(began.Add(time.Minute)) || time.Since(began) != time.Minute || context.Cause(ctx) != consumer.ErrDeadline || ctx.Err() != context.DeadlineExceeded {
				t.Errorf("deadline %v, ended after %v by %v, want 1m and ErrDeadline", at, time.Since(began), context.Cause(ctx))
			}
			if string(m.Body) == "made it" {
				return nil
			}
			return ctx.Err()
		}, consumer.TopicConfig{Deadline: time.Minute, Concurrency: 30}))
		publish(t, broker, "orders", "made it")
		publish(t, broker, "orders", numbered("hung", 20)...)
		time.Sleep(time.Minute + time.Second)
		publish(t, broker, "orders", "good")
		w.stopAfter(time.Second)
		letters, cut := deadLetters(t, broker.Broker, "orders"), 0
		for _, l := range letters {
			if l.Reason != "expired" {
				t.Errorf("dead letter %+v, want it expired", l)
			}
			if l.ErrorText == context.DeadlineExceeded.Error() {
				cut++
			}
		}
		if len(letters) != 20 || cut < 10 || cut != len(seen.of(consumer.EventFailed)) { // a cold start has half of the slots
			t.Errorf("%d dead letters, %d of runs that were cut; want 20 and at least 10", len(letters), cut)
		}
		if n, pauses := len(seen.of(consumer.EventSucceeded)), len(seen.of(consumer.EventPaused)); n != 2 || pauses != 0 {
			t.Errorf("%d successes and %d pauses, want 2 and none", n, pauses)
		}
		empty(t, broker.Broker, "orders")
	})
}

// One context is for all messages of a batch, so none of them ends it. A member
// whose deadline has passed while the batch waited takes no part.
func TestDeadlinesInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		d := newDiary()
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
				for _, item := range batch {
					d.write("%s", item.Message.ID)
				}
				time.Sleep(2 * time.Minute)
				if ctx.Err() != nil {
					t.Error(context.Cause(ctx))
				}
				return nil
			}, consumer.TopicConfig{BatchSize: 3, BatchWait: 10 * time.Second})
		})
		late := until("2000-01-01T00:00:05Z")
		late.ID = "late"
		for _, m := range []brokers.Message{until("2000-01-01T00:01:00Z"), late, {ID: "last"}} {
			send(t, broker, "orders", m)
			time.Sleep(4 * time.Second)
		}
		w.stopAfter(5 * time.Minute)
		d.expect(t, "8s m", "8s last")
		if letters := deadLetters(t, broker.Broker, "orders"); len(letters) != 1 || letters[0].Message.ID != "late" || letters[0].Reason != "expired" {
			t.Errorf("dead letters %+v, want that of the late one", letters)
		}
		empty(t, broker.Broker, "orders")
	})
}

// A message may wait for a slot, or through an outage, until its deadline. It ends
// when its turn comes, and those behind it go on.
func TestDeadlinePassesInLine(t *testing.T) {
	for name, guard := range map[string]consumer.Guard{"for a slot": {Off: true}, "in an outage": {}} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			cfg := quiet()
			cfg.Guard, cfg.Concurrency = guard, 1
			began, fresh := time.Now(), 0
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				if time.Since(m.PublishedAt) >= time.Minute {
					t.Errorf("%s runs %v after it was published", m.Body, time.Since(m.PublishedAt))
				}
				if time.Since(began) >= time.Hour {
					fresh++
					return nil
				}
				if guard.Off {
					<-ctx.Done()
				}
				return classify.Transient(errBusy)
			}, consumer.TopicConfig{Deadline: time.Minute}))
			const each = 5 * time.Second
			for range int(time.Hour / each) {
				publish(t, broker, "orders", "late")
				time.Sleep(each)
			}
			time.Sleep(2 * time.Minute)
			for range 20 {
				publish(t, broker, "orders", "fresh")
				time.Sleep(each)
			}
			w.stopAfter(10 * time.Minute)
			empty(t, broker.Broker, "orders")
			letters := deadLetters(t, broker.Broker, "orders")
			for _, l := range letters {
				if l.Reason != "expired" {
					t.Errorf("dead letter %+v, want it expired", l)
				}
			}
			if fresh < 20 || len(letters)+fresh != int(time.Hour/each)+20 {
				t.Errorf("%d fresh messages and %d dead letters", fresh, len(letters))
			}
		})
	}
}

// remembering has broker act as one that takes a message to be published at a
// certain time, zero if it is unknown, and whose copies carry the time that they
// are given.
func remembering(broker *tap, at time.Time) {
	var mu sync.Mutex
	known := map[string]time.Time{}
	broker.deliver = func(d *brokers.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		if d.Message.PublishedAt = at; !known[d.Message.ID].IsZero() {
			d.Message.PublishedAt = known[d.Message.ID]
		}
	}
	broker.settle = func(batch []brokers.Settlement, errs []error) []error {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range batch {
			known[s.Delivery.Message.ID] = s.Delivery.Message.PublishedAt
		}
		return errs
	}
}

// The first arrival counts where the publication is unknown or lies in the future,
// from the first retry on in the broker.
func TestDeadlineFromTheFirstArrival(t *testing.T) {
	for name, published := range map[string]time.Time{"unknown": {}, "future": time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			remembering(broker, published)
			publish(t, broker, "orders", "one")
			cfg := quiet()
			cfg.Retry = every(time.Minute, 100)
			d := newDiary()
			handle := orders(func(context.Context, *brokers.Message) error {
				d.write("run")
				return classify.Transient(errBusy)
			}, consumer.TopicConfig{Deadline: 150 * time.Second})
			w := start(t, broker, cfg, handle)
			w.stopAfter(30 * time.Second)
			w = start(t, broker, cfg, handle)
			w.stopAfter(time.Hour)
			d.expect(t, "0s run", "1m0s run", "2m0s run")
			if letters := deadLetters(t, broker.Broker, "orders"); len(letters) != 1 || letters[0].Reason != "expired" || !letters[0].Message.PublishedAt.Equal(d.born) {
				t.Errorf("dead letters %+v, want one that expired", letters)
			}
		})
	}
}

// The first run is at its time to the millisecond, whether it waits in the process
// or in the broker, and whichever worker has the message then.
func TestStartAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		after   time.Duration
		age     time.Duration // at its arrival
		unknown bool          // when it was published
		broker  bool          // it waits there
		want    time.Duration // of the first run, after its arrival
	}{
		"held":                    {after: time.Second, want: time.Second},
		"in the broker":           {after: time.Hour, broker: true, want: time.Hour},
		"longer than any retry":   {after: 48 * time.Hour, broker: true, want: 48 * time.Hour},
		"for weeks":               {after: 1000 * time.Hour, broker: true, want: 1000 * time.Hour},
		"part of it has passed":   {after: time.Hour, age: 40 * time.Minute, broker: true, want: 20 * time.Minute},
		"nearly all":              {after: time.Hour, age: time.Hour - time.Millisecond, want: time.Millisecond},
		"all of it":               {after: time.Hour, age: time.Hour},
		"published in the future": {after: time.Hour, age: -1000 * time.Hour, broker: true, want: time.Hour},
		"publication unknown":     {after: time.Hour, age: 40 * time.Minute, unknown: true, broker: true, want: time.Hour},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			if tt.unknown {
				remembering(broker, time.Time{})
			}
			began := time.Now()
			send(t, broker, "orders", brokers.Message{PublishedAt: began.Add(-tt.age)})
			cfg := quiet()
			seen := record(&cfg)
			cfg.Retry = every(time.Minute, 10)
			d := newDiary()
			handle := orders(func(ctx context.Context, m *brokers.Message) error {
				meta := consumer.MetaFrom(ctx)
				d.write("%d", meta.Attempt)
				if meta.Attempt == 1 {
					return errBusy
				}
				return nil
			}, consumer.TopicConfig{StartAfter: tt.after})
			w := start(t, broker, cfg, handle)
			if tt.want > 10*time.Minute {
				w.stopAfter(10 * time.Minute) // another worker has it then
				w = start(t, broker, cfg, handle)
			}
			w.stopAfter(tt.want + time.Hour)
			d.expect(t, tt.want.String()+" 1", (tt.want+time.Minute).String()+" 2")
			empty(t, broker.Broker, "orders", "orders.dead")
			deferred := seen.of(consumer.EventDeferred)
			if n := len(deferred); n > 1 || (n == 1) != (tt.want > 0) {
				t.Errorf("deferred %d times", n)
			}
			for _, e := range deferred {
				if e.Decision.Reason != "start-after" || e.Decision.Counted || e.Meta.Attempt != 0 || !e.Meta.DueAt.Equal(began.Add(tt.want)) {
					t.Errorf("event %+v, want the first run due after %v", e, tt.want)
				}
			}
			if waits := broker.of("retry"); len(waits) != 1 && !tt.broker || tt.broker && (len(waits) != 2 || waits[0].delay != tt.want) {
				t.Errorf("retries %+v, want it to wait in the broker: %v", waits, tt.broker)
			}
			if e := seen.of(consumer.EventStarted)[0]; e.Lateness != 0 {
				t.Errorf("the first run was %v late", e.Lateness)
			}
		})
	}
}

// A message that was sent back starts at once, and so does one of another topic.
func TestStartAfterIsForFirstRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		d := newDiary()
		handle := func(ctx context.Context, m *brokers.Message) error {
			d.write("%s", m.Body)
			return nil
		}
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleWith("orders", handle, consumer.TopicConfig{StartAfter: time.Hour, Deadline: 2 * time.Hour})
			c.Handle("refunds", handle)
		})
		time.Sleep(time.Second)
		sendBack(t, broker, "orders", "letter")
		time.Sleep(time.Second)
		publish(t, broker, "refunds", "refund")
		time.Sleep(time.Second)
		publish(t, broker, "orders", "order")
		w.stopAfter(3 * time.Hour)
		d.expect(t, "1s letter", "2s refund", "1h0m3s order")
	})
}

// A deadline that passes while the first run is put off ends the message.
func TestDeadlineBeforeStartAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		send(t, broker, "orders", until("2000-01-01T00:30:00Z"))
		var runs atomic.Int32
		w := startCounting(t, broker, quiet(), &runs, consumer.TopicConfig{StartAfter: time.Hour})
		w.stopAfter(2 * time.Hour)
		if letters := deadLetters(t, broker.Broker, "orders"); runs.Load() != 0 || len(letters) != 1 || letters[0].Reason != "expired" {
			t.Errorf("%d runs, dead letters %+v; want one that expired", runs.Load(), letters)
		}
	})
}

// The broker keeps an order that the first delay would turn into a wait of each
// message behind the other.
func TestStartAfterOnAnOrderedBroker(t *testing.T) {
	c := must(consumer.New(memory.New(memory.Options{Ordered: true}), quiet()))
	c.HandleWith("orders", done, consumer.TopicConfig{StartAfter: time.Second})
	err := c.Run(t.Context())
	if _, ok := errors.AsType[*settings.Error](err); !ok || !strings.Contains(err.Error(), `Topic("orders").StartAfter`) {
		t.Errorf("Run = %v, want a fault of StartAfter", err)
	}
}
