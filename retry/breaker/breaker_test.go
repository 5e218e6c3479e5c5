package breaker_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
)

var epoch = time.Unix(1_000_000_000, 0)

const ms = time.Millisecond

// fail has n calls fail one after the other, each after a millisecond and for the
// message that of returns.
func fail(b *breaker.Breaker, now time.Time, n int, of func(n int) uint64) time.Time {
	for i := range n {
		if ok, _ := b.Start(now); ok {
			b.Done(now.Add(ms), now, of(i), flow.Overload)
		}
		now = now.Add(ms)
	}
	return now
}

func anonymous(int) uint64 { return 0 }

func TestMessages(t *testing.T) {
	for name, of := range map[string]func(int) uint64{
		"one":   func(int) uint64 { return 7 },
		"two":   func(n int) uint64 { return 7 + uint64(n%2) },
		"three": func(n int) uint64 { return 7 + uint64(n%3) },
		"none":  anonymous,
	} {
		b := breaker.New(breaker.Config{})
		now := fail(b, epoch, 100, of)
		if got, want := b.Snapshot(now).State, name == "three" || name == "none"; (got == breaker.Open) != want {
			t.Errorf("calls of %s messages fail: the breaker is %v", name, got)
		}
	}
}

// The end of a call from before the limit fell does not lower it again.
func TestLateFailures(t *testing.T) {
	b := breaker.New(breaker.Config{})
	for range 100 {
		b.Start(epoch)
	}
	now := fail(b, epoch, 10, anonymous)
	before := b.Snapshot(now).Limit
	for range 100 {
		b.Done(now, epoch, 0, flow.Overload)
	}
	if got := b.Snapshot(now).Limit; got != before {
		t.Errorf("the limit falls from %v to %v", before, got)
	}
}

func TestSnapshot(t *testing.T) {
	b := breaker.New(breaker.Config{Random: func() float64 { return 0.5 }})
	check := func(now time.Time, want breaker.Snapshot) {
		t.Helper()
		got := b.Snapshot(now)
		if (got.Limit < 1) != (want.State != breaker.Closed) || math.IsInf(got.Limit, 1) != (want.State == breaker.Closed) {
			t.Errorf("%v with a limit of %v", got.State, got.Limit)
		}
		if got.Limit = 0; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check(epoch, breaker.Snapshot{})
	now := fail(b, epoch, 3000, anonymous)
	const reason = "6 of the last 6 messages failed"
	next := b.Snapshot(now).Next
	if d := next.Sub(now); d <= 0 || d > time.Second {
		t.Errorf("the next call may start in %v, want a second at most", d)
	}
	check(now, breaker.Snapshot{State: breaker.Open, Reason: reason, Next: next, Wait: 1499500 * time.Microsecond, Messages: 6, Failures: 6})
	if ok, at := b.Start(now); ok || !at.Equal(next) {
		t.Errorf("Start = %v, %v, want a refusal until %v", ok, at, next)
	}
	check(next, breaker.Snapshot{State: breaker.HalfOpen, Reason: reason, Messages: 6, Failures: 6})

	later := now.Add(time.Hour)
	if ok, _ := b.Start(later); !ok {
		t.Error("no call may start an hour later")
	}
	b.Done(later.Add(ms), later, 0, flow.Overload)
	if got := b.Snapshot(later.Add(ms)).Wait; got != 30*time.Second {
		t.Errorf("an hour without a success: wait for %v, want 30s", got)
	}

	b.Isolate("moving the database")
	check(later.Add(time.Hour), breaker.Snapshot{State: breaker.Isolated, Reason: "moving the database", Wait: 30 * time.Second})
	if ok, next := b.Start(later.Add(time.Hour)); ok || !next.IsZero() {
		t.Errorf("isolated: Start = %v, %v", ok, next)
	}
	b.Restore(later.Add(time.Hour))
	check(later.Add(2*time.Hour), breaker.Snapshot{State: breaker.HalfOpen, Reason: "it serves again, and calls come back slowly"})
	b.Isolate("")
	if got := b.Snapshot(later); got.State != breaker.Isolated || got.Reason == "" {
		t.Errorf("isolated without a reason: %+v", got)
	}
}

func TestStateNames(t *testing.T) {
	var got []string
	for s := breaker.Closed; s <= breaker.Isolated+1; s++ {
		got = append(got, s.String())
	}
	if want := []string{"closed", "open", "half-open", "isolated", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("states are %q, want %q", got, want)
	}
}
