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

	"github.com/redrive-go/redrive/internal/fault"
	"github.com/redrive-go/redrive/retry/budget"
)

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
		{"default window", client, func(c *Config) { c.Budget.Window = 0 }, nil},
		{"limits", client, func(c *Config) {
			c.Name, c.Workers, c.Budget = strings.Repeat("ü", 128), 10_000, budget.Config{Share: 1, Floor: math.MaxFloat64, Window: 24 * time.Hour}
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
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return []string{strings.TrimPrefix(e.Package+"."+e.Field, "budget.Config.")}
	}
	return nil
}

func TestConfigErrorSaysWhatToDo(t *testing.T) {
	_, err := New(clientOf(t, "127.0.0.1:1"), Config{Name: "payments", Budget: budget.Queue()})
	const want = "redisbudget: Config.Workers: is 0: say how many workers the fleet has at most, 1 to 10000"
	if err == nil || err.Error() != want {
		t.Errorf("error\n%v, want\n%s", err, want)
	}
}

// TestRoomKeepsItsTime has a fleet with few retries: hardly one is moved, and by
// no more than it takes to spare a round trip.
func TestRoomKeepsItsTime(t *testing.T) {
	rng := generator(t, 1)
	f := newFleet(t, rng, 5, budget.Config{Share: 0.2, Floor: 20, Window: 10 * time.Second})
	f.join()
	kept, all := 0, 0
	for range 600 {
		for i := range f.workers {
			if rng.IntN(4) == 0 {
				delay := time.Duration(rng.Int64N(int64(time.Second) << rng.IntN(9)))
				moved := f.reserve(i, delay)
				if width := f.workers[i].width; moved > 3*width+delay/8 {
					t.Errorf("a retry due in %v was moved by %v", delay, moved)
				}
				if all++; moved == 0 {
					kept++
				}
			}
		}
		f.pass(500 * time.Millisecond)
	}
	if kept < all*9/10 {
		t.Errorf("%d of %d retries kept their time, want nine of ten", kept, all)
	}
	f.check(200)
}

// TestOneWorkerGetsThePool has one worker of ten with all the retries.
func TestOneWorkerGetsThePool(t *testing.T) {
	rng := generator(t, 2)
	f := newFleet(t, rng, 10, budget.Config{Share: 0.1, Floor: 7, Window: 10 * time.Second})
	f.join()
	const perTick, ticks = 10, 600 // 100 deliveries a second and worker
	for range ticks {
		for i, w := range f.workers {
			w.Delivered(f.clock(i), perTick)
		}
		for range 20 {
			f.reserve(0, time.Duration(rng.Int64N(int64(time.Second))))
		}
		f.pass(100 * time.Millisecond)
	}
	const limit = 1000 + 70
	f.check(limit)
	if n, _ := most(f.started, 10*time.Second, f.now, f.now.Add(time.Minute)); n < limit*2/5 || n > limit*2/3 {
		t.Errorf("the busy worker has %d retries in a window, want about half of %d", n, limit)
	}
}

func TestBurstTakesFewCalls(t *testing.T) {
	f := newFleet(t, generator(t, 3), 1, budget.Config{Share: 0.1, Floor: 100, Window: 10 * time.Second})
	f.join()
	before := f.workers[0].Status(f.clock(0)).RoundTrips
	for range 2000 {
		f.reserve(0, time.Second)
	}
	f.pass(0)
	if trips := f.workers[0].Status(f.clock(0)).RoundTrips - before; trips > 10 {
		t.Errorf("2000 retries took %d round trips, want 10 at most", trips)
	}
	f.check(1000)
	if n, _ := most(f.started, 10*time.Second, f.now, f.now.Add(20*time.Second)); n < 800 {
		t.Errorf("%d retries in the first windows, want the most of 1000", n)
	}
}

// TestLoadTakesFewCalls has from 10 retries a second and worker on, within the
// budget and beyond it.
func TestLoadTakesFewCalls(t *testing.T) {
	const workers, seconds = 3, 40
	for _, tt := range []struct {
		deliveries, retries int // of a worker in a tenth of a second
		delay               time.Duration
	}{
		{10, 1, time.Second},
		{10, 1, 15 * time.Minute},
		{1, 1, time.Minute},
		{20, 10, time.Minute},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			rng := generator(t, 13)
			f := newFleet(t, rng, workers, budget.Queue())
			f.join()
			work := func() {
				for range seconds * 10 {
					for i, w := range f.workers {
						w.Delivered(f.clock(i), tt.deliveries)
						for range tt.retries {
							f.reserve(i, time.Duration(rng.Int64N(int64(tt.delay))))
						}
					}
					f.pass(100 * time.Millisecond)
				}
			}
			work()
			_, trips, retries := f.status()
			work()
			_, tripsAfter, retriesAfter := f.status()
			share := float64(tripsAfter-trips) / float64(retriesAfter-retries)
			t.Logf("%.4f round trips for a retry", share)
			if share > 0.01 {
				t.Errorf("%.4f round trips for a retry, want at most 0.01", share)
			}
		})
	}
}

// TestPoolFollowsTraffic looks at the limit of the pool after a rise of traffic,
// and after a fall.
func TestPoolFollowsTraffic(t *testing.T) {
	f := newFleet(t, generator(t, 14), 5, budget.Config{Share: 0.2, Floor: 10, Window: 10 * time.Second})
	f.join()
	work := func(d time.Duration, n int) (limit int64) {
		for range d / (100 * time.Millisecond) {
			for i, w := range f.workers {
				w.Delivered(f.clock(i), n)
				f.reserve(i, time.Second)
			}
			f.pass(100 * time.Millisecond)
		}
		a, err := f.workers[0].lease(t.Context(), request{epoch: f.workers[0].epoch, seat: f.workers[0].seat})
		if err != nil {
			t.Fatal(err)
		}
		return a.limit
	}
	const floor = 100 / 2
	const ticks = 5 * 20 / 10 // a tick of each worker may count in the slot before or after, by its clock
	work(time.Minute, 0)
	if got := work(30*time.Second, 20); got < floor+1000*9/10 || got > floor+1000+ticks { // 1000 deliveries a second
		t.Errorf("the pool allows %d in a window, 3 windows after a rise, want %d", got, floor+1000)
	}
	if got := work(30*time.Second, 0); got != floor {
		t.Errorf("the pool allows %d in a window, 3 windows after a fall, want %d", got, floor)
	}
}

func TestLeaseAtHandMakesNoCall(t *testing.T) {
	f := newFleet(t, generator(t, 4), 1, budget.Mesh())
	f.join()
	f.reserve(0, time.Second)
	for f.pass(0); f.workers[0].Status(f.clock(0)).Leased < minBatch; f.pass(0) {
		f.reserve(0, time.Second)
	}
	before := f.workers[0].Status(f.clock(0))
	f.reserve(0, time.Second)
	if after := f.workers[0].Status(f.clock(0)); after.RoundTrips != before.RoundTrips || after.Leased != before.Leased-1 {
		t.Errorf("status %+v, then %+v; want one lease less and no round trip", before, after)
	}
}

func TestRefund(t *testing.T) {
	f := newFleet(t, generator(t, 5), 1, budget.Config{Share: 0.1, Floor: 1, Window: 10 * time.Second})
	w := f.workers[0]
	var slots []time.Time
	for range 4 {
		slots = append(slots, w.Reserve(noon, noon))
	}
	used := w.Snapshot(noon).Used
	w.Refund(noon, slots[1])
	if got := w.Snapshot(noon).Used; got != used-1 {
		t.Errorf("%d used after a refund, want %d", got, used-1)
	}
	if got := w.Reserve(noon, noon); w.slot(w.clock(got)) != w.slot(w.clock(slots[1])) {
		t.Errorf("the next retry goes to %v, want the slot of %v that was given back", got.Sub(noon), slots[1].Sub(noon))
	}
	for _, useless := range []time.Time{noon.Add(-time.Minute), noon.Add(1000 * time.Hour), {}} {
		w.Refund(noon, useless)
	}
	if got := w.Snapshot(noon).Used; got != used {
		t.Errorf("%d used after useless refunds, want %d", got, used)
	}
}

func TestRefundOfALease(t *testing.T) {
	f := newFleet(t, generator(t, 6), 1, budget.Mesh())
	f.join()
	w, now := f.workers[0], f.clock(0)
	for w.Status(now).Leased == 0 {
		f.reserve(0, time.Minute)
		w.idle()
	}
	slot := w.Reserve(now, now.Add(time.Minute))
	w.idle()
	before := w.Status(now).Leased
	w.Refund(now, slot)
	if got := w.Status(now).Leased; got != before+1 {
		t.Errorf("%d leases at hand after a refund, want %d", got, before+1)
	}
}

func TestFarRetriesKeepTheirTime(t *testing.T) {
	f := newFleet(t, generator(t, 7), 1, budget.Queue())
	w := f.workers[0]
	for _, delay := range []time.Duration{8 * time.Hour, 1000 * time.Hour, math.MaxInt64} {
		due := noon.Add(delay)
		if got := w.Reserve(noon, due); !got.Equal(due) {
			t.Errorf("a retry due in %v was moved by %v", delay, got.Sub(due))
		}
	}
	if s := w.Snapshot(noon); s.Unpaced != 3 || s.Used != 0 {
		t.Errorf("snapshot %+v, want 3 unpaced", s)
	}
}

func TestNoRoomWithinTheHorizon(t *testing.T) {
	f := newFleet(t, generator(t, 8), 1, budget.Config{Share: 0.1, Floor: 0.7, Window: 10 * time.Second})
	w := f.workers[0]
	w.Reserve(noon, noon)
	for s := range int64(horizon) {
		w.slots.at(w.current + s).local = math.MaxUint16
	}
	w.reopen()
	var last time.Time
	seen := map[time.Time]bool{}
	for w.Snapshot(noon).Unpaced < 100 {
		last = w.Reserve(noon, noon)
		if seen[last] {
			t.Fatalf("two retries at %v", last.Sub(noon))
		}
		seen[last] = true
	}
	if ahead, edge := last.Sub(noon), horizon*w.width; ahead < edge || ahead > 2*edge {
		t.Errorf("an unpaced retry goes %v ahead, want between %v and twice that", ahead, edge)
	}
}

func TestSnapshotAndStatus(t *testing.T) {
	f := newFleet(t, generator(t, 9), 4, budget.Config{Share: 0.2, Floor: 10, Window: 10 * time.Second})
	w := f.workers[0]
	f.skew[0] = 0
	s := w.Status(noon)
	if s.Fleet || s.Err == nil || s.RoundTrips != 0 {
		t.Errorf("status before the first use: %+v", s)
	}
	if got, want := w.Snapshot(noon).Limit, 13; got != want { // a quarter of half of 100, rounded up
		t.Errorf("limit %d without Redis, want %d", got, want)
	}
	f.join()
	now := f.clock(0)
	if got := w.Snapshot(now).Limit; got < 13+50 {
		t.Errorf("limit %d in the fleet, want at least %d", got, 13+50)
	}
	got := w.Reserve(now, now.Add(time.Minute))
	w.idle()
	snap, status := w.Snapshot(now), w.Status(now)
	if !status.Fleet || status.Err != nil || status.Reserved != 1 || status.RoundTrips < 4 {
		t.Errorf("status %+v", status)
	}
	if apart := got.Sub(snap.Furthest).Abs(); apart > time.Second {
		t.Errorf("furthest %v, want %v", snap.Furthest, got)
	}
	f.pass(2 * time.Minute)
	if snap := w.Snapshot(f.clock(0)); !snap.Furthest.IsZero() || snap.Used != 0 {
		t.Errorf("snapshot %+v two minutes later, want nothing ahead", snap)
	}
}

func TestKey(t *testing.T) {
	f := newFleet(t, generator(t, 10), 2, budget.Queue())
	f.join()
	f.reserve(0, time.Minute)
	f.pass(0)
	const key = "redrive:budget:{payments}"
	if keys := f.server.Keys(); !slices.Equal(keys, []string{key}) {
		t.Fatalf("keys %q, want %q alone", keys, key)
	}
	if ttl := f.server.TTL(key); ttl < 7*time.Hour || ttl > 8*time.Hour {
		t.Errorf("the key expires after %v, want 7.6 h", ttl)
	}
	// What is past is removed while the fleet goes on.
	for range 200 {
		f.pass(10 * time.Second)
		f.workers[0].Delivered(f.clock(0), 5)
		f.reserve(0, time.Minute)
	}
	f.pass(0)
	if fields, _ := f.server.HKeys(key); len(fields) > 100 {
		t.Errorf("%d fields after a while, want few: %q", len(fields), fields)
	}
}

func TestClockOfTheServer(t *testing.T) {
	for _, apart := range []time.Duration{-20_000 * time.Hour, -time.Hour, time.Hour, 20_000 * time.Hour} {
		t.Run(apart.String(), func(t *testing.T) {
			f := newFleet(t, generator(t, 11), 3, budget.Mesh())
			for i := range f.skew {
				f.skew[i] = -apart
			}
			f.join()
			for range 100 {
				for i, w := range f.workers {
					w.Delivered(f.clock(i), 10)
					f.reserve(i, 2*time.Second)
				}
				f.pass(100 * time.Millisecond)
			}
			f.check(100 + 600)
			if s := f.workers[0].Status(f.clock(0)); (s.ClockAhead - apart).Abs() > 5*time.Second {
				t.Errorf("status %+v, want the clock ahead by %v", s, apart)
			}
		})
	}
}

// TestServerClockIsSet moves the server's clock under a worker that has leases.
func TestServerClockIsSet(t *testing.T) {
	f := newFleet(t, generator(t, 12), 2, budget.Mesh())
	f.join()
	for range 200 {
		f.reserve(0, 10*time.Second)
	}
	f.pass(0)
	ahead := f.workers[0].Snapshot(f.clock(0)).Furthest.Sub(f.clock(0))
	for i := range f.skew {
		f.skew[i] -= time.Hour
	}
	f.now = f.now.Add(time.Hour)
	f.pass(0)
	f.join()
	f.pass(20 * time.Second)
	f.join()
	got := f.workers[0].Snapshot(f.clock(0)).Furthest.Sub(f.clock(0))
	if want := ahead - f.now.Sub(noon) + time.Hour; got > ahead || got < ahead-2*time.Minute {
		t.Errorf("the retries end in %v after an hour was skipped, want about %v", got, want)
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
				b.Delivered(now, i)
				if slot := b.Reserve(now, now.Add(time.Second)); j%7 == 0 {
					b.Refund(now, slot)
				}
				b.Snapshot(now)
				b.Status(now)
			}
		})
	}
	wg.Wait()
	if s := b.Status(start); s.Reserved != 8*300 {
		t.Errorf("%d reserved, want %d", s.Reserved, 8*300)
	}
}
