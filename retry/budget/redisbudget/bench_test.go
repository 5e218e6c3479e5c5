package redisbudget

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
)

// benchClient is one of the real server, if there is one.
func benchClient(b *testing.B) redis.UniversalClient {
	options := &redis.Options{}
	if url := os.Getenv(serverURL); url != "" {
		var err error
		if options, err = redis.ParseURL(url); err != nil {
			b.Fatal(err)
		}
	} else {
		options.Addr = miniredis.RunT(b).Addr()
	}
	client := redis.NewClient(options)
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// BenchmarkReserve takes leases that are at hand, and room of the worker's own.
func BenchmarkReserve(b *testing.B) {
	for _, bm := range []struct {
		name   string
		leased bool
	}{{"leased", true}, {"own", false}} {
		b.Run(bm.name, func(b *testing.B) {
			w := newBudget(b, clientOf(b, "127.0.0.1:1"), Config{Name: "payments", Budget: budget.Config{Share: 1, Floor: 100_000}, Workers: 1})
			w.prepare(noon)
			w.nextTry = noon.Add(time.Hour)
			if bm.leased {
				for s := range int64(horizon) {
					w.grant(w.current+s, math.MaxUint16)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				w.Reserve(noon, noon.Add(time.Second))
			}
		})
	}
}

func BenchmarkDelivered(b *testing.B) {
	w := newBudget(b, clientOf(b, "127.0.0.1:1"), Config{Name: "payments", Budget: budget.Queue(), Workers: 1})
	w.prepare(noon)
	w.nextTry = noon.Add(1000 * time.Hour)
	now := noon
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		w.Delivered(now, 1)
	}
}

// BenchmarkFleet has 20 workers with 2000 deliveries a second together, of which
// one in ten fails, or all. An operation is a second of theirs.
func BenchmarkFleet(b *testing.B) {
	for _, bm := range []struct {
		name string
		fail int // of ten deliveries
	}{{"one in ten fails", 1}, {"all fail", 10}} {
		b.Run(bm.name, func(b *testing.B) {
			server := miniredis.RunT(b)
			rng := generator(b, 1)
			now := noon
			var workers []*Budget
			for range 20 {
				w := newBudget(b, clientOf(b, server.Addr()), Config{Name: "payments", Budget: budget.Queue(), Workers: 20})
				w.patience = time.Minute
				workers = append(workers, w)
			}
			second := func() {
				for range 10 {
					server.SetTime(now)
					for _, w := range workers {
						w.Delivered(now, 10)
						for range bm.fail {
							w.Reserve(now, now.Add(time.Duration(rng.Int64N(int64(time.Minute)))))
						}
						w.idle()
					}
					now = now.Add(100 * time.Millisecond)
				}
			}
			count := func() (trips, retries float64) {
				for _, w := range workers {
					s := w.Status(now)
					trips, retries = trips+float64(s.RoundTrips), retries+float64(s.Reserved)
				}
				return trips, retries
			}
			for range 60 {
				second()
			}
			trips, retries := count()
			for b.Loop() {
				second()
			}
			moreTrips, moreRetries := count()
			b.ReportMetric((moreTrips-trips)/(moreRetries-retries), "fleet_round_trips_per_retry")
		})
	}
}

// BenchmarkCall is the server's work and the round trip of one call, with as
// many slots without room before it.
func BenchmarkCall(b *testing.B) {
	for _, full := range []int64{0, 1000, 10_000} {
		b.Run(fmt.Sprint(full, " full"), func(b *testing.B) {
			client := benchClient(b)
			w := newBudget(b, client, Config{Name: fmt.Sprintf("bench-%d-%d", full, time.Now().UnixNano()), Budget: budget.Mesh(), Workers: 20})
			a, err := w.lease(b.Context(), request{})
			if err != nil {
				b.Fatal(err)
			}
			current := w.slot(a.time)
			client.HSet(b.Context(), w.key, "born", current-settle)
			var held []pair
			for s := range full {
				held = append(held, pair{current + s, 60_000})
			}
			wants := []span{{current, current + 28, 64}, {current + 16, current + 40, 64}, {current + 32, current + 76, 64}}
			for b.Loop() {
				a, err = w.lease(b.Context(), request{epoch: a.epoch, held: held, wants: wants})
				if err != nil || len(a.granted) == 0 {
					b.Fatal(a, err)
				}
				held = nil
			}
		})
	}
}
