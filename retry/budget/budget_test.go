package budget

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/settings"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var _ Pacer = (*Budget)(nil)

func newBudget(t testing.TB, c Config) *Budget {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNewReportsAllFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    Config
		want []string
	}{
		{"queue", Queue(), nil},
		{"mesh", Mesh(), nil},
		{"limits", Config{Share: 1, Floor: 1e6}, nil},
		{"small", Config{Share: 1e-9, Floor: 1e-9}, nil},
		{"empty", Config{}, []string{"Config.Share", "Config.Floor"}},
		{"percent", Config{Share: 10, Floor: 1}, []string{"Config.Share"}},
		{"not numbers", Config{Share: math.NaN(), Floor: math.NaN()}, []string{"Config.Share", "Config.Floor"}},
		{"endless", Config{Share: 0.1, Floor: math.Inf(1)}, []string{"Config.Floor"}},
		{"negative", Config{Share: -1, Floor: -1}, []string{"Config.Share", "Config.Floor"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := New(tt.c)
			if (b == nil) != (err != nil) {
				t.Fatalf("New = %v, %v", b, err)
			}
			var got []string
			if all, ok := err.(interface{ Unwrap() []error }); ok {
				for _, e := range all.Unwrap() {
					var c *settings.Error
					if errors.As(e, &c) {
						got = append(got, c.Field)
					}
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("faults in %q, want %q: %v", got, tt.want, err)
			}
		})
	}
}

// empty leaves b without a token at now.
func empty(b *Budget, now time.Time) {
	b.Snapshot(now)
	b.tokens, b.room = 0, b.most()
}

// take withdraws what there is at now.
func take(b *Budget, now time.Time) (got int) {
	for {
		if _, ok := b.Withdraw(now, 0, 0); !ok {
			return got
		}
		got++
	}
}

func TestDeliveriesEarnAShare(t *testing.T) {
	b := newBudget(t, Config{Share: 0.25, Floor: 1e-3})
	now := noon
	empty(b, now)
	b.Deposit(now, 0)
	b.Deposit(now, -5)
	b.Deposit(now, 3)
	if _, ok := b.Withdraw(now, 0, 0); ok {
		t.Error("a token for three quarters")
	}
	b.Deposit(now, 1)
	if got := b.Snapshot(now).Tokens; got < 0.99 || got > 1.01 {
		t.Errorf("%v tokens after four deliveries, want 1", got)
	}
}

func TestFloorEarnsAllTheTime(t *testing.T) {
	b := newBudget(t, Queue())
	now := noon
	empty(b, now)
	for i := range 100 {
		now = now.Add(time.Second)
		if _, ok := b.Withdraw(now, time.Minute, 0.5); !ok {
			t.Fatalf("no token in second %d", i)
		}
	}
}

func TestCapacity(t *testing.T) {
	b := newBudget(t, Queue())
	if s := b.Snapshot(noon); s.Capacity != 10 || s.Tokens != 10 || math.Abs(s.Limit-11) > 1e-9 {
		t.Errorf("a new budget has %+v, want 10 tokens of 10, and 11 a second", s)
	}
	now := noon
	for range 60 { // 200 deliveries a second
		now = now.Add(time.Second)
		b.Deposit(now, 200)
	}
	if s := b.Snapshot(now); math.Abs(s.Capacity-105) > 1 || math.Abs(s.Tokens-s.Capacity) > 1 || math.Abs(s.Limit-201) > 1 {
		t.Errorf("at 200 a second there is %+v, want 105 tokens, and 201 a second", s)
	}
	now = now.Add(5 * time.Minute)
	if s := b.Snapshot(now); math.Abs(s.Limit-101) > 3 || s.Tokens > s.Capacity {
		t.Errorf("five minutes later there is %+v, want half the ceiling", s)
	}
	now = now.Add(24 * time.Hour)
	if s := b.Snapshot(now); s.Capacity != 10 || s.Tokens != 10 {
		t.Errorf("a day later there is %+v, want 10 tokens of 10", s)
	}
	if s := newBudget(t, Config{Share: 0.1, Floor: 1e-6}).Snapshot(noon); s.Capacity != 1 {
		t.Errorf("capacity %v, want 1 at least", s.Capacity)
	}
}

func TestRefundIsForOneRetry(t *testing.T) {
	b := newBudget(t, Queue())
	b.Refund(noon)
	if got := b.Snapshot(noon).Tokens; got != 10 {
		t.Errorf("%v tokens, want no more than the capacity", got)
	}
	now := noon
	empty(b, now)
	b.Refund(now)
	b.Refund(now)
	if got := take(b, now); got != 2 {
		t.Errorf("%d retries after two refunds, want 2", got)
	}
	if s := b.Snapshot(now); s.Refunded != 3 || s.Granted != 2 {
		t.Errorf("snapshot %+v", s)
	}
}

// TestPropertyOfTheBudget holds random calls against the bounds of the package
// documentation.
func TestPropertyOfTheBudget(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := Config{Share: 0.01 + rng.Float64()*0.99, Floor: math.Exp(rng.Float64()*9 - 5)}
		b := newBudget(t, c)
		now, deposited, granted, refunded := noon, 0, 0, 0
		var starts []time.Time
		highest := b.Snapshot(now)
		for range 5000 {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(50*time.Millisecond)))
			switch rng.IntN(6) {
			case 0:
				n := rng.IntN(20)
				b.Deposit(now, n)
				deposited += n
			case 1:
				if refunded < granted {
					b.Refund(now)
					refunded++
				}
			default:
				most := time.Duration(rng.Int64N(int64(time.Hour)))
				if rng.IntN(5) == 0 {
					most = time.Duration(rng.Int64N(1000) - 10)
				}
				wait, ok := b.Withdraw(now, most, rng.Float64())
				if ok {
					granted++
					starts = append(starts, now)
				}
				if ok && wait != 0 || !ok && (wait > max(most, 0) || wait > 15*time.Minute || wait <= 0 && most > 0) {
					t.Fatalf("seed %d: Withdraw with %v returned %v, %v", seed, most, wait, ok)
				}
			}
			s := b.Snapshot(now)
			highest.Capacity, highest.Limit = max(highest.Capacity, s.Capacity), max(highest.Limit, s.Limit)
			if s.Tokens < 0 || s.Tokens > s.Capacity+1e-6 || s.Waiting < 0 {
				t.Fatalf("seed %d: %+v", seed, s)
			}
			income := c.Share*float64(deposited) + c.Floor*now.Sub(noon).Seconds() + 1e-6
			if float64(granted-refunded) > income+max(1, 5*c.Floor*(1+10*c.Share)) {
				t.Fatalf("seed %d: %d granted of %v earned", seed, granted, income)
			}
		}
		limit := highest.Limit*10 + max(1, highest.Limit/4) + 1
		for i, j := 0, 0; i < len(starts); i++ {
			for starts[i].Sub(starts[j]) > 10*time.Second {
				j++
			}
			if float64(i-j+1) > limit {
				t.Fatalf("seed %d: %d retries in 10 s, want at most %v", seed, i-j+1, limit)
			}
		}
	}
}

func TestClockThatSteps(t *testing.T) {
	b := newBudget(t, Queue())
	now := noon
	empty(b, now)
	for _, step := range []time.Duration{-time.Second, -time.Hour, -24 * 365 * time.Hour, math.MinInt64} {
		now = now.Add(step)
		if got := take(b, now); got > 0 {
			t.Errorf("%d tokens after a step of %v", got, step)
		}
		now = now.Add(2 * time.Second)
		if got := take(b, now); got < 1 || got > 2 {
			t.Errorf("%d tokens 2 s after a step of %v, want 1 or 2", got, step)
		}
		empty(b, now)
	}
	for _, step := range []time.Duration{20 * time.Minute, 24 * 365 * time.Hour, math.MaxInt64} {
		now = now.Add(step)
		if s := b.Snapshot(now); s.Tokens != s.Capacity || s.Waiting != 0 {
			t.Errorf("%+v after a step of %v, want a full budget", s, step)
		}
		take(b, now)
	}
}

// After a pause in which all that is known has passed, a budget is as new.
func TestBeginsAnewAfterAPause(t *testing.T) {
	b := newBudget(t, Queue())
	now := noon
	fresh := b.Snapshot(now)
	for range 1000 { // retries fail, and many wait
		now = now.Add(time.Second)
		for range 20 {
			b.Withdraw(now, time.Hour, 0.5)
		}
	}
	if s := b.Snapshot(now); s.Limit >= fresh.Limit || s.Waiting == 0 {
		t.Fatalf("before the pause: %+v", s)
	}
	now = now.Add(20 * time.Minute)
	if s := b.Snapshot(now); s.Limit != fresh.Limit || s.Tokens != fresh.Tokens || s.Waiting != 0 {
		t.Errorf("after the pause: %+v, want what it was at first: %+v", s, fresh)
	}
	empty(b, now)
	wait, _ := b.Withdraw(now, time.Hour, 0.5)
	if s := b.Snapshot(now.Add(wait + time.Second)); s.Waiting != 0 {
		t.Errorf("%d still wait that were due %v after the pause", s.Waiting, wait)
	}
}

func TestRandomThatIsNone(t *testing.T) {
	b := newBudget(t, Queue())
	now := noon
	empty(b, now)
	for _, random := range []float64{math.NaN(), math.Inf(1), -1, 1, 7} {
		if wait, ok := b.Withdraw(now, time.Minute, random); ok || wait <= 0 || wait > time.Minute {
			t.Errorf("with %v: %v, %v", random, wait, ok)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	b := newBudget(t, Mesh())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 1000 {
				now := noon.Add(time.Duration(j) * 10 * time.Millisecond)
				b.Deposit(now, i)
				if _, ok := b.Withdraw(now, time.Minute, 0.5); ok {
					b.Refund(now)
				}
				b.Snapshot(now)
			}
		})
	}
	wg.Wait()
	if s := b.Snapshot(noon); s.Granted+s.Deferred != 8000 || s.Granted != s.Refunded {
		t.Errorf("snapshot %+v, want 8000 asks", s)
	}
}
