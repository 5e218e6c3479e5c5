package redisbudget

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/retry/budget"
)

// idle waits until no call is under way, and every report is made.
func (b *Budget) idle() { b.running.Wait() }

// quiet drops what go-redis logs of servers that are down.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

func clientOf(t testing.TB, address string) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: address, PoolSize: 10_000, MinRetryBackoff: -1, MaxRetryBackoff: -1})
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

// live is a fleet in real time.
type live struct {
	*testing.T
	config  Config
	workers []*Budget
	since   time.Time
	deposit int
	granted int
	slowest time.Duration
}

func newLive(t *testing.T, n int, c budget.Config, connect func() redis.UniversalClient) *live {
	l := &live{T: t, since: time.Now(), config: Config{Name: fmt.Sprintf("test-%x", rand.Uint64()), Budget: c, Workers: n}}
	for range n {
		w := newBudget(t, connect(), l.config)
		w.patience = 500 * time.Millisecond // the tests of other packages run as well
		l.workers = append(l.workers, w)
	}
	return l
}

// work has every worker deliver, and ask, every 10 ms.
func (l *live) work(d time.Duration) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		for i, w := range l.workers {
			before := time.Now()
			w.Deposit(before, 1)
			l.deposit++
			if rand.IntN(len(l.workers)) > i { // some fail more
				continue
			}
			if _, ok := w.Withdraw(before, time.Minute, rand.Float64()); ok {
				l.granted++
			}
			l.slowest = max(l.slowest, time.Since(before))
		}
	}
}

func (l *live) fleet() (in int, trips uint64) {
	for _, w := range l.workers {
		s := w.Status(time.Now())
		if s.Fleet {
			in++
		}
		trips += s.RoundTrips
	}
	return in, trips
}

// await works until so many are in the fleet.
func (l *live) await(workers int) {
	l.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		l.work(200 * time.Millisecond)
		if in, _ := l.fleet(); in == workers {
			return
		}
	}
	in, _ := l.fleet()
	l.Fatalf("%d workers are in the fleet, want %d: %+v", in, workers, l.workers[0].Status(time.Now()))
}

// check holds the retries, none of which succeeded, against what was earned.
// What a fleet saves may be spent twice: by the workers, and in Redis.
func (l *live) check() {
	l.Helper()
	c := l.config.Budget
	elapsed := time.Since(l.since).Seconds()
	earned := c.Share*float64(l.deposit) + c.Floor*elapsed
	saved := 10 * (c.Share*max(float64(l.deposit)/elapsed, 10*c.Floor) + c.Floor)
	_, trips := l.fleet()
	l.Logf("%d retries, %.0f earned; %d round trips; the longest Withdraw took %v", l.granted, earned, trips, l.slowest)
	if float64(l.granted) > earned+2*saved {
		l.Errorf("%d retries, want at most %.0f and twice %.0f", l.granted, earned, saved)
	}
}

// TestLive is what runs in real time, by itself: the tests in virtual time use
// all processors.
func TestLive(t *testing.T) {
	t.Run("fleet while Redis is killed", testFleetWhileRedisIsKilled)
	livetest.Redis(t, testFleetOnRedis)
	t.Run("fleet on a cluster", testFleetOnCluster)
	t.Run("faults", testRealFaults)
}

// testFleetWhileRedisIsKilled has twenty workers on a real server, which is killed and comes back empty. The window is the shortest, so that the test is.
func testFleetWhileRedisIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s of real time")
	}
	t.Parallel()
	s := redistest.New(t)
	l := newLive(t, 20, budget.Config{Share: 0.1, Floor: 20}, func() redis.UniversalClient {
		return clientOf(t, s.Addr)
	})
	l.await(len(l.workers))
	l.work(time.Second)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	l.await(0)
	l.work(2 * time.Second)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	l.await(len(l.workers))
	l.work(time.Second)
	l.check()
}

// testFleetOnRedis runs the fleet on a server that the environment names. It
// leaves its keys there to expire.
func testFleetOnRedis(t *testing.T, target livetest.Target) {
	t.Parallel()
	options, err := redis.ParseURL(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	l := newLive(t, 10, budget.Config{Share: 0.2, Floor: 20}, func() redis.UniversalClient {
		c := redis.NewClient(options)
		t.Cleanup(func() { _ = c.Close() })
		return c
	})
	l.await(len(l.workers))
	l.work(5 * time.Second)
	l.check()
}

// testFleetOnCluster has two fleets on a Redis Cluster, with the keys of their
// budgets on different nodes.
func testFleetOnCluster(t *testing.T) {
	t.Parallel()
	addrs := redistest.NewCluster(t)
	var client *redis.ClusterClient
	connect := func() redis.UniversalClient {
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	settings := budget.Config{Share: 0.2, Floor: 20}
	fleets := map[string]*live{} // by node
	for len(fleets) < 2 {
		l := newLive(t, 4, settings, connect)
		node, err := client.MasterForKey(t.Context(), l.workers[0].key)
		if err != nil {
			t.Fatal(err)
		}
		fleets[node.Options().Addr] = l
	}
	for node, l := range fleets {
		l.await(len(l.workers))
		l.work(time.Second)
		l.check()
		if in, _ := l.fleet(); in != len(l.workers) {
			t.Errorf("%d of %d workers are in the fleet on %s", in, len(l.workers), node)
		}
	}
}

// testRealFaults meets what only a real server does.
func testRealFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		args       []string
		fleet      bool
	}{
		{"few rights", "it is allkeys-lru", []string{
			"--user", "default", "off", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru",
			"--user", "worker", "on", ">secret", "~redrive:budget:*", "+info",
			"+evalsha", "+eval", "+time", "+hget", "+hset", "+hmget", "+hdel", "+hincrby", "+pexpire",
		}, true},
		{"too few rights", "the rights that the package documentation names", []string{"--user", "default", "on", "nopass", "~other:*", "+@all"}, false},
		{"replica", "point the client at the primary", []string{"--replicaof", "127.0.0.1", "1"}, false},
		{"password", "give the client a user and password", []string{"--requirepass", "secret"}, false},
		{"wrong password", "check the client's user and password", []string{"--user", "worker", "on", ">another", "~redrive:budget:*", "+@all"}, false},
		{"evicts", "it is allkeys-lru", []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, true},
		{"full", "give the server more memory", []string{"--maxmemory", "1", "--maxmemory-policy", "noeviction"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.New(t, tt.args...)
			l := newLive(t, 1, budget.Config{Share: 0.2, Floor: 20}, func() redis.UniversalClient {
				if slices.Contains(tt.args, "worker") {
					c := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "worker", Password: "secret"})
					t.Cleanup(func() { _ = c.Close() })
					return c
				}
				return clientOf(t, s.Addr)
			})
			told := &reports{}
			l.workers[0].onError = told.add
			if tt.fleet {
				l.await(len(l.workers))
			} else {
				l.work(300 * time.Millisecond)
				l.workers[0].idle()
			}
			all := told.take()
			if !slices.ContainsFunc(all, func(err error) bool { return strings.Contains(err.Error(), tt.want) }) {
				t.Errorf("reports %v, want one with %q", all, tt.want)
			}
			if in, _ := l.fleet(); in > 0 != tt.fleet {
				t.Errorf("in the fleet: %v, want %v", in > 0, tt.fleet)
			}
			l.check()
		})
	}
}
