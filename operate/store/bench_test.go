package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/store"
)

// BenchmarkStore collects 100,000 letters of 2,000 clusters and 50 topics, with
// bodies of 1 KiB. Then it measures pages and counts of the full store, and reports
// the slowest of a hundred.
func BenchmarkStore(b *testing.B) {
	const count, batch = 100_000, 1000
	last := noon.Add(count * 50 * time.Millisecond)
	filters := map[string]store.Filter{
		"all": {}, "topic": {Topic: "topic-7"}, "reason": {Reason: "poison"}, "cluster": {Cluster: 77}, "message": {MessageID: "nobody"},
		"rare state": {States: []store.State{store.StateDiscarded}}, "group and reason": {Group: "group-3", Reason: "poison"},
		"topic and time": {Topic: "topic-7", Since: noon, Until: last}, "text": {Text: "nobody wrote this"},
		"header": {Header: store.HeaderFilter{Name: "tenant", Value: new("nobody")}},
	}
	fill := func(b *testing.B, s *store.Store) {
		random := rand.New(rand.NewPCG(1, 1))
		for n := 0; n < count; n += batch {
			var list []store.Collected
			for i := range batch {
				kind := random.IntN(2000)
				e := entry(n + i)
				e.Message.Topic, e.Group, e.Fingerprint = fmt.Sprint("topic-", kind%50), fmt.Sprint("group-", kind%10), fmt.Sprint(kind)
				e.Message.Body, e.Reason = make([]byte, 1024), []string{"exhausted", "poison", "expired", "unclassified"}[kind%4]
				list = append(list, collected(e))
			}
			must(b, errOf(s.Collect(b.Context(), last, list)))
		}
	}
	measure := func(b *testing.B, url string) {
		s := open(b, url)
		began := time.Now()
		fill(b, s)
		b.Logf("%.0f letters a second were collected", count/time.Since(began).Seconds())
		must(b, errOf(s.Discard(b.Context(), noon, operator, store.Filter{Topic: "topic-3", UpTo: count / 3})))
		calls := map[string]func() error{
			"clusters":  func() error { return errOf(s.Clusters(b.Context(), store.Filter{}, store.ByLastDeath, store.Page{})) },
			"stats":     func() error { return errOf(s.Stats(b.Context(), noon)) },
			"breakdown": func() error { return errOf(s.Breakdown(b.Context(), store.Filter{})) },
		}
		for name, f := range filters {
			calls["letters by "+name] = func() error { return errOf(s.Letters(b.Context(), f, store.Page{})) }
		}
		for name, call := range calls {
			b.Run(name, func(b *testing.B) {
				var took []time.Duration
				for b.Loop() {
					start := time.Now()
					must(b, call())
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
	b.Run("sqlite", func(b *testing.B) { measure(b, sqliteFile(b)) })
	b.Run("postgres", func(b *testing.B) { measure(b, postgrestest.New(b).URL) })
}
