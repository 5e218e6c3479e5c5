package store_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/store"
)

// TestLettersByFilter holds pages against a plain loop over all letters.
func TestLettersByFilter(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 1))
		var all []store.Collected
		for n := range 600 {
			all = append(all, randomLetter(random, n))
		}
		for batch := range slices.Chunk(all, 100) {
			collect(t, s, noon.Add(time.Hour), batch...)
		}
		for range 120 {
			f := randomFilter(random)
			var want []int64
			for id, c := range all {
				if selects(f, int64(id+1), c) {
					want = append(want, int64(id+1))
				}
			}
			slices.SortFunc(want, func(a, b int64) int {
				return cmp.Or(diedAt(all[b-1]).Compare(diedAt(all[a-1])), cmp.Compare(b, a))
			})
			if got := idsOf(list(t, s, f, 10+random.IntN(100))); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %+v\nselects %v\nwant    %v", seed, f, got, want)
			}
		}
	})
}

// randomLetter has few values in each field, and many clusters if it is a large n.
func randomLetter(random *rand.Rand, n int) store.Collected {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	e := entry(random.IntN(3000))
	e.Message.Topic, e.Group, e.Reason = one("orders", "refunds"), one("billing", "mail", ""), one("poison", "exhausted")
	e.Meta.Class, e.ErrorText = one("transient", "permanent"), one("connection refused", "no such customer\x00")
	e.Fingerprint = fmt.Sprintf("f%d", random.IntN(1+n/2))
	e.Message.ID = fmt.Sprintf("message-%d", n/2)
	e.Message.Body = []byte(one("alpha", "beta\xff", "gamma"))
	e.Message.Headers = brokers.Headers{{Name: "tenant", Value: one("acme", "globex")}}
	if random.IntN(9) == 0 {
		e.DeadAt = time.Time{}
	}
	c := collected(e)
	c.Entry = e
	c.Broker, c.Source, c.Format, c.Position = one("rabbit", "kafka"), one("a.dead", "b.dead"), one("redrive", "raw"), fmt.Sprint(n)
	return c
}

func randomFilter(random *rand.Rand) (f store.Filter) {
	maybe := func(field *string, of ...string) {
		if random.IntN(8) == 0 {
			*field = of[random.IntN(len(of))]
		}
	}
	maybe(&f.Broker, "rabbit", "kafka", "none")
	maybe(&f.Source, "a.dead", "b.dead")
	maybe(&f.Topic, "orders", "refunds")
	maybe(&f.Group, "billing", "mail")
	maybe(&f.Reason, "poison", "exhausted")
	maybe(&f.Class, "transient", "permanent")
	maybe(&f.Format, "redrive", "raw")
	maybe(&f.Fingerprint, "f0", "f1", "f7")
	maybe(&f.MessageID, "message-3", "message-250", "none")
	maybe(&f.Text, "alpha", "\xff", "customer\x00")
	second := func() time.Time { return noon.Add(time.Duration(random.IntN(3000)) * time.Second) }
	for _, set := range []func(){
		func() { f.Header = store.HeaderFilter{Name: "tenant"} },
		func() { f.Header = store.HeaderFilter{Name: "tenant", Value: new("acme")} },
		func() { f.Since = second() },
		func() { f.Until = second() },
		func() { f.UpTo = random.Int64N(600) },
		func() { f.States = []store.State{store.StateCollected, store.StateUnknown}[random.IntN(2):] },
		func() { f.IDs = []int64{random.Int64N(600), random.Int64N(600), 100_000} },
	} {
		if random.IntN(8) == 0 {
			set()
		}
	}
	return f
}

func diedAt(c store.Collected) time.Time {
	if c.Entry.DeadAt.IsZero() {
		return noon.Add(time.Hour) // when it was collected
	}
	return c.Entry.DeadAt
}

// selects is what a filter means.
func selects(f store.Filter, id int64, c store.Collected) bool {
	e := c.Entry
	for want, got := range map[*string]string{
		&f.Broker: c.Broker, &f.Source: c.Source, &f.Topic: e.Message.Topic, &f.Group: e.Group, &f.Reason: e.Reason, &f.Class: e.Meta.Class,
		&f.Format: c.Format, &f.Fingerprint: e.Fingerprint, &f.MessageID: e.Message.ID,
	} {
		if *want != "" && *want != got {
			return false
		}
	}
	tenant := c.Raw.Headers.Get("tenant")
	switch {
	case len(f.IDs) > 0 && !slices.Contains(f.IDs, id),
		f.UpTo > 0 && id > f.UpTo,
		len(f.States) > 0 && !slices.Contains(f.States, store.StateCollected),
		!f.Since.IsZero() && diedAt(c).Before(f.Since),
		!f.Until.IsZero() && !diedAt(c).Before(f.Until),
		f.Text != "" && !strings.Contains(e.ErrorText, f.Text) && !bytes.Contains(c.Raw.Body, []byte(f.Text)),
		f.Header.Value != nil && tenant != *f.Header.Value:
		return false
	}
	return true
}

// TestPagesAreStable collects between pages, and misses or repeats nothing.
func TestPagesAreStable(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		for n := range 20 {
			collect(t, s, noon.Add(time.Hour), collected(entry(2*n)))
		}
		n := 0
		got := idsOf(list(t, s, store.Filter{}, 3, func() {
			n++
			collect(t, s, noon.Add(time.Hour), collected(entry(2*n-1)), collected(entry(1000+n)))
		}))
		got = slices.DeleteFunc(got, func(id int64) bool { return id > 20 })
		var want []int64
		for id := int64(20); id > 0; id-- {
			want = append(want, id)
		}
		same(t, "pages", got, want)
	})
}

func TestBadFilters(t *testing.T) {
	s := open(t, sqliteFile(t))
	tests := []struct {
		name string
		f    store.Filter
		p    store.Page
		want string
	}{
		{"state", store.Filter{States: []store.State{"lost"}}, store.Page{}, `"lost" is no state`},
		{"many", store.Filter{IDs: make([]int64, 20_000)}, store.Page{}, "at most 10000"},
		{"header", store.Filter{Header: store.HeaderFilter{Value: new("x")}}, store.Page{}, "without a name"},
		{"page", store.Filter{}, store.Page{After: "1.2.3"}, "is no page"},
		{"no page", store.Filter{}, store.Page{After: "'; drop table letters"}, "is no page"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fails(t, errOf(s.Letters(t.Context(), tt.f, tt.p)), tt.want)
			fails(t, errOf(s.Clusters(t.Context(), tt.f, store.ByOpen, tt.p)), "")
		})
	}
}

// TestEmptyClusters finds letters behind many clusters that have none left.
func TestEmptyClusters(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		var batch []store.Collected
		for n := range 350 {
			e := entry(n)
			e.Fingerprint, e.Message.Key = fmt.Sprint(n), "deleted"
			if n >= 300 {
				e.Message.Key = "left"
			}
			batch = append(batch, collected(e))
		}
		collect(t, s, noon, batch...)
		gives(t, int64(300))(s.Delete(t.Context(), noon, operator, "deleted"))
		same(t, "letters", len(list(t, s, store.Filter{Topic: "orders"}, 100)), 50)
		clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
		must(t, err)
		same(t, "clusters", len(clusters.Clusters), 50)
	})
}
