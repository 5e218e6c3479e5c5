package store_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/store"
)

// letters is how many a store holds in the benchmarks that read: 100,000, or
// what REDRIVE_LETTERS says.
func lettersOf(b *testing.B) int {
	if text := os.Getenv("REDRIVE_LETTERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	return 100_000
}

// onDisk runs a benchmark on databases that are durable.
func onDisk(b *testing.B, f func(b *testing.B, url string)) {
	b.Run("sqlite", func(b *testing.B) { f(b, sqliteFile(b)) })
	b.Run("postgres", func(b *testing.B) { f(b, postgrestest.New(b).URL) })
}

// production makes letters like those of a service in trouble: 50 topics, two
// thousand clusters of very different sizes, 1 KiB of body.
func production(random *rand.Rand, n int) store.Collected {
	e := entry(n)
	e.Message.ID = fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
	topic := int(float64(50) * random.Float64() * random.Float64())
	e.Message.Topic = fmt.Sprintf("topic-%d", topic)
	e.Message.Key = fmt.Sprintf("customer-%d", random.IntN(100_000))
	e.Group = fmt.Sprintf("group-%d", topic%10)
	e.Reason = []string{"exhausted", "poison", "expired", "unclassified"}[random.IntN(20)*random.IntN(20)/100]
	e.Fingerprint = fmt.Sprintf("%04x", int(40*random.Float64()*random.Float64()))
	e.Message.Body = []byte(strings.Repeat("x", random.IntN(2048)))
	e.DeadAt = noon.Add(time.Duration(n)*50*time.Millisecond - time.Duration(random.IntN(60))*time.Second)
	c := collected(e)
	c.Source = e.Message.Topic + ".dead"
	return c
}

func fill(b *testing.B, s *store.Store, letters int) {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	for n := 0; n < letters; n += 1000 {
		batch := make([]store.Collected, 1000)
		for i := range batch {
			batch[i] = production(random, n+i)
		}
		if _, err := s.Collect(b.Context(), noon.Add(time.Duration(n)*50*time.Millisecond), batch); err != nil {
			b.Fatal(err)
		}
	}
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
					batch := make([]store.Collected, size)
					for i := range batch {
						batch[i] = production(random, n)
						n++
					}
					b.StartTimer()
					if _, err := s.Collect(b.Context(), noon.Add(time.Duration(n)*50*time.Millisecond), batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "letters/s")
			})
		}
	})
}
