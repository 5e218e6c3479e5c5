package redisbudget

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/settings"
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
		{"share in percent", client, func(c *Config) { c.Budget.Share = 10 }, []string{"Config.Share"}},
		{"everything", nil, func(c *Config) { *c = Config{} }, []string{"client", "Config.Share", "Config.Floor", "Config.Name", "Config.Workers"}},
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
	if e, ok := errors.AsType[*settings.Error](err); ok {
		return []string{e.Field}
	}
	return nil
}

// TestAttackAbsurdAnswers makes a worker use a budget in a broken or hostile
// Redis. The worker continues with its own share of the budget, and reports
// why.
func TestAttackAbsurdAnswers(t *testing.T) {
	good := map[string]string{
		"evalsha": "*9\r\n:0\r\n:0\r\n$3\r\n4.5\r\n$3\r\n110\r\n$2\r\n50\r\n$3\r\n106\r\n$2\r\n11\r\n$1\r\n0\r\n$1\r\n0\r\n",
		"info":    "$0\r\n\r\n",
	}
	redistest.Hostile(t, good, func(t *testing.T, client redis.UniversalClient) func() error {
		var mu sync.Mutex
		var reports []error
		b, err := New(client, Config{Name: "payments", Budget: budget.Config{Share: 0.1, Floor: 1}, Workers: 1, OnError: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, err)
		}})
		if err != nil {
			t.Fatal(err)
		}
		return func() error {
			mu.Lock()
			reports = nil
			mu.Unlock()
			granted := 0
			for range 20 {
				now := time.Now()
				b.Deposit(now, 1)
				if wait, ok := b.Withdraw(now, 0, 0); ok && wait == 0 {
					granted++
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
			mu.Lock()
			defer mu.Unlock()
			s := b.Status(time.Now())
			if granted < 5 && !s.Fleet {
				t.Errorf("%d of 20 retries in 20 s, want one a second: the floor of the worker alone", granted)
			}
			if s.Err != nil && len(reports) == 0 {
				t.Errorf("OnError was not called with %v", s.Err)
			}
			return s.Err
		}
	})
}
