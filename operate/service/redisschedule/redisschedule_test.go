package redisschedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/scheduletest"
)

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serverURL is the variable with the URL of a real server for the tests.
// Without it, each test starts its own Redis, or is skipped if there is no such
// program.
const serverURL = "REDRIVE_REDIS_URL"

// quiet drops what go-redis logs of servers that are down.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// newSchedule returns an empty one, whose keys are removed after the test.
func newSchedule(t testing.TB, connect func() redis.UniversalClient) *Schedule {
	t.Helper()
	s, err := New(connect(), fmt.Sprintf("redrive:test:%x", rand.Uint64()))
	must(t, err)
	t.Cleanup(func() {
		c := connect()
		tenants := c.ZRange(context.Background(), s.tenants(), 0, -1).Val()
		for _, tenant := range tenants {
			c.Del(context.Background(), s.tasks(tenant))
		}
		c.Del(context.Background(), s.tenants())
		_ = c.Close()
		_ = s.Close()
	})
	return s
}

// onRedis runs a test on each kind of server that speaks the protocol of Redis.
func onRedis(t *testing.T, test func(t *testing.T, connect func() redis.UniversalClient)) {
	t.Helper()
	if os.Getenv(serverURL) == "" {
		t.Setenv(serverURL, "redis://"+redistest.New(t).Addr)
	}
	livetest.Redis(t, func(t *testing.T, target livetest.Target) {
		options, err := redis.ParseURL(target.URL)
		must(t, err)
		test(t, func() redis.UniversalClient { return redis.NewClient(options) })
	})
}

func TestContract(t *testing.T) {
	onRedis(t, func(t *testing.T, connect func() redis.UniversalClient) {
		scheduletest.Run(t, func(t *testing.T) service.Schedule { return unclosed{newSchedule(t, connect)} })
	})
}

// unclosed is left open for the end of the test, which removes its keys.
type unclosed struct{ *Schedule }

func (unclosed) Close() error { return nil }

func TestContractOnCluster(t *testing.T) {
	addrs := redistest.NewCluster(t)
	scheduletest.Run(t, func(t *testing.T) service.Schedule {
		return unclosed{newSchedule(t, func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		})}
	})
}

// TestTwoProcesses has two clients share a schedule: what one adds the other takes,
// while it takes itself.
func TestTwoProcesses(t *testing.T) { onRedis(t, testTwoProcesses) }

func testTwoProcesses(t *testing.T, connect func() redis.UniversalClient) {
	a := newSchedule(t, connect)
	b, err := New(connect(), a.prefix)
	must(t, err)
	defer b.Close()
	now := time.Now().Truncate(time.Millisecond)
	const tasks = 300
	taken := make(chan service.Due, tasks)
	take := func(s *Schedule) {
		for got := 0; got < tasks/2; {
			due, _, err := s.Take(t.Context(), now, min(7, tasks/2-got))
			if err != nil {
				t.Error(err)
				return
			}
			for _, d := range due {
				taken <- d
			}
			got += len(due)
		}
	}
	done := make(chan struct{}, 2)
	for _, s := range []*Schedule{a, b} {
		go func() { take(s); done <- struct{}{} }() // both are awaited below
	}
	for row := range int64(tasks) {
		if err := b.Add(t.Context(), service.Due{Row: row, Tenant: fmt.Sprint(row % 3), At: now}); err != nil {
			t.Error(err)
		}
	}
	<-done
	<-done
	close(taken)
	seen := map[int64]bool{}
	for d := range taken {
		if seen[d.Row] {
			t.Errorf("row %d was taken twice", d.Row)
		}
		seen[d.Row] = true
	}
	if len(seen) != tasks {
		t.Errorf("%d of %d tasks were taken", len(seen), tasks)
	}
}

func TestRedisIsLost(t *testing.T) {
	server := redistest.New(t)
	s := newSchedule(t, func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	})
	now := time.Now()
	add := func() error { return s.Add(t.Context(), service.Due{Row: 1, Tenant: "a", At: now}) }
	must(t, add())
	must(t, s.client.FlushDB(t.Context()).Err())
	if due, next, err := s.Take(t.Context(), now, 10); len(due) > 0 || !next.IsZero() || err != nil {
		t.Errorf("emptied: Take = %v, %v, %v", due, next, err)
	}
	must(t, server.Kill())
	if _, _, err := s.Take(t.Context(), now, 10); err == nil || !strings.Contains(err.Error(), "redisschedule: Redis did not give tasks") {
		t.Errorf("killed: Take: %v", err)
	}
	if err := add(); err == nil || !strings.Contains(err.Error(), "redisschedule: Redis did not take tasks") {
		t.Errorf("killed: Add: %v", err)
	}
	must(t, server.Restart())
	must(t, add())
	if due, _, err := s.Take(t.Context(), now, 10); len(due) != 1 || err != nil {
		t.Errorf("back: Take = %v, %v", due, err)
	}
}

// TestHalfAnAdd has a process die between the tasks and the index: the next Add of
// the same, by the sweeper, mends it.
func TestHalfAnAdd(t *testing.T) { onRedis(t, testHalfAnAdd) }

func testHalfAnAdd(t *testing.T, connect func() redis.UniversalClient) {
	s := newSchedule(t, connect)
	now := time.Now()
	must(t, s.client.ZAdd(t.Context(), s.tasks("a"), redis.Z{Score: float64(now.UnixMilli()), Member: 1}).Err())
	if due, _, err := s.Take(t.Context(), now, 10); len(due) > 0 || err != nil {
		t.Errorf("Take = %v, %v", due, err)
	}
	must(t, s.Add(t.Context(), service.Due{Row: 1, Tenant: "a", At: now}))
	if due, _, err := s.Take(t.Context(), now, 10); len(due) != 1 || err != nil {
		t.Errorf("Take = %v, %v", due, err)
	}
}

func TestKeyOfAnother(t *testing.T) { onRedis(t, testKeyOfAnother) }

func testKeyOfAnother(t *testing.T, connect func() redis.UniversalClient) {
	s := newSchedule(t, connect)
	now := time.Now()
	must(t, s.Add(t.Context(), service.Due{Row: 1, Tenant: "a", At: now}))
	must(t, s.client.Set(t.Context(), s.tasks("b"), "mine", time.Minute).Err())
	if err := s.Add(t.Context(), service.Due{Row: 2, Tenant: "b", At: now}); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Add: %v", err)
	}
	must(t, s.client.ZAdd(t.Context(), s.tenants(), redis.Z{Score: 1, Member: "b"}).Err())
	if due, _, err := s.Take(t.Context(), now, 10); len(due) != 1 || err != nil {
		t.Errorf("Take = %v, %v: want the task of the other tenant", due, err)
	}
	if _, _, err := s.Take(t.Context(), now, 10); err == nil {
		t.Error("Take: no error")
	}
	s.client.Del(t.Context(), s.tasks("b"))
}

func TestNew(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for _, tt := range []struct {
		client redis.UniversalClient
		prefix string
		ok     bool
	}{{client, "", true}, {client, "orders:retry", true}, {nil, "", false}, {client, "a{b}", false}} {
		if s, err := New(tt.client, tt.prefix); (err == nil) != tt.ok || (s != nil) != tt.ok {
			t.Errorf("New(%v, %q) = %v, %v", tt.client, tt.prefix, s, err)
		}
	}
}
