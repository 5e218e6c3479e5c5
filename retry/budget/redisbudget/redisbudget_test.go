package redisbudget

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// TestAttackAbsurdAnswers has a server announce more than any memory holds. The client
// panics on that, and the worker has to go on by its own part of the budget.
func TestAttackAbsurdAnswers(t *testing.T) {
	for _, answer := range []string{"$9000000000000000000\r\n", "*9000000000000000\r\n", "%9000000000000000\r\n", "*-7\r\n", "\x00\r\n"} {
		t.Run(strings.TrimSpace(answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go serveAbsurd(theirs, answer)
					return ours, nil
				}})
				defer client.Close()
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
				granted := 0
				for range 100 {
					if wait, ok := b.Withdraw(time.Now(), 0, 0); ok && wait == 0 {
						granted++
					}
					time.Sleep(time.Second)
					synctest.Wait()
				}
				if granted < 50 {
					t.Errorf("%d of 100 retries in 100 s, want one a second as the worker's own floor has it", granted)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(reports) == 0 {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// serveAbsurd gives answer to scripts, and knows no other command.
func serveAbsurd(conn net.Conn, answer string) {
	defer func() { _ = conn.Close() }()
	for b := make([]byte, 64<<10); ; {
		n, err := conn.Read(b)
		if err != nil {
			return
		}
		request := strings.ToLower(string(b[:n]))
		reply := strings.Repeat("-ERR unknown command\r\n", strings.Count("\r\n"+request, "\r\n*"))
		if strings.Contains(request, "evalsha") {
			reply = answer
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}
