package metrics_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
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
	"github.com/redrive-go/redrive/metrics"
)

// work lets a worker with m handle messages with the given bodies until it
// needs nothing any more, or for a minute.
func work(t *testing.T, m *metrics.Metrics, handle consumer.Handler, bodies ...string) {
	t.Helper()
	broker := memory.New(memory.Options{})
	worker := must(consumer.New(broker, consumer.Config{
		DeadLetter:   "*.dead",
		Observers:    []consumer.Observer{m},
		Logger:       slog.New(slog.DiscardHandler),
		DrainTimeout: time.Second,
	}))
	worker.Handle("orders", handle)
	for _, body := range bodies {
		if err := broker.Publish(t.Context(), "orders", brokers.Message{Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := worker.Run(ctx); err != nil {
		t.Logf("Run: %v", err)
	}
	_ = broker.Close(context.Background())
}

// TestAgreesWithTheWorker compares the counters with what handlers did.
func TestAgreesWithTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		var mu sync.Mutex
		runs := map[string]int{}
		work(t, m, func(_ context.Context, message *brokers.Message) error {
			time.Sleep(time.Second)
			body := string(message.Body)
			mu.Lock()
			runs[body]++
			first := runs[body] == 1
			mu.Unlock()
			switch {
			case body == "poison":
				return classify.Permanent(errors.New("no such customer"))
			case body == "twice" && first:
				return classify.Transient(errors.New("busy"))
			case body == "skip":
				return classify.Skip(errors.New("old"))
			}
			return nil
		}, "fine", "poison", "twice", "skip")
		if runs["twice"] != 2 || runs["fine"] != 1 {
			t.Fatalf("runs %v: the worker did something else", runs)
		}
		expect(t, m, map[string]float64{
			"retry_attempts_total{class=none,outcome=success,policy=default,topic=orders}":       2,
			"retry_attempts_total{class=poison,outcome=dead_letter,policy=default,topic=orders}": 1,
			"retry_attempts_total{class=skipped,outcome=skip,policy=default,topic=orders}":       1,
			"retry_attempts_total{class=transient,outcome=retry,policy=default,topic=orders}":    1,
			"redrive_dead_letters_total{reason=poison,topic=orders}":                             1,
			"redrive_deliveries_total{kind=fresh,topic=orders}":                                  4,
			"redrive_messages_in_flight{topic=orders}":                                           0,
			"redrive_messages_held{topic=orders}":                                                0,
			"redrive_messages_running{topic=orders}":                                             0,
			"redrive_handler_duration_seconds_sum{result=success,topic=orders}":                  2,
			"redrive_handler_duration_seconds_sum{result=failure,topic=orders}":                  3,
			"redrive_retry_lateness_seconds_count{topic=orders}":                                 1,
		})
	})
}

// TestExtensions lets a handler run longer than the lease of 30 s.
func TestExtensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		work(t, m, func(context.Context, *brokers.Message) error {
			time.Sleep(50 * time.Second)
			return nil
		}, "order")
		got := values(t, m)
		if n := got["redrive_lease_extensions_total{topic=orders}"]; n < 2 || n > 5 {
			t.Errorf("%v extensions in 50 s, want one every 10 to 20 s", n)
		}
		if n := got["redrive_lease_extension_errors_total{topic=orders}"]; n != 0 {
			t.Errorf("%v extensions failed, want none", n)
		}
	})
}

// TestPause lets the limit fall to probes.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		work(t, m, func(context.Context, *brokers.Message) error {
			return classify.Transient(errors.New("down"))
		}, slices.Repeat([]string{"order"}, 100)...)
		got := values(t, m)
		pauses, inFlight := got["redrive_pauses_total{dependency=orders}"], got["redrive_messages_in_flight{topic=orders}"]
		if pauses < 1 || got["redrive_paused{dependency=orders}"] != 1 || inFlight != 0 {
			t.Errorf("%v pauses, the last one over at the end, or %v messages in flight, want one that goes on, and none", pauses, inFlight)
		}
	})
}

// TestStuckAtTheEnd leaves a handler behind that ignores its context.
func TestStuckAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		work(t, m, func(context.Context, *brokers.Message) error {
			time.Sleep(2 * time.Minute)
			return nil
		}, "order")
		expect(t, m, map[string]float64{
			"retry_attempts_total{class=shutdown,outcome=release,policy=default,topic=orders}": 1,
			"redrive_settlements_total{action=release,topic=orders}":                           1,
			"redrive_messages_stuck{topic=orders}":                                             0,
		})
		time.Sleep(2 * time.Minute)
	})
}

// TestReasonsAreKnown looks for every reason of the library among the labels.
func TestReasonsAreKnown(t *testing.T) {
	var known []string
	for name := range values(t, must(metrics.New(metrics.Topic{Name: "orders"}))) {
		if rest, ok := strings.CutPrefix(name, "redrive_dead_letters_total{reason="); ok {
			known = append(known, strings.TrimSuffix(rest, ",topic=orders}"))
		}
	}
	for file, pattern := range map[string]string{
		"../dlq/entry.go":       `(?m)^\t//\t([a-z-]+)  `,
		"../consumer/decide.go": `(?m)^\treason\w+ += "([a-z-]+)"$`, // those with a comment are not of dead letters
		"../retry/decide.go":    `(?m)^\treason\w+ += "([a-z-]+)"$`,
	} {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(string(must(os.ReadFile(file))), -1)
		if len(found) < 3 {
			t.Errorf("%s has %d reasons: this test does not find them any more", file, len(found))
		}
		for _, word := range found {
			if !slices.Contains(known, word[1]) {
				t.Errorf("the reason %q of %s is counted as other", word[1], file)
			}
		}
	}
}
