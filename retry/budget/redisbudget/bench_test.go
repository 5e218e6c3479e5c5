package redisbudget

import (
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
)

// BenchmarkWithdraw takes leases that are at hand, and tokens of the worker's
// own.
func BenchmarkWithdraw(b *testing.B) {
	for _, bm := range []struct {
		name   string
		leased bool
	}{{"leased", true}, {"own", false}} {
		b.Run(bm.name, func(b *testing.B) {
			w := newBudget(b, clientOf(b, "127.0.0.1:1"), Config{Name: "payments", Budget: budget.Config{Share: 1, Floor: 1e6}, Workers: 1})
			now := noon
			w.nextTry, w.lastCall, w.answered, w.fleet = noon.Add(time.Second), noon, noon, bm.leased
			b.ReportAllocs()
			for b.Loop() {
				if bm.leased {
					w.leased = 1000
				} else {
					now = now.Add(time.Microsecond)
					w.nextTry = now.Add(time.Second)
				}
				w.Withdraw(now, time.Minute, 0.5)
			}
		})
	}
}

func BenchmarkDeposit(b *testing.B) {
	w := newBudget(b, clientOf(b, "127.0.0.1:1"), Config{Name: "payments", Budget: budget.Queue(), Workers: 1})
	now := noon
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		w.nextTry = now.Add(time.Second)
		w.Deposit(now, 1)
	}
}

// BenchmarkCall is the server's work and the round trip of one call.
func BenchmarkCall(b *testing.B) {
	url := os.Getenv("REDRIVE_REDIS_URL")
	if url == "" {
		b.Skip("REDRIVE_REDIS_URL is not set")
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		b.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	w := newBudget(b, client, Config{Name: "bench", Budget: budget.Mesh(), Workers: 20})
	r := request{report: report{delivered: 100, refunded: 5}, elapsed: interval, want: 10}
	r.line[0], r.line[3], r.line[50] = 5, 7, 2
	for b.Loop() {
		if _, err := w.exchange(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
