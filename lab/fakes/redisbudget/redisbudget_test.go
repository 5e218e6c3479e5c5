package redisbudget_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/retry/budget"
)

// TestFewRetriesAreNotHeldUp has a healthy fleet in which a retry comes now and
// then.
func TestFewRetriesAreNotHeldUp(t *testing.T) {
	onFleet(t, 1, 5, budget.Queue(), func(t *testing.T, f *fleet) {
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
	})
}

// TestOneWorkerGetsThePool has one worker of ten with all the retries.
func TestOneWorkerGetsThePool(t *testing.T) {
	onFleet(t, 2, 10, budget.Config{Share: 0.1, Floor: 7}, func(t *testing.T, f *fleet) {
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
	})
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
			onFleet(t, 13, 3, budget.Queue(), func(t *testing.T, f *fleet) {
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
		})
	}
}

// lease has worker i ask 2n times between two reports, until it has n leases
// at hand.
func (f *fleet) lease(i, n int) {
	f.Helper()
	for range 10 {
		for range 2 * n {
			f.withdraw(i)
		}
		f.pass(interval)
		f.deposit(i, 1)
		synctest.Wait()
		if f.statusOf(i).Leased >= n {
			return
		}
	}
	f.Fatalf("worker %d: %+v, want %d leases", i, f.statusOf(i), n)
}

func TestLeaseAtHandMakesNoCall(t *testing.T) {
	onFleet(t, 4, 1, budget.Mesh(), func(t *testing.T, f *fleet) {
		f.lease(0, 10)
		before := f.statusOf(0)
		f.withdraw(0)
		synctest.Wait()
		if after := f.statusOf(0); after.RoundTrips != before.RoundTrips || after.Leased != before.Leased-1 {
			t.Errorf("status %+v, then %+v; want one lease less and no round trip", before, after)
		}
		f.pass(10 * time.Second)
		if s := f.statusOf(0); s.Leased != 0 {
			t.Errorf("%d leases after 10 s, want none", s.Leased)
		}
	})
}

// TestLeasesGoBack has a worker that stops asking: the server gets its tokens,
// for another one.
func TestLeasesGoBack(t *testing.T) {
	onFleet(t, 5, 2, budget.Config{Share: 0.1, Floor: 10}, func(t *testing.T, f *fleet) {
		f.pass(30 * time.Second)
		f.lease(0, 8)
		report := func() {
			f.pass(interval)
			f.deposit(0, 1)
			f.deposit(1, 1)
			synctest.Wait()
		}
		leased := f.statusOf(0).Leased
		f.server.HSet(key, "tokens", "0")
		report()
		report()
		kept := f.statusOf(0).Leased
		if kept == 0 || kept > leased/4 {
			t.Errorf("%d of %d leases are kept after two reports, want a quarter", kept, leased)
		}
		tokens, err := strconv.ParseFloat(f.server.HGet(key, "tokens"), 64)
		const earned = 10*4 + 0.1*4 // of the floor in 4 s, and of 4 deliveries
		if want := float64(leased-kept) + earned; err != nil || math.Abs(tokens-want) > 0.5 {
			t.Errorf("%v tokens in the pool, %v, want the %d that went back and %v", tokens, err, leased-kept, earned)
		}
	})
}

func TestRefundGivesTheTokenBack(t *testing.T) {
	onFleet(t, 5, 1, budget.Config{Share: 0.001, Floor: 0.1}, func(t *testing.T, f *fleet) {
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
	})
}

func TestNowOrNever(t *testing.T) {
	onFleet(t, 6, 1, budget.Config{Share: 0.1, Floor: 0.01}, func(t *testing.T, f *fleet) {
		w := f.workers[0]
		for range 10 {
			f.withdraw(0)
		}
		before := w.Snapshot(f.clock(0)).Waiting
		wait, ok := w.Withdraw(f.clock(0), 0, 0.5)
		if after := w.Snapshot(f.clock(0)).Waiting; ok || wait != 0 || after != before {
			t.Errorf("Withdraw = %v, %v, and %d more in the line, want no wait", wait, ok, after-before)
		}
	})
}

func TestSnapshotAndStatus(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, generator(t, 9), 4, budget.Mesh())
		w := f.workers[0]
		s := f.statusOf(0)
		if s.Fleet || s.Err == nil || s.RoundTrips != 0 {
			t.Errorf("status before the first use: %+v", s)
		}
		if got := w.Snapshot(f.clock(0)).Capacity; math.Abs(got-37.5) > 1 { // a quarter of 150
			t.Errorf("capacity %v without Redis, want 37.5", got)
		}
		f.join()
		f.pass(20 * time.Second)
		f.deposit(0, 1)
		synctest.Wait()
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
		synctest.Wait()
		f.deposit(1, 1)
		synctest.Wait()
		if other := f.workers[1].Snapshot(f.clock(1)).Waiting; other < 300 {
			t.Errorf("another worker knows of %d that wait, want most of %d", other, got.Waiting)
		}
	})
}

func TestKey(t *testing.T) {
	onFleet(t, 10, 2, budget.Queue(), func(t *testing.T, f *fleet) {
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
		const lines = 15*60/8 + 2 // the longest wait, in buckets of 8 s
		if fields, _ := f.server.HKeys(key); len(fields) > 20+2+lines {
			t.Errorf("%d fields after a while: %q", len(fields), fields)
		}
	})
}

// TestClockOfTheServer has the server's clock set, back and forth.
func TestClockOfTheServer(t *testing.T) {
	onFleet(t, 11, 3, budget.Queue(), func(t *testing.T, f *fleet) {
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
	})
}

func TestConcurrentUse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newFleet(t, generator(t, 12), 1, budget.Mesh()).workers[0]
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
	})
}
