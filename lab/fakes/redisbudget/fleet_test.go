package redisbudget_test

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/redisbudget"
)

const (
	patience = 40 * time.Millisecond // of a worker with Redis
	interval = 2 * time.Second       // of its reports
	key      = "redrive:budget:{payments}"
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

// quiet drops what go-redis logs of servers that are down.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	debug.SetGCPercent(400) // miniredis makes much garbage for each call of a script
	os.Exit(m.Run())
}

// inBubble runs a test in virtual time, beside others: server and workers are in
// this process, so that a call takes no time unless the test says so.
func inBubble(t *testing.T, test func(*testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// server is a miniredis without a network, which can be gone.
type server struct {
	*miniredis.Miniredis
	gone atomic.Bool
}

func newServer(t *testing.T) *server {
	s := &server{Miniredis: miniredis.NewMiniRedis()}
	t.Cleanup(s.Close)
	return s
}

// stop ends all connections, and refuses new ones until the server is back.
func (s *server) stop() {
	s.gone.Store(true)
	s.Close()
}

func (s *server) back() { s.gone.Store(false) }

func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	if s.gone.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return s.Dial()
}

// client repeats nothing by itself, and has so large a pool that go-redis goes on
// dialling a server that is down.
func (s *server) client(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: s.dial, DialerRetries: 1, PoolSize: 10_000, MinRetryBackoff: -1, MaxRetryBackoff: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// reports collects what OnError is told.
type reports struct {
	mu  sync.Mutex
	all []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err)
}

func (r *reports) take() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

// fleet is some workers on a server, in virtual time: now is the server's clock,
// and each worker's is off by its skew.
type fleet struct {
	*testing.T
	server  *server
	rng     *rand.Rand
	now     time.Time
	config  redisbudget.Config
	told    reports
	workers []*redisbudget.Budget
	clients []*redis.Client
	skew    []time.Duration

	deposited int
	refunded  int
	asks      int
	started   []time.Time // retries, by the server's clock
	line      line
}

func newFleet(t *testing.T, rng *rand.Rand, n int, c budget.Config) *fleet {
	f := &fleet{T: t, server: newServer(t), rng: rng, now: noon}
	f.config = redisbudget.Config{Name: "payments", Budget: c, Workers: n, OnError: f.told.add}
	f.server.SetTime(f.now)
	for range n {
		f.add()
	}
	return f
}

// onFleet runs a test in virtual time on n workers that have joined.
func onFleet(t *testing.T, seed uint64, n int, c budget.Config, test func(*testing.T, *fleet)) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, generator(t, seed), n, c)
		f.join()
		test(t, f)
	})
}

// add has one more worker.
func (f *fleet) add() {
	f.Helper()
	client := f.server.client(f.T)
	w, err := redisbudget.New(client, f.config)
	if err != nil {
		f.Fatal(err)
	}
	f.workers, f.clients = append(f.workers, w), append(f.clients, client)
	f.skew = append(f.skew, time.Duration(f.rng.Int64N(int64(2*time.Hour)))-time.Hour)
}

func (f *fleet) clock(i int) time.Time { return f.now.Add(f.skew[i]) }

func (f *fleet) statusOf(i int) redisbudget.Status { return f.workers[i].Status(f.clock(i)) }

// pass lets the calls end that are under way, and then d go by.
func (f *fleet) pass(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	f.now = f.now.Add(d)
	f.server.SetTime(f.now)
	f.server.FastForward(d)
}

func (f *fleet) deposit(i, n int) {
	f.workers[i].Deposit(f.clock(i), n)
	f.deposited += n
}

func (f *fleet) withdraw(i int) (time.Duration, bool) {
	const most = 15 * time.Minute
	f.asks++
	wait, ok := f.workers[i].Withdraw(f.clock(i), most, f.rng.Float64())
	if ok {
		f.started = append(f.started, f.now)
	} else if wait <= 0 || wait > most {
		f.Fatalf("worker %d: a wait of %v", i, wait)
	}
	return wait, ok
}

func (f *fleet) refund(i int) {
	f.workers[i].Refund(f.clock(i))
	f.refunded++
}

// line is what waits to ask, by time.
type line []ask

type ask struct {
	at     time.Time
	worker int
}

func (l line) Len() int           { return len(l) }
func (l line) Less(i, j int) bool { return l[i].at.Before(l[j].at) }
func (l line) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *line) Push(x any)        { *l = append(*l, x.(ask)) }
func (l *line) Pop() any {
	last := len(*l) - 1
	x := (*l)[last]
	*l = (*l)[:last]
	return x
}

func (f *fleet) queue(i int, after time.Duration) {
	heap.Push(&f.line, ask{f.now.Add(after), i})
}

// serve has what is due ask; what does not get a token goes back to the line,
// and what does and fails after a backoff of up to 10 s.
func (f *fleet) serve(healthy bool) {
	for len(f.line) > 0 && !f.line[0].at.After(f.now) {
		a := heap.Pop(&f.line).(ask)
		wait, ok := f.withdraw(a.worker)
		switch {
		case !ok:
			f.queue(a.worker, wait)
		case healthy:
			f.refund(a.worker)
		default:
			f.queue(a.worker, time.Duration(f.rng.Int64N(int64(10*time.Second))))
		}
	}
}

// join lets every worker in.
func (f *fleet) join() {
	f.Helper()
	for range 60 {
		in := 0
		for i := range f.workers {
			f.deposit(i, 1)
			synctest.Wait()
			if f.statusOf(i).Fleet {
				in++
			}
		}
		if in == len(f.workers) {
			return
		}
		f.pass(time.Second)
	}
	for i := range f.workers {
		if s := f.statusOf(i); !s.Fleet {
			f.Errorf("worker %d is not in the fleet: %+v", i, s)
		}
	}
	f.FailNow()
}

// busiest returns the most retries in any ten seconds.
func (f *fleet) busiest() (most int) {
	first := 0
	for i, s := range f.started {
		for s.Sub(f.started[first]) >= 10*time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// check holds the retries against what was earned, and what is saved up by the
// pool and by the workers, each so often.
func (f *fleet) check(saved float64) {
	f.Helper()
	c := f.config.Budget
	earned := c.Share*float64(f.deposited) + c.Floor*f.now.Sub(noon).Seconds() + float64(f.refunded)
	f.Logf("%d retries, %.0f earned, %.0f saved up; %d asks; at most %d in 10 s", len(f.started), earned, saved, f.asks, f.busiest())
	if float64(len(f.started)) > earned+saved {
		f.Errorf("%d retries, want at most %.0f", len(f.started), earned+saved)
	}
}

func (f *fleet) status() (fleet int, trips uint64) {
	for i := range f.workers {
		s := f.statusOf(i)
		if s.Fleet {
			fleet++
		}
		trips += s.RoundTrips
	}
	return fleet, trips
}

// TestFleetKeepsItsBudget has eight workers with clocks of their own and 200
// deliveries a second, all of whose retries fail, while Redis is killed and
// comes back empty, twice.
func TestFleetKeepsItsBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []budget.Config{budget.Queue(), budget.Mesh(), {Share: 0.01, Floor: 5}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			onFleet(t, 1, 8, c, func(t *testing.T, f *fleet) {
				income := c.Share*200 + c.Floor
				joined, gone := len(f.started), 0
				for i := range 600 {
					switch i {
					case 150, 400:
						f.server.stop()
						gone = len(f.started)
					case 250, 500:
						// What the workers have of their own is no second supply.
						if got := len(f.started) - gone; float64(got) > 1.15*10*income {
							t.Errorf("%d retries in 10 s without Redis, want about %.0f", got, 10*income)
						}
						f.server.FlushAll()
						f.server.back()
					}
					for j := range f.workers {
						n := 2 + (i+j)%2
						f.deposit(j, n)
						for range n {
							if f.rng.IntN(8) < j { // some fail more
								f.queue(j, time.Duration(f.rng.Int64N(int64(5*time.Second))))
							}
						}
					}
					f.serve(false)
					f.pass(100 * time.Millisecond)
				}
				f.check(2 * 5 * income)
				if got := len(f.started) - joined; float64(got) < 0.8*60*income {
					t.Errorf("only %d retries", got)
				}
				if in, _ := f.status(); in != 8 {
					t.Errorf("%d workers are in the fleet after Redis came back, want 8", in)
				}
			})
		})
	}
}

// TestFleetRecovers has four workers with 100 deliveries a second, of which a
// third fails for 2 minutes.
func TestFleetRecovers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const step, down = 100 * time.Millisecond, 2 * time.Minute
		f := newFleet(t, generator(t, 2), 4, budget.Queue())
		f.join()
		since := f.now
		n := 0
		var inOutage, asks int
		var done time.Duration
		for f.now.Sub(since) < 2*down && done == 0 {
			failing := f.now.Sub(since) < down
			if !failing && inOutage == 0 {
				inOutage, asks = len(f.started), f.asks
			}
			for range 10 {
				n++
				f.deposit(n%4, 1)
				if n%3 == 0 && failing {
					f.queue(f.rng.IntN(4), time.Duration(f.rng.Int64N(int64(time.Second))))
				}
			}
			f.serve(!failing)
			if !failing && len(f.line) == 0 {
				done = f.now.Sub(since) - down
			}
			f.pass(step)
		}
		retries := len(f.started) - inOutage
		_, trips := f.status()
		t.Logf("%d retries in the outage; done %v after with %d asks for %d retries, at most %d in 10 s; %d round trips", inOutage, done, f.asks-asks, retries, f.busiest(), trips)
		if limit := 120*11 + 2*55; inOutage > limit {
			t.Errorf("%d retries in the outage, want at most %d", inOutage, limit)
		}
		if done == 0 || done > 84*time.Second {
			t.Errorf("done %v after the outage, want 84 s", done)
		}
		if got := f.busiest(); got > 1200 {
			t.Errorf("%d retries in 10 s, want about as many as deliveries", got)
		}
		if f.asks-asks > 2*retries {
			t.Errorf("%d asks for %d retries", f.asks-asks, retries)
		}
	})
}
