package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

const (
	received     = consumer.EventReceived
	started      = consumer.EventStarted
	succeeded    = consumer.EventSucceeded
	failed       = consumer.EventFailed
	acked        = "ack" // an EventSettled by its Action
	held         = consumer.EventHeld
	retried      = "retry"   // by its Action
	released     = "release" // by its Action
	deadLettered = consumer.EventDeadLettered
	discarded    = "discard" // an EventDeadLettered without a dead letter
	stuck        = consumer.EventStuck
	unstuck      = consumer.EventUnstuck
)

// kindOf is the kind of e, or how its delivery ended, or that its dead letter is
// discarded.
func kindOf(e consumer.Event) string {
	switch {
	case e.Kind == consumer.EventSettled:
		return e.Action.String()
	case e.Kind == deadLettered && e.DeadLetterTopic == dlq.Discard:
		return discarded
	}
	return e.Kind
}

func TestEventsOfAMessage(t *testing.T) {
	once := func(err error) consumer.Handler {
		return func(ctx context.Context, _ *brokers.Message) error {
			if consumer.MetaFrom(ctx).LastFailedAt.IsZero() {
				return err
			}
			return nil
		}
	}
	for name, test := range map[string]struct {
		handler consumer.Handler
		change  func(*consumer.Config)
		want    []string
	}{
		"success":       {once(nil), nil, []string{received, started, succeeded, acked}},
		"skip":          {once(classify.Skip(errBusy)), nil, []string{received, started, failed, acked}},
		"held retry":    {once(errBusy), nil, []string{received, started, failed, held, started, succeeded, acked}},
		"broker retry":  {once(errBusy), func(c *consumer.Config) { c.HoldLimit = -1 }, []string{received, started, failed, retried, received, started, succeeded, acked}},
		"poison":        {once(classify.Permanent(errBusy)), nil, []string{received, started, failed, deadLettered, acked}},
		"discarded":     {once(classify.Permanent(errBusy)), func(c *consumer.Config) { c.DeadLetter = dlq.Discard }, []string{received, started, failed, discarded, acked}},
		"oversize":      {once(nil), func(c *consumer.Config) { c.MaxBody = 1 }, []string{received, deadLettered, acked}},
		"exhausted":     {once(errBusy), func(c *consumer.Config) { c.Retry.MaxAttempts = 1 }, []string{received, started, failed, deadLettered, acked}},
		"interrupted":   {interrupted, func(c *consumer.Config) { c.DrainTimeout = time.Second }, []string{received, started, failed, released}},
		"timed out":     {timedOut, func(c *consumer.Config) { c.HandlerTimeout = time.Second }, []string{received, started, failed, held, started, succeeded, acked}},
		"stuck for 20s": {late, func(c *consumer.Config) { c.HandlerTimeout = time.Second }, []string{received, started, stuck, unstuck, succeeded, acked}},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			cfg := quiet()
			seen := record(&cfg)
			cfg.Retry = every(time.Second, 5)
			if test.change != nil {
				test.change(&cfg)
			}
			w := start(t, broker, cfg, orders(test.handler))
			w.stopAfter(time.Minute)
			isExtension := func(k string) bool { return k == consumer.EventExtended } // as often as chance has it
			if got := slices.DeleteFunc(seen.kinds(), isExtension); !slices.Equal(got, test.want) {
				t.Errorf("events %q\nwant   %q", got, test.want)
			}
			began := time.Time{}
			for _, e := range seen.events {
				if e.Topic != "orders" || body(e) != "one" || e.Time.IsZero() || e.Time.Before(began) {
					t.Errorf("event %+v, want its topic, message and time", e)
				}
				began = e.Time
			}
		})
	}
}

// Successes are silent, whoever looks on.
func TestSuccessIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		var log strings.Builder
		cfg := quiet()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return nil }))
		w.stopAfter(time.Minute)
		if len(seen.of(acked)) != 1 || log.String() != "" {
			t.Errorf("%d acks, and the log says %q", len(seen.of(acked)), log.String())
		}
	})
}

func interrupted(ctx context.Context, _ *brokers.Message) error {
	time.Sleep(50 * time.Second)
	<-ctx.Done()
	return ctx.Err()
}

func timedOut(ctx context.Context, _ *brokers.Message) error {
	if consumer.MetaFrom(ctx).Attempt > 1 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func late(context.Context, *brokers.Message) error {
	time.Sleep(20 * time.Second)
	return nil
}

func body(e consumer.Event) string {
	if e.Message == nil {
		return ""
	}
	return string(e.Message.Body)
}

func TestEventFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one", "two")
		cfg := quiet()
		seen := record(&cfg)
		cfg.Concurrency = 1
		cfg.Retry = every(time.Second, 2)
		began := time.Now()
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "two" {
				time.Sleep(3 * time.Second) // the retry of the other is late
				return nil
			}
			time.Sleep(time.Millisecond)
			return classify.Transient(errBusy)
		}))
		w.stopAfter(time.Minute)
		var events []consumer.Event
		for _, e := range seen.events {
			if body(e) == "one" {
				events = append(events, e)
			}
		}
		const ms = time.Millisecond
		for i, want := range []struct {
			kind               string
			at                 time.Duration
			attempt, counted   int
			duration, lateness time.Duration
			retries, dies      bool
		}{
			{kind: received},
			{kind: started, attempt: 1},
			{kind: failed, at: ms, attempt: 1, counted: 1, duration: ms, retries: true},
			{kind: held, at: ms, attempt: 1, counted: 1},
			{kind: started, at: 3001 * ms, attempt: 2, counted: 1, lateness: 2 * time.Second},
			{kind: failed, at: 3002 * ms, attempt: 2, counted: 2, duration: ms, dies: true},
			{kind: deadLettered, at: 3002 * ms, attempt: 2, counted: 2},
			{kind: acked, at: 3002 * ms, attempt: 2, counted: 2},
		} {
			if i >= len(events) {
				t.Fatalf("%d events, want more", len(events))
			}
			e := events[i]
			if kindOf(e) != want.kind || e.Time.Sub(began) != want.at || e.Attempt != want.attempt || e.Meta.Attempt != want.counted ||
				e.Duration != want.duration || e.Lateness != want.lateness || e.Decision.Retry != want.retries || e.Decision.DeadLetter != want.dies {
				t.Errorf("event %d: %+v\nwant %+v", i, e, want)
			}
			isFailure, isLetter := e.Kind == failed, e.Kind == deadLettered
			if (e.Err != nil) != isFailure || (e.Verdict.Class != "") != isFailure || (e.DeadLetter != nil) != isLetter {
				t.Errorf("%s: error %v, verdict %+v, dead letter %v; want each where it belongs", e.Kind, e.Err, e.Verdict, e.DeadLetter)
			}
		}
	})
}

// The number of a run is its own, though it was not counted.
func TestEventAttemptOfUncountedRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		cfg := quiet()
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			if consumer.MetaFrom(ctx).LastFailedAt.IsZero() {
				return classify.Throttled(errBusy, time.Second)
			}
			return nil
		}))
		w.stopAfter(time.Minute)
		for _, e := range seen.events {
			want := 1
			if e.Kind == received || e.Message == nil {
				want = 0
			}
			if e.Attempt != want {
				t.Errorf("%s: attempt %d, want %d", e.Kind, e.Attempt, want)
			}
		}
	})
}

// span is an Observer that uses the contexts of events.
type span struct {
	mu   sync.Mutex
	seen map[string]int
}

func (s *span) Observe(ctx context.Context, e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Value(spanKey{}) != "of Run" {
		s.seen["no value of Run"]++
	}
	if m := consumer.MessageFrom(ctx); m != nil && m.ID == e.Message.ID {
		s.seen[e.Kind]++
	}
}

type spanKey struct{}

func TestContextsOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "good", "bad")
		s := &span{seen: map[string]int{}}
		cfg := quiet()
		cfg.Observers = []consumer.Observer{s}
		c := must(consumer.New(broker, cfg))
		c.Handle("orders", func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "bad" {
				return classify.Permanent(errBusy)
			}
			return nil
		})
		ctx, stop := context.WithCancel(context.WithValue(t.Context(), spanKey{}, "of Run"))
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s.seen["no value of Run"] != 0 || s.seen[started] != 2 || s.seen[succeeded] != 1 || s.seen[failed] != 1 || len(s.seen) != 3 {
			t.Errorf("contexts seen %v, want those of the handler in started, succeeded and failed, and values of Run in all", s.seen)
		}
	})
}

// Sizes of a flood: every event must be told. That takes a flood of failures,
// which a guard is there to prevent.
func TestEventsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		broker := memory.New(memory.Options{Fault: on(memory.Settle, 1, memory.Fault{Err: errors.New("i/o timeout")})})
		for range n {
			publish(t, broker, "orders", "one")
		}
		cfg := quiet()
		cfg.Guard = consumer.Guard{Off: true}
		seen := record(&cfg)
		cfg.Retry = every(time.Second, 3)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Transient(errBusy) }))
		w.stopAfter(time.Hour)
		for kind, want := range map[string]int{
			received: n, started: 3 * n, failed: 3 * n, held: 2 * n, deadLettered: n, acked: n, consumer.EventError: n,
		} {
			if got := len(seen.of(kind)); got != want {
				t.Errorf("%d %s events, want %d", got, kind, want)
			}
		}
	})
}

// Messages without an ID cannot be told from repeated ones. That is said at the first
// of each topic, and not again.
func TestAnonymousMessagesAreToldOnceATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		broker.deliver = func(d *brokers.Delivery) { d.Anonymous = d.Message.Topic != "named" }
		for _, topic := range []string{"orders", "refunds", "named"} {
			publish(t, broker.Broker, topic, "1", "2", "3")
		}
		var log bytes.Buffer
		cfg := quiet()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			for _, topic := range []string{"orders", "refunds", "named"} {
				c.Handle(topic, func(context.Context, *brokers.Message) error { return nil })
			}
		})
		w.stopAfter(0)
		var told []string
		for line := range strings.Lines(log.String()) {
			if _, topic, found := strings.Cut(line, "topic="); found && strings.Contains(line, "level=WARN") && strings.Contains(line, "have no ID") {
				told = append(told, strings.TrimSpace(topic))
			}
		}
		slices.Sort(told)
		if want := []string{"orders", "refunds"}; !slices.Equal(told, want) {
			t.Errorf("told of the topics %q, want %q:\n%s", told, want, log.String())
		}
	})
}

// fieldsOf has the fields of each kind of event, by the table of kinds in the
// documentation.
var fieldsOf = sync.OnceValue(func() map[string][]string {
	page, err := os.ReadFile("../docs/reference/events.md")
	if err != nil {
		panic(err)
	}
	fields := map[string][]string{}
	quoted := regexp.MustCompile("`([A-Za-z]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| `Event[A-Za-z]+` \\| ([a-z-]+) \\|.*\\|([^|]*)\\|$").FindAllStringSubmatch(string(page), -1) {
		fields[row[1]] = []string{}
		for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
			fields[row[1]] = append(fields[row[1]], name[1])
		}
	}
	return fields
})

// checkFields holds an event against the table of kinds: what the table does not
// name is zero, and Err is set where it does.
func checkFields(t *testing.T, e consumer.Event) {
	documented, known := fieldsOf()[e.Kind]
	if !known {
		t.Errorf("the table of kinds has no %s", e.Kind)
	}
	of := reflect.ValueOf(e)
	for i := range of.NumField() {
		switch name := of.Type().Field(i).Name; {
		case slices.Contains([]string{"Kind", "Time", "Topic", "Message", "Meta", "Attempt"}, name):
		case !slices.Contains(documented, name) && !of.Field(i).IsZero():
			t.Errorf("%s has %s = %v, which the table of kinds does not name", e.Kind, name, of.Field(i))
		case name == "Err" && slices.Contains(documented, name) && e.Err == nil:
			t.Errorf("%s has no Err, which the table of kinds names", e.Kind)
		}
	}
}
