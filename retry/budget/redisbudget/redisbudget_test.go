package redisbudget

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
)

var _ budget.Pacer = (*Budget)(nil)

func TestNewReportsAllFaults(t *testing.T) {
	client := clientOf(t, "127.0.0.1:1")
	ok := Config{Name: "payments", Budget: budget.Queue(), Workers: 20}
	tests := []struct {
		name   string
		client redis.UniversalClient
		change func(*Config)
		want   []string // fields, in order
	}{
		{"fine", client, func(*Config) {}, nil},
		{"limits", client, func(c *Config) {
			c.Name, c.Workers, c.Budget = strings.Repeat("ü", 128), 10_000, budget.Config{Share: 1, Floor: 1e6}
		}, nil},
		{"no client", nil, func(*Config) {}, []string{"client"}},
		{"no name", client, func(c *Config) { c.Name = "" }, []string{"Config.Name"}},
		{"long name", client, func(c *Config) { c.Name = strings.Repeat("x", 257) }, []string{"Config.Name"}},
		{"braces", client, func(c *Config) { c.Name = "a{b}" }, []string{"Config.Name"}},
		{"control characters", client, func(c *Config) { c.Name = "a\r\nb" }, []string{"Config.Name"}},
		{"negative workers", client, func(c *Config) { c.Workers = -1 }, []string{"Config.Workers"}},
		{"too many workers", client, func(c *Config) { c.Workers = 10_001 }, []string{"Config.Workers"}},
		{"share in percent", client, func(c *Config) { c.Budget.Share = 10 }, []string{"Share"}},
		{"everything", nil, func(c *Config) { *c = Config{} }, []string{"client", "Share", "Floor", "Config.Name", "Config.Workers"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := ok
			tt.change(&c)
			b, err := New(tt.client, c)
			if (b == nil) != (err != nil) {
				t.Fatalf("New = %v, %v", b, err)
			}
			if got := fields(err); !slices.Equal(got, tt.want) {
				t.Errorf("faults in %q, want %q: %v", got, tt.want, err)
			}
		})
	}
}

// fields are those that an error finds fault with.
func fields(err error) []string {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var found []string
		for _, e := range all.Unwrap() {
			found = append(found, fields(e)...)
		}
		return found
	}
	if e, ok := errors.AsType[*ConfigError](err); ok {
		return []string{e.Field}
	}
	if e, ok := errors.AsType[*budget.ConfigError](err); ok {
		return []string{e.Field}
	}
	return nil
}

// TestFewRetriesAreNotHeldUp has a healthy fleet in which a retry comes now and
// then.
func TestFewRetriesAreNotHeldUp(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 1), 5, budget.Queue())
	f.join()
	f.pass(10 * time.Second)
	for range 300 {
		for i := range f.workers {
			f.deposit(i, 2)
			if f.rng.IntN(50) == 0 {
				if wait, ok := f.withdraw(i); !ok {
					t.Errorf("a retry waits for %v", wait)
				}
			}
		}
		f.pass(500 * time.Millisecond)
	}
}

// TestOneWorkerGetsThePool has one worker of ten with all the retries.
func TestOneWorkerGetsThePool(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 2), 10, budget.Config{Share: 0.1, Floor: 7})
	f.join()
	for range 600 {
		for i := range f.workers {
			f.deposit(i, 10) // 100 a second
		}
		for range 20 {
			f.withdraw(0)
		}
		f.pass(100 * time.Millisecond)
	}
	const earned = 60 * (100 + 7)
	f.check(2 * 1070)
	if n := len(f.started); n < earned*9/10 {
		t.Errorf("the busy worker has %d retries, want nearly all of %d", n, earned)
	}
}

// TestLoadTakesFewCalls has 10 and 100 retries a second and worker, within the
// budget and beyond it.
func TestLoadTakesFewCalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		deliveries, retries int // of a worker in a tenth of a second
		want                float64
	}{{20, 1, 0.1}, {200, 10, 0.01}, {10, 10, 0.03}} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, generator(t, 13), 3, budget.Queue())
			f.join()
			work := func() {
				for range 200 {
					for i := range f.workers {
						f.deposit(i, tt.deliveries)
						for range tt.retries {
							f.withdraw(i)
						}
					}
					f.pass(100 * time.Millisecond)
				}
			}
			work()
			_, before := f.status()
			asks := f.asks
			work()
			_, after := f.status()
			share := float64(after-before) / float64(f.asks-asks)
			t.Logf("%.4f round trips for an ask", share)
			if share > tt.want {
				t.Errorf("%.4f round trips for an ask, want at most %v", share, tt.want)
			}
		})
	}
}

func TestLeaseAtHandMakesNoCall(t *testing.T) {
	f := newFleet(t, generator(t, 4), 1, budget.Mesh())
	f.join()
	w := f.workers[0]
	w.leased, w.batch = 10, 10
	before := w.Status(f.clock(0))
	f.withdraw(0)
	w.idle()
	if after := w.Status(f.clock(0)); after.RoundTrips != before.RoundTrips || after.Leased != before.Leased-1 {
		t.Errorf("status %+v, then %+v; want one lease less and no round trip", before, after)
	}
	f.pass(10 * time.Second)
	if s := w.Status(f.clock(0)); s.Leased != 0 {
		t.Errorf("%d leases after 10 s, want none", s.Leased)
	}
}

// TestLeasesGoBack has a worker that stops asking: another one gets its tokens.
func TestLeasesGoBack(t *testing.T) {
	f := newFleet(t, generator(t, 5), 2, budget.Queue())
	f.join()
	w := f.workers[0]
	w.leased, w.batch = 8, 8
	f.server.HSet(w.key, "tokens", "0")
	for range 2 {
		f.pass(interval)
		f.deposit(0, 1)
		f.deposit(1, 1)
	}
	f.pass(0)
	if s := w.Status(f.clock(0)); s.Leased != 2 {
		t.Errorf("%d of 8 leases are kept after two reports, want 2", s.Leased)
	}
	if got := max(w.pool.tokens, f.workers[1].pool.tokens); got < 9.9 || got > 11 {
		t.Errorf("%v tokens in the pool, want 4 s of the floor and 6", got)
	}
}

func TestRefundGivesTheTokenBack(t *testing.T) {
	f := newFleet(t, generator(t, 5), 1, budget.Config{Share: 0.001, Floor: 0.1})
	f.join()
	for range 100 {
		if _, ok := f.withdraw(0); ok {
			f.refund(0)
		}
		f.pass(time.Second)
	}
	if n := len(f.started); n < 60 {
		t.Errorf("%d retries that succeed in 100 s, want about one a second", n)
	}
	f.check(2)
}

func TestNowOrNever(t *testing.T) {
	f := newFleet(t, generator(t, 6), 1, budget.Config{Share: 0.1, Floor: 0.01})
	f.join()
	w := f.workers[0]
	for range 10 {
		f.withdraw(0)
	}
	before := w.deferred
	if wait, ok := w.Withdraw(f.clock(0), 0, 0.5); ok || wait != 0 || w.deferred != before {
		t.Errorf("Withdraw = %v, %v, and %d in the line, want no wait", wait, ok, w.deferred-before)
	}
}

func TestSnapshotAndStatus(t *testing.T) {
	f := newFleet(t, generator(t, 9), 4, budget.Mesh())
	w := f.workers[0]
	s := w.Status(f.clock(0))
	if s.Fleet || s.Err == nil || s.RoundTrips != 0 {
		t.Errorf("status before the first use: %+v", s)
	}
	if got := w.Snapshot(f.clock(0)).Capacity; math.Abs(got-37.5) > 1 { // a quarter of 150
		t.Errorf("capacity %v without Redis, want 37.5", got)
	}
	f.join()
	f.pass(20 * time.Second)
	f.deposit(0, 1)
	w.idle()
	if got := w.Snapshot(f.clock(0)); math.Abs(got.Capacity-150) > 1 || math.Abs(got.Limit-110) > 1 || got.Tokens < 100 {
		t.Errorf("%+v in the fleet, want a capacity of 150, and 110 a second", got)
	}
	for range 1000 {
		if _, ok := f.withdraw(0); ok && f.rng.IntN(2) == 0 {
			f.refund(0)
		}
	}
	got := w.Snapshot(f.clock(0))
	if got.Granted != uint64(len(f.started)) || got.Refunded != uint64(f.refunded) || got.Granted+got.Deferred != 1000 || got.Waits <= 0 {
		t.Errorf("%+v, want %d granted, %d refunded", got, len(f.started), f.refunded)
	}
	if got.Waiting < 800 {
		t.Errorf("%d waiting, want about %d", got.Waiting, got.Deferred)
	}
	f.pass(2 * time.Second)
	f.deposit(0, 1)
	w.idle()
	f.deposit(1, 1)
	f.workers[1].idle()
	if other := f.workers[1].Snapshot(f.clock(1)).Waiting; other < 300 {
		t.Errorf("another worker knows of %d that wait, want most of %d", other, got.Waiting)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 10), 2, budget.Queue())
	f.join()
	const key = "redrive:budget:{payments}"
	for range 250 {
		f.pass(5 * time.Second)
		f.deposit(0, 5)
		for range 20 {
			f.withdraw(0)
		}
	}
	f.pass(0)
	if keys := f.server.Keys(); !slices.Equal(keys, []string{key}) {
		t.Fatalf("keys %q, want %q alone", keys, key)
	}
	if ttl := f.server.TTL(key); ttl != time.Hour {
		t.Errorf("the key expires after %v, want an hour", ttl)
	}
	if fields, _ := f.server.HKeys(key); len(fields) > 20+2+buckets {
		t.Errorf("%d fields after a while: %q", len(fields), fields)
	}
}

// TestClockOfTheServer has the server's clock set, back and forth.
func TestClockOfTheServer(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 11), 3, budget.Queue())
	f.join()
	for i, step := range []time.Duration{-20_000 * time.Hour, time.Hour, -time.Hour, 20_000 * time.Hour} {
		f.now = f.now.Add(step)
		for j := range f.skew {
			f.skew[j] -= step
		}
		f.pass(0)
		before := len(f.started)
		for range 200 {
			for j := range f.workers {
				f.deposit(j, 1)
				f.withdraw(j)
			}
			f.pass(100 * time.Millisecond)
		}
		if got := len(f.started) - before; got < 40 || got > 80+3*40 {
			t.Errorf("step %d: %d retries in 20 s, want about 80", i, got)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	server := miniredis.RunT(t)
	b := newBudget(t, clientOf(t, server.Addr()), Config{Name: "payments", Budget: budget.Mesh(), Workers: 1, OnError: func(error) {}})
	var wg sync.WaitGroup
	start := time.Now()
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				now := start.Add(time.Duration(j) * 200 * time.Millisecond)
				b.Deposit(now, i)
				if _, ok := b.Withdraw(now, time.Minute, 0.5); ok && j%7 == 0 {
					b.Refund(now)
				}
				b.Snapshot(now)
				b.Status(now)
			}
		})
	}
	wg.Wait()
	if s := b.Snapshot(start); s.Granted+s.Deferred != 8*300 {
		t.Errorf("%+v, want %d asks", s, 8*300)
	}
}
