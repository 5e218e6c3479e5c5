package store_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/store"
)

// benchLetters is how many letters the store holds in the benchmarks that read:
// 100,000, or what REDRIVE_LETTERS says.
func benchLetters(b *testing.B) int {
	text := os.Getenv("REDRIVE_LETTERS")
	if text == "" {
		return 100_000
	}
	n, err := strconv.Atoi(text)
	must(b, err)
	return n
}

// onDisk runs a benchmark on databases that are durable.
func onDisk(b *testing.B, f func(b *testing.B, url string)) {
	b.Run("sqlite", func(b *testing.B) { f(b, sqliteFile(b)) })
	b.Run("postgres", func(b *testing.B) { f(b, postgrestest.New(b).URL) })
}

// production makes letters as they come in incidents: every thousand most are of
// the same few clusters, the others of any of two thousand. Bodies have 1 KiB.
func production(random *rand.Rand, n int) store.Collected {
	kind := random.IntN(2000)
	if random.IntN(5) > 0 {
		kind = (n/1000*7919 + random.IntN(5)) % 2000
	}
	topic := kind % 50
	e := entry(n)
	e.Message.ID = fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
	e.Message.Topic = fmt.Sprintf("topic-%d", topic)
	e.Message.Key = fmt.Sprintf("customer-%d", random.IntN(100_000))
	e.Message.Body = []byte(strings.Repeat("x", random.IntN(2048)))
	e.Group = fmt.Sprintf("group-%d", topic%10)
	e.Reason = []string{"exhausted", "poison", "expired", "unclassified"}[kind%4]
	e.Fingerprint = fmt.Sprintf("%012x", kind/50)
	e.DeadAt = noon.Add(time.Duration(n)*50*time.Millisecond - time.Duration(random.IntN(60_000))*time.Millisecond)
	c := collected(e)
	c.Source = e.Message.Topic + ".dead"
	return c
}

func productions(random *rand.Rand, first, n int) []store.Collected {
	batch := make([]store.Collected, n)
	for i := range batch {
		batch[i] = production(random, first+i)
	}
	return batch
}

func BenchmarkCollect(b *testing.B) {
	onDisk(b, func(b *testing.B, url string) {
		s := open(b, url)
		random := rand.New(rand.NewPCG(1, 1))
		n := 0
		for _, size := range []int{100, 1000} {
			b.Run(strconv.Itoa(size), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					batch := productions(random, n, size)
					n += size
					b.StartTimer()
					must(b, errOf(s.Collect(b.Context(), noon.Add(time.Duration(n)*50*time.Millisecond), batch)))
				}
				b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "letters/s")
			})
		}
	})
}

// BenchmarkRead measures pages and counts of a full store, and reports the
// slowest of a hundred.
func BenchmarkRead(b *testing.B) {
	letters := benchLetters(b)
	filters := []struct {
		name string
		f    store.Filter
	}{
		{"all", store.Filter{}},
		{"topic", store.Filter{Topic: "topic-7"}},
		{"source", store.Filter{Source: "topic-8.dead"}},
		{"group", store.Filter{Group: "group-3"}},
		{"reason", store.Filter{Reason: "poison"}},
		{"class", store.Filter{Class: "transient"}},
		{"format", store.Filter{Format: "redrive"}},
		{"fingerprint", store.Filter{Fingerprint: "000000000007"}},
		{"cluster", store.Filter{Cluster: 77}},
		{"rare state", store.Filter{States: []store.State{store.StateDiscarded}}},
		{"common state", store.Filter{States: []store.State{store.StateCollected}}},
		{"topic and rare state", store.Filter{Topic: "topic-7", States: []store.State{store.StateDiscarded}}},
		{"group and reason", store.Filter{Group: "group-3", Reason: "poison"}},
		{"topic and time", store.Filter{Topic: "topic-7", Since: noon, Until: noon.Add(time.Duration(letters) * 10 * time.Millisecond)}},
		{"old", store.Filter{Until: noon.Add(time.Duration(letters) * 10 * time.Millisecond)}},
		{"reason and old", store.Filter{Reason: "poison", Until: noon.Add(time.Duration(letters) * 10 * time.Millisecond)}},
		{"message", store.Filter{MessageID: "nobody"}},
		{"nothing", store.Filter{Topic: "topic-7", Reason: "no such reason"}},
		{"text", store.Filter{Text: "nobody wrote this"}},
		{"header", store.Filter{Header: store.HeaderFilter{Name: "tenant", Value: new("nobody")}}},
	}
	onDisk(b, func(b *testing.B, url string) {
		s := open(b, url)
		random := rand.New(rand.NewPCG(1, 1))
		for n := 0; n < letters; n += 1000 {
			must(b, errOf(s.Collect(b.Context(), noon.Add(time.Duration(n)*50*time.Millisecond), productions(random, n, 1000))))
		}
		must(b, errOf(s.Discard(b.Context(), noon, operator, store.Filter{Fingerprint: "000000000003", UpTo: int64(letters) / 3})))
		for _, tt := range filters {
			b.Run("letters by "+tt.name, slowest(func() (err error) { _, err = s.Letters(b.Context(), tt.f, store.Page{}); return err }))
		}
		b.Run("clusters by death", slowest(func() (err error) {
			_, err = s.Clusters(b.Context(), store.Filter{}, store.ByLastDeath, store.Page{})
			return err
		}))
		b.Run("clusters by size", slowest(func() (err error) {
			_, err = s.Clusters(b.Context(), store.Filter{Topic: "topic-7"}, store.ByOpen, store.Page{})
			return err
		}))
		b.Run("stats", slowest(func() (err error) { _, err = s.Stats(b.Context(), noon); return err }))
		b.Run("breakdown", slowest(func() (err error) { _, err = s.Breakdown(b.Context(), store.Filter{}); return err }))
	})
}

func slowest(f func() error) func(b *testing.B) {
	return func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			must(b, f())
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	}
}
