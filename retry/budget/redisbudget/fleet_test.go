package redisbudget

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func generator(t testing.TB, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// idle waits until no call is under way, and every report is made.
func (b *Budget) idle() { b.running.Wait() }

// quiet drops what go-redis logs of servers that are down.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// clientOf has so large a pool that go-redis goes on dialling a server that is
// down: in virtual time, its pauses in real time would be long.
func clientOf(t testing.TB, address string) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: address, DialerRetries: 1, PoolSize: 10_000})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newBudget(t testing.TB, client redis.UniversalClient, c Config) *Budget {
	t.Helper()
	b, err := New(client, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.idle)
	return b
}

// fleet is some workers on a miniredis, in virtual time: now is the server's
// clock, and each worker's is off by its skew.
type fleet struct {
	*testing.T
	server  *miniredis.Miniredis
	now     time.Time
	config  Config
	workers []*Budget
	skew    []time.Duration
	started []time.Time // retries, by the server's clock
}

func newFleet(t *testing.T, rng *rand.Rand, n int, c budget.Config) *fleet {
	f := &fleet{T: t, server: miniredis.RunT(t), now: noon, config: Config{Name: "payments", Budget: c, Workers: n}}
	f.server.SetTime(f.now)
	for range n {
		w := newBudget(t, clientOf(t, f.server.Addr()), f.config)
		w.patience = time.Minute // a busy machine is no fault of Redis
		f.workers = append(f.workers, w)
		f.skew = append(f.skew, time.Duration(rng.Int64N(int64(2*time.Hour)))-time.Hour)
	}
	return f
}

func (f *fleet) clock(i int) time.Time { return f.now.Add(f.skew[i]) }

func (f *fleet) pass(d time.Duration) {
	for _, w := range f.workers {
		w.idle()
	}
	f.now = f.now.Add(d)
	f.server.SetTime(f.now)
	f.server.FastForward(d)
}

func (f *fleet) reserve(i int, delay time.Duration) time.Duration {
	now := f.clock(i)
	due := now.Add(delay)
	got := f.workers[i].Reserve(now, due)
	if got.Before(due) {
		f.Fatalf("worker %d: Reserve returned %v before the due time", i, due.Sub(got))
	}
	f.started = append(f.started, got.Add(-f.skew[i]))
	return got.Sub(due)
}

// join lets every worker in.
func (f *fleet) join() {
	f.Helper()
	for range 60 {
		in := 0
		for i, w := range f.workers {
			w.Delivered(f.clock(i), 1)
			w.idle()
			if w.Status(f.clock(i)).Fleet {
				in++
			}
		}
		if in == len(f.workers) {
			return
		}
		f.pass(time.Second)
	}
	for i, w := range f.workers {
		if s := w.Status(f.clock(i)); !s.Fleet {
			f.Errorf("worker %d is not in the fleet: %+v", i, s)
		}
	}
	f.FailNow()
}

// most returns the most retries in any span of a window that begins at from or
// later and ends before to.
func most(started []time.Time, window time.Duration, from, to time.Time) (most int, at time.Time) {
	sorted := slices.SortedFunc(slices.Values(started), time.Time.Compare)
	first := 0
	for i, s := range sorted {
		if s.Before(from) {
			first = i + 1
			continue
		}
		if !s.Before(to) {
			break
		}
		for s.Sub(sorted[first]) >= window {
			first++
		}
		if n := i - first + 1; n > most {
			most, at = n, sorted[first]
		}
	}
	return most, at
}

func (f *fleet) check(limit int) {
	f.Helper()
	n, at := most(f.started, f.config.Budget.Window, noon, noon.Add(1000*time.Hour))
	f.Logf("at most %d retries in a window from %v, limit %d", n, at.Sub(noon), limit)
	if n > limit {
		f.Errorf("%d retries in the window from %v, want at most %d", n, at.Sub(noon), limit)
	}
}

func (f *fleet) status() (fleet int, trips, reserved uint64) {
	for i, w := range f.workers {
		s := w.Status(f.clock(i))
		if s.Fleet {
			fleet++
		}
		trips += s.RoundTrips
		reserved += s.Reserved
	}
	return fleet, trips, reserved
}

// TestFleetKeepsItsBudget has twenty workers with clocks of their own, whose
// messages fail more and more, while Redis is killed and comes back empty.
func TestFleetKeepsItsBudget(t *testing.T) {
	for seed, c := range []budget.Config{
		{Share: 0.1, Floor: 1, Window: 10 * time.Second},
		{Share: 0.2, Floor: 10, Window: 10 * time.Second},
		{Share: 0.2, Floor: 12, Window: 4 * time.Second},
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := generator(t, uint64(seed))
			f := newFleet(t, rng, 20, c)
			f.join()
			const step, perStep = 100 * time.Millisecond, 2 // deliveries of a worker
			for i := range 1200 {
				switch i {
				case 400:
					f.server.Close()
				case 600:
					f.server.FlushAll()
					if err := f.server.Restart(); err != nil {
						t.Fatal(err)
					}
				}
				for j, w := range f.workers {
					w.Delivered(f.clock(j), perStep)
					for range rng.IntN(1 + min(i, 800)/130) {
						if rng.IntN(20) < j { // some fail more
							f.reserve(j, time.Duration(rng.Int64N(int64(time.Second)<<rng.IntN(7))))
						}
					}
				}
				if i%300 == 299 {
					in, trips, reserved := f.status()
					t.Logf("after %v: %d in the fleet, %d trips, %d retries", time.Duration(i)*step, in, trips, reserved)
				}
				f.pass(step)
			}
			perWindow := float64(20*perStep) * c.Window.Seconds() / step.Seconds()
			f.check(int(c.Share*perWindow + c.Floor*c.Window.Seconds()))
			if in, _, _ := f.status(); in != 20 {
				t.Errorf("%d workers are in the fleet after Redis came back, want 20", in)
			}
		})
	}
}
