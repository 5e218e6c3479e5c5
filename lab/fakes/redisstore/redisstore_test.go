package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/redisstore"
	"github.com/redrive-go/redrive/idempotency/storetest"
	"github.com/redrive-go/redrive/integration/livetest"
)

func TestMain(m *testing.M) {
	storetest.Victim(func(address string) (idempotency.Store, error) {
		url, prefix, _ := strings.Cut(address, " ")
		client, err := connect(url)
		if err != nil {
			return nil, err
		}
		return redisstore.New(client, prefix)
	})
	os.Exit(m.Run())
}

func connect(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.ContextTimeoutEnabled = true
	return redis.NewClient(options), nil
}

// open returns a store with keys of its own and the address of it.
func open(t testing.TB, url, prefix string) *redisstore.Store {
	t.Helper()
	client, err := connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	store, err := redisstore.New(client, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// harness tests the server at the URL that start returns.
func harness(start func(t testing.TB) (url string)) storetest.Harness {
	var url, prefix string
	return storetest.Harness{
		Open: func(t testing.TB) idempotency.Store {
			url, prefix = start(t), fmt.Sprintf("redrive-test:%x:", rand.Uint64())
			return open(t, url, prefix)
		},
		Again:   func(t testing.TB, _ idempotency.Store) idempotency.Store { return open(t, url, prefix) },
		Address: func(testing.TB, idempotency.Store) string { return url + " " + prefix },
	}
}

func TestStoreOnMiniredis(t *testing.T) {
	var server *miniredis.Miniredis
	h := harness(func(t testing.TB) string {
		server = miniredis.NewMiniRedis()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		return "redis://" + server.Addr()
	})
	h.Pass = func(d time.Duration) { server.FastForward(d) }
	storetest.Run(t, h)
}

// TestStoreOnRedis leaves keys with the prefix of the tests to expire.
func TestStoreOnRedis(t *testing.T) {
	livetest.Redis(t, func(t *testing.T, target livetest.Target) {
		storetest.Run(t, harness(func(testing.TB) string { return target.URL }))
	})
}

func TestPrefix(t *testing.T) {
	for _, tt := range []struct{ prefix, want string }{{"", "redrive:idempotency:orders:7"}, {"mine/", "mine/orders:7"}} {
		server := miniredis.RunT(t)
		store := open(t, "redis://"+server.Addr(), tt.prefix)
		if _, err := store.Begin(t.Context(), idempotency.Claim{Key: "orders:7", Token: "a"}, time.Minute); err != nil {
			t.Fatal(err)
		}
		if keys := server.Keys(); len(keys) != 1 || keys[0] != tt.want {
			t.Errorf("prefix %q: keys = %q, want %q", tt.prefix, keys, tt.want)
		}
	}
}

// TestForeignClocks sets the server's clock apart from the worker's.
func TestForeignClocks(t *testing.T) {
	for _, apart := range []time.Duration{-1000 * time.Hour, 1000 * time.Hour} {
		server := miniredis.RunT(t)
		server.SetTime(time.Now().Add(apart))
		store := open(t, "redis://"+server.Addr(), "")
		a, b := idempotency.Claim{Key: "key", Token: "a"}, idempotency.Claim{Key: "key", Token: "b"}
		if r, err := store.Begin(t.Context(), a, time.Minute); err != nil || r.State != idempotency.Claimed {
			t.Fatalf("%s apart: Begin = %v, %v", apart, r, err)
		}
		r, err := store.Begin(t.Context(), b, time.Minute)
		if err != nil || r.State != idempotency.InProgress || r.Left <= 0 || r.Left > time.Minute {
			t.Errorf("%s apart: the second Begin = %+v, %v, want in progress for up to a minute", apart, r, err)
		}
	}
}

// TestServerForgets has a server that loses a claim, and then a record, by an
// eviction or a restart: that costs a duplicate, and neither an error nor the
// record of whoever has finished meanwhile.
func TestServerForgets(t *testing.T) {
	server := miniredis.RunT(t)
	store := open(t, "redis://"+server.Addr(), "")
	begin := func(token string, want idempotency.State) {
		t.Helper()
		if r, err := store.Begin(t.Context(), idempotency.Claim{Key: "key", Token: token}, time.Minute); err != nil || r.State != want {
			t.Errorf("Begin by %s = %q, %v, want %q", token, r.State, err, want)
		}
	}
	begin("a", idempotency.Claimed)
	server.FlushAll()
	if err := store.Complete(t.Context(), idempotency.Claim{Key: "key", Token: "a"}, time.Hour); err != nil {
		t.Errorf("Complete of a claim that is forgotten: %v", err)
	}
	begin("b", idempotency.Done)
	server.FlushAll()
	begin("b", idempotency.Claimed)
}

func TestServerFaults(t *testing.T) {
	claim := idempotency.Claim{Key: "key", Token: "a"}
	tests := []struct {
		name  string
		spoil func(*miniredis.Miniredis)
		want  string
	}{
		{"read-only replica", func(s *miniredis.Miniredis) { s.SetError("READONLY You can't write against a read only replica.") }, "READONLY"},
		{"wrong credentials", func(s *miniredis.Miniredis) { s.RequireAuth("secret") }, "NOAUTH"},
		{"out of memory", func(s *miniredis.Miniredis) {
			s.SetError("OOM command not allowed when used memory > 'maxmemory'.")
		}, "OOM"},
		{"key of somebody else", func(s *miniredis.Miniredis) { _ = s.Set("redrive:idempotency:key", "text") }, "WRONGTYPE"},
		{"gone", func(s *miniredis.Miniredis) { s.Close() }, "redisstore"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := miniredis.RunT(t)
			store := open(t, "redis://"+server.Addr()+"?max_retries=-1&dial_timeout=1s", "")
			tt.spoil(server)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			record, err := store.Begin(ctx, claim, time.Minute)
			if record.State != idempotency.InProgress {
				t.Errorf("Begin says %q, want the zero record", record.State)
			}
			for call, err := range map[string]error{"Begin": err, "Complete": store.Complete(ctx, claim, time.Minute), "Release": store.Release(ctx, claim)} {
				if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, idempotency.ErrClaimLost) {
					t.Errorf("%s: %v, want an error with %q", call, err, tt.want)
				}
			}
		})
	}
}

// TestRecordWithoutExpiry meets a record that somebody made permanent.
func TestRecordWithoutExpiry(t *testing.T) {
	server := miniredis.RunT(t)
	store := open(t, "redis://"+server.Addr(), "")
	server.HSet("redrive:idempotency:key", "token", "a", "fingerprint", "f", "done", "1")
	r, err := store.Begin(t.Context(), idempotency.Claim{Key: "key", Token: "b"}, time.Minute)
	if want := (idempotency.Record{State: idempotency.Done, Fingerprint: "f"}); err != nil || r != want {
		t.Errorf("Begin = %+v, %v, want %+v", r, err, want)
	}
}
