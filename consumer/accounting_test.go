package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

var errThrottled = errors.New("too many requests")

// verdicts is a rule that gives errors of this file their class.
func verdicts(err error) error {
	switch {
	case errors.Is(err, errThrottled):
		return classify.Throttled(err, 0)
	case errors.Is(err, errDisk):
		return classify.With(err, classify.Verdict{Class: classify.ClassEnvironment})
	}
	return nil
}

var errDisk = errors.New("the disk is full")

// failures runs one message that fails as next says, in every way of waiting,
// until it is dead, and returns the attempt numbers that its handler saw.
func failures(t *testing.T, hold time.Duration, policy retry.Policy, next func(run int) error) (attempts []int, m brokers.Meta, reason string) {
	t.Helper()
	broker := brokerWith("orders", "one")
	cfg := quiet()
	cfg.HoldLimit, cfg.Retry, cfg.Rules = hold, policy, []classify.Rule{verdicts}
	w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
		attempts = append(attempts, consumer.MetaFrom(ctx).Attempt)
		return next(len(attempts))
	}))
	w.stopAfter(72 * time.Hour)
	entry := oneDeadLetter(t, broker, "orders")
	return attempts, entry.Meta, entry.Reason
}

// whereHeld runs a test with retries held in the process and in the broker.
func whereHeld(t *testing.T, test func(t *testing.T, hold time.Duration)) {
	for _, hold := range []time.Duration{-1, 24 * time.Hour} {
		bubble(t, fmt.Sprint("hold limit ", hold), func(t *testing.T) { test(t, hold) })
	}
}

func TestFirstThrottlesAreFree(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		attempts, m, reason := failures(t, hold, every(time.Minute, 3), func(int) error { return errThrottled })
		if want := []int{1, 1, 1, 1, 1, 1, 2, 3}; !slices.Equal(attempts, want) {
			t.Errorf("attempts %v, want five that are free and then %v", attempts, want)
		}
		if m.Throttles != 5 || m.Attempt != 3 || reason != "exhausted" {
			t.Errorf("dead by %q with %+v", reason, m)
		}
	})
}

func TestEnvironmentIsNeverCounted(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		policy := every(time.Second, 3)
		policy.MaxAge = time.Hour
		began := time.Now()
		attempts, m, reason := failures(t, hold, policy, func(int) error { return errDisk })
		for _, n := range attempts {
			if n != 1 {
				t.Fatalf("attempts %v, want 1 for ever", attempts)
			}
		}
		if len(attempts) < 60 || reason != "expired" || m.Attempt != 0 {
			t.Errorf("dead by %q after %d runs with %d counted, want it expired and none counted", reason, len(attempts), m.Attempt)
		}
		if age := m.LastFailedAt.Sub(began); age > time.Hour+2*time.Second || age < 59*time.Minute {
			t.Errorf("the last run was after %v, want just within MaxAge", age)
		}
	})
}

func TestMaxAgeEndsCountedRetries(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		policy := every(10*time.Minute, 1000)
		policy.MaxAge = time.Hour
		attempts, m, reason := failures(t, hold, policy, func(int) error { return classify.Transient(errBusy) })
		if len(attempts) != 7 || m.Attempt != 7 || reason != "expired" {
			t.Errorf("dead by %q after the attempts %v, want it expired after 7 in an hour", reason, attempts)
		}
	})
}

// A change of the error restarts nothing.
func TestAlternatingErrorsExhaust(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		kinds := []error{classify.Transient(errBusy), errors.New("unknown"), context.DeadlineExceeded, errThrottled, errDisk}
		attempts, m, reason := failures(t, hold, every(time.Minute, 6), func(run int) error { return kinds[run%len(kinds)] })
		if !slices.IsSorted(attempts) || attempts[len(attempts)-1] != 6 || m.Attempt != 6 || reason == "expired" {
			t.Errorf("dead by %q after the attempts %v, want 6 counted", reason, attempts)
		}
	})
}

// The 18 runs are fewer than open a breaker where nothing succeeds: a probe is
// not counted there.
func TestHistoryKeepsTheLastFailures(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		began := time.Now()
		_, m, _ := failures(t, hold, every(time.Minute, 18), func(int) error { return classify.Transient(errBusy) })
		if len(m.History) != 10 || !m.FirstFailedAt.Equal(began) {
			t.Fatalf("%d failures kept since %v, want %d since %v", len(m.History), m.FirstFailedAt, 10, began)
		}
		for i, f := range m.History {
			if want := 9 + i; f.Attempt != want {
				t.Errorf("History[%d] is of attempt %d, want %d", i, f.Attempt, want)
			}
		}
	})
}

// What Settle was given must not change when the message fails again, because
// an adapter may keep it.
func TestMetaOfARetryIsNotChangedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := tapWith("orders", "one")
		cfg := quiet()
		cfg.HoldLimit, cfg.Retry = -1, every(time.Second, 15)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error { return classify.Transient(errBusy) }))
		w.stopAfter(time.Minute)
		calls := broker.of("retry")
		if len(calls) != 14 {
			t.Fatalf("%d retries, want 14", len(calls))
		}
		for i, c := range calls {
			if last := c.meta.History[len(c.meta.History)-1]; c.meta.Attempt != i+1 || last.Attempt != i+1 || len(c.meta.History) != min(i+1, 10) {
				t.Errorf("retry %d has attempt %d and %d failures of which the last is of attempt %d", i+1, c.meta.Attempt, len(c.meta.History), last.Attempt)
			}
		}
	})
}

func TestServerHintIsKept(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		var at []time.Time
		policy := every(time.Second, 2)
		policy.FreeThrottles = -1
		failures(t, hold, policy, func(int) error {
			at = append(at, time.Now())
			return classify.Throttled(errThrottled, 5*time.Minute)
		})
		if len(at) != 2 || at[1].Sub(at[0]) < 5*time.Minute || at[1].Sub(at[0]) > 5*time.Minute+5*time.Second {
			t.Errorf("runs at %v, want the second 5m after the first, or up to 5s later", at)
		}
	})
}
