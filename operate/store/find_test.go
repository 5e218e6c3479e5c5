package store_test

import (
	"bytes"
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
				if d := diedAt(all[b-1]).Compare(diedAt(all[a-1])); d != 0 {
					return d
				}
				return int(b - a)
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
	if random.IntN(8) == 0 {
		f.Header = store.HeaderFilter{Name: "tenant"}
		if random.IntN(2) == 0 {
			f.Header.Value = new("acme")
		}
	}
	if random.IntN(8) == 0 {
		f.Since = noon.Add(time.Duration(random.IntN(3000)) * time.Second)
	}
	if random.IntN(8) == 0 {
		f.Until = noon.Add(time.Duration(random.IntN(3000)) * time.Second)
	}
	if random.IntN(8) == 0 {
		f.UpTo = random.Int64N(600)
	}
	if random.IntN(8) == 0 {
		f.States = []store.State{store.StateCollected, store.StateUnknown}[random.IntN(2):]
	}
	if random.IntN(8) == 0 {
		f.IDs = []int64{random.Int64N(600), random.Int64N(600), 100_000}
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
		var got []int64
		for p := (store.Page{Limit: 3}); ; {
			page, err := s.Letters(t.Context(), store.Filter{}, p)
			must(t, err)
			for _, l := range page.Letters {
				if l.ID <= 20 {
					got = append(got, l.ID)
				}
			}
			if p.After = page.Next; p.After == "" {
				break
			}
			collect(t, s, noon.Add(time.Hour), collected(entry(1+2*len(got))), collected(entry(1000+len(got))))
		}
		want := make([]int64, 20)
		for i := range want {
			want[i] = int64(20 - i)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the pages have %v, want %v", got, want)
		}
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
			if _, err := s.Letters(t.Context(), tt.f, tt.p); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Letters: %v, want %q", err, tt.want)
			}
			if _, err := s.Clusters(t.Context(), tt.f, store.ByOpen, tt.p); err == nil {
				t.Error("Clusters: no error")
			}
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
		if n, err := s.Delete(t.Context(), noon, operator, "deleted"); n != 300 || err != nil {
			t.Fatalf("Delete = %d, %v", n, err)
		}
		if got := list(t, s, store.Filter{Topic: "orders"}, 100); len(got) != 50 {
			t.Errorf("%d letters, want 50", len(got))
		}
		clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
		if err != nil || len(clusters.Clusters) != 50 {
			t.Errorf("%d clusters, %v, want 50", len(clusters.Clusters), err)
		}
	})
}
