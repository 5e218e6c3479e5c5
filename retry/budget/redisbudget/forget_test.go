package redisbudget

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
)

// TestHolderIsQuiet has Redis forget while a worker that holds all of the next
// minutes does nothing, and so tells it late.
func TestHolderIsQuiet(t *testing.T) {
	for _, tt := range []struct {
		name         string
		quiet        time.Duration
		othersActive bool
	}{
		{"while the pool is closed", 15 * time.Second, true},
		{"for longer", 40 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, generator(t, 1), 2, budget.Config{Share: 0.1, Floor: 20, Window: 10 * time.Second})
			f.join()
			fail := func(i int, d time.Duration) {
				for end := f.now.Add(d); f.now.Before(end); f.pass(100 * time.Millisecond) {
					for range 6 {
						f.reserve(i, time.Second)
					}
				}
			}
			fail(0, 20*time.Second)
			f.server.FlushAll()
			if tt.othersActive {
				fail(1, tt.quiet)
			} else {
				f.pass(tt.quiet)
			}
			fail(0, 5*time.Second)
			fail(1, 30*time.Second)
			fail(0, 5*time.Second)
			f.check(200)
		})
	}
}

// TestCallIsNotRepeated has a server that takes calls and does not answer: the
// client, which repeats commands, must not repeat one that may have counted.
func TestCallIsNotRepeated(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var calls atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 4096)
			for {
				n, err := conn.Read(buffer)
				if err != nil {
					break
				}
				if strings.Contains(string(buffer[:n]), "evalsha") {
					calls.Add(1)
					break
				}
				_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
			}
			_ = conn.Close()
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Protocol: 2, DisableIdentity: true, MaxRetries: 5})
	defer client.Close()
	b := newBudget(t, client, Config{Name: "payments", Budget: budget.Mesh(), Workers: 1})
	b.Delivered(noon, 1)
	b.idle()
	if got := calls.Load(); got != 1 {
		t.Errorf("the call came %d times, want once", got)
	}
}
