package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// A dead-letter topic that is down while workers come and go must not buy a
// message more runs than its policy allows.
func TestRestartsDuringADeadLetterOutageAddNoRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		broker := memory.New(memory.Options{Fault: func(op memory.Op) (f memory.Fault) {
			if down.Load() && op.Operation == memory.Publish && op.Topic == "orders.dead" {
				f.Err = errors.New("no such topic")
			}
			return f
		}})
		publish(t, broker, "orders", "one")
		cfg := quiet()
		cfg.DrainTimeout = -1
		cfg.Retry = retry.Policy{MaxAttempts: 2, Backoff: retry.Backoff{Base: time.Millisecond, Jitter: retry.NoJitter}}
		var runs atomic.Int32
		for restart := range 4 {
			down.Store(restart < 3)
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				runs.Add(1)
				return classify.Transient(errors.New("no"))
			}))
			w.stopAfter(5 * time.Second)
		}
		if runs.Load() != 2 {
			t.Errorf("%d runs, want the 2 that the policy allows", runs.Load())
		}
		letters := broker.Messages("orders.dead")
		if len(letters) != 1 || broker.Len("orders") != 0 {
			t.Fatalf("%d dead letters and %d messages left, want 1 and 0", len(letters), broker.Len("orders"))
		}
		entry, err := dlq.Decode(letters[0])
		if err != nil {
			t.Fatal(err)
		}
		if entry.Reason != "exhausted" || entry.Meta.Attempt != 2 || entry.ErrorText != "no" {
			t.Errorf("dead letter after %d attempts: %s, %q", entry.Meta.Attempt, entry.Reason, entry.ErrorText)
		}
	})
}

// While retries wait for tokens, the dependency is to blame: the attempts of no message
// end in its first hour. After that they do.
func TestNoLastAttemptWhileRetriesWait(t *testing.T) {
	for _, tt := range []struct {
		name        string
		outage      time.Duration // of half of the messages, two a second
		until       time.Duration
		least, most int // dead letters then
	}{
		{"the dependency recovers", 50 * time.Minute, 3 * time.Hour, 0, 0},
		{"it does not, for an hour", 3 * time.Hour, 59 * time.Minute, 0, 0},
		{"it never does", 3 * time.Hour, 3 * time.Hour, 100, 3 * 3600},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			broker, began := memory.New(memory.Options{}), time.Now()
			cfg := guarded()
			cfg.Retry.MaxAttempts = 8
			w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
				if string(m.Body) == "bad" && time.Since(began) < tt.outage {
					return errBusy
				}
				return nil
			}))
			for time.Since(began) < tt.until {
				publish(t, broker, "orders", "good", "bad")
				sleep(time.Second)
			}
			if n := broker.Len("orders.dead"); n < tt.least || n > tt.most {
				t.Errorf("%d are dead after %v, want %d to %d", n, tt.until, tt.least, tt.most)
			}
			w.mustShutdown()
		})
	}
}
