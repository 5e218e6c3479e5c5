package store_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

func TestCollect(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		c := collected(entry(1))
		collect(t, s, noon.Add(time.Minute), c)

		want := store.Letter{
			ID: 1, State: store.StateCollected, Broker: "rabbit", Source: "orders.dead", Format: "redrive",
			MessageID: "message-1", Key: "customer-1", Topic: "orders", Group: "billing",
			Reason: "exhausted", Class: "transient", Rule: "net", ErrorType: "*net.OpError", ErrorText: "connection refused", Fingerprint: "f1",
			Attempts: 8, FirstFailedAt: noon, DeadAt: noon.Add(time.Second), PublishedAt: noon, DeadBy: "worker-1",
			Cluster: 1, CollectedAt: noon.Add(time.Minute), ChangedAt: noon.Add(time.Minute),
		}
		want.Size = letter(t, s, 1).Size
		same(t, "letter", letter(t, s, 1), want)
		raw, e, err := s.Content(t.Context(), 1)
		must(t, err)
		same(t, "message", raw, c.Raw)
		same(t, "entry", e, c.Entry)
		fails(t, errOf(s.Letter(t.Context(), 2)), store.ErrNotFound)
		_, _, err = s.Content(t.Context(), 2)
		fails(t, err, store.ErrNotFound)
	})
}

// TestContentSurvives keeps what no text column would.
func TestContentSurvives(t *testing.T) {
	hostile := "\x00\xff\x1b[31m\u202e'; drop table letters; --"
	large := make([]byte, 7<<19)
	_, _ = rand.NewChaCha8([32]byte{}).Read(large)
	foreign := store.Collected{
		Broker: hostile, Source: hostile, Format: hostile, Position: hostile,
		Raw: brokers.Message{ID: hostile, Topic: hostile, Key: hostile, Body: []byte(hostile), Headers: brokers.Headers{
			{Name: hostile, Value: hostile, Type: hostile}, {Name: hostile, Value: "base64:AAAA"}, {Name: "large", Value: strings.Repeat(hostile, 30<<10)},
		}},
	}
	foreign.Entry = dlq.Entry{Message: foreign.Raw, Reason: hostile, ErrorType: hostile, ErrorCode: hostile, ErrorText: strings.Repeat(hostile, 1000),
		Stack: hostile, Fingerprint: hostile, Rule: hostile, Group: hostile, DeadBy: hostile}
	foreign.Entry.Message.Topic = "orders"

	other := foreign
	other.Position, other.Raw.Body, other.Entry.Message.Body = "other body", large, large[:2<<20]
	empty := store.Collected{Entry: dlq.Entry{Message: brokers.Message{}}}
	onStores(t, func(t *testing.T, s *store.Store) {
		all := []store.Collected{foreign, other, empty}
		collect(t, s, noon, all...)
		for i, c := range all {
			raw, e, err := s.Content(t.Context(), int64(i+1))
			must(t, err)
			if !reflect.DeepEqual(raw, c.Raw) {
				t.Errorf("letter %d: the message is not as it was", i+1)
			}
			want, err := dlq.Decode(c.Entry.Encode(1 << 30))
			must(t, err)
			same(t, "entry", e, want)
		}
		letters := list(t, s, store.Filter{Broker: hostile, Reason: hostile, Fingerprint: hostile, MessageID: hostile}, 10)
		same(t, "found by hostile texts", idsOf(letters), []int64{2, 1})
		if l := letters[0]; l.Source != hostile || len(l.ErrorText) > 2<<10 {
			t.Errorf("the letter has the source %q, and an error text of %d bytes", l.Source, len(l.ErrorText))
		}
	})
}

// TestLongTexts tells IDs apart that differ where rows have no room.
func TestLongTexts(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		long := strings.Repeat("é", 4000)
		for n, end := range []string{"a", "b"} {
			e := entry(n)
			e.Message.ID, e.Message.Key = long+end, long+end
			collect(t, s, noon, collected(e))
		}
		got := list(t, s, store.Filter{MessageID: long + "b"}, 10)
		if len(got) != 1 || got[0].ID != 2 || len(got[0].MessageID) > 512 || !strings.HasPrefix(got[0].MessageID, "éé") || !utf8.ValidString(got[0].MessageID) {
			t.Errorf("the letters are %+v", got)
		}
		gives(t, int64(1))(s.Delete(t.Context(), noon, operator, long+"a"))
	})
}

func TestMerge(t *testing.T) {
	base := collected(entry(1))
	change := func(f func(*store.Collected)) store.Collected {
		c := base
		c.Raw.Headers = slices.Clone(c.Raw.Headers)
		f(&c)
		return c
	}
	tests := []struct {
		name   string
		letter store.Collected
		again  store.Collected
		merges bool
	}{
		{"the same", base, base, true},
		{"another broker", base, change(func(c *store.Collected) { c.Broker = "other" }), false},
		{"another source", base, change(func(c *store.Collected) { c.Source = "other" }), false},
		{"another body", base, change(func(c *store.Collected) { c.Raw.Body = []byte("other") }), false},
		{"another header", base, change(func(c *store.Collected) { c.Raw.Headers[0].Value = "other" }), false},
		{"a type of a header", base, change(func(c *store.Collected) { c.Raw.Headers[0].Type = "other" }), false},
		{"a bound between texts that moved", change(func(c *store.Collected) { c.Raw.Headers[0].Name = "ab"; c.Raw.Headers[0].Value = "c" }),
			change(func(c *store.Collected) { c.Raw.Headers[0].Name = "a"; c.Raw.Headers[0].Value = "bc" }), false},
		{"another time of death", base, change(func(c *store.Collected) { c.Entry.DeadAt = c.Entry.DeadAt.Add(time.Millisecond) }), false},
		{"another ID", base, change(func(c *store.Collected) { c.Entry.Message.ID = "other" }), false},
		{"no ID", change(func(c *store.Collected) { c.Entry.Message.ID = "" }), change(func(c *store.Collected) { c.Entry.Message.ID = "" }), false},
		{"no time of death", change(func(c *store.Collected) { c.Entry.DeadAt = time.Time{} }), change(func(c *store.Collected) { c.Entry.DeadAt = time.Time{} }), false},
		{"a place in a log", change(func(c *store.Collected) { c.Position = "0/1"; c.Entry.Message.ID = ""; c.Entry.DeadAt = time.Time{} }),
			change(func(c *store.Collected) { c.Position = "0/1"; c.Entry.Message.ID = ""; c.Entry.DeadAt = time.Time{} }), true},
		{"a place in a log that was made anew", change(func(c *store.Collected) { c.Position = "0/1" }),
			change(func(c *store.Collected) { c.Position = "0/1"; c.Raw.Body = []byte("other") }), false},
		{"another place in a log", change(func(c *store.Collected) { c.Position = "0/1" }), change(func(c *store.Collected) { c.Position = "0/2" }), false},
	}
	onStores(t, func(t *testing.T, s *store.Store) {
		for i, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				a, b := tt.letter, tt.again
				a.Broker, b.Broker = fmt.Sprint(a.Broker, i), fmt.Sprint(b.Broker, i)
				want := 1
				if tt.merges {
					want = 0
				}
				collect(t, s, noon, a)
				gives(t, want)(s.Collect(t.Context(), noon.Add(time.Hour), []store.Collected{b}))
				a.Broker, b.Broker = a.Broker+"!", b.Broker+"!"
				gives(t, want+1)(s.Collect(t.Context(), noon, []store.Collected{a, b}))
			})
		}
	})
}

// TestStatsAreBounded lets letters claim more topics than anybody has.
func TestStatsAreBounded(t *testing.T) { onStores(t, statsAreBounded) }

func statsAreBounded(t *testing.T, s *store.Store) {
	var batch []store.Collected
	for n := range 1003 {
		e := entry(n)
		e.Message.Topic = fmt.Sprintf("topic-%04d", n)
		batch = append(batch, collected(e))
		if n == 1002 {
			e.Message.ID = "second"
			batch = append(batch, collected(e))
		}
	}
	collect(t, s, noon, batch...)
	stats, err := s.Stats(t.Context(), noon)
	if err != nil || len(stats.Topics) != 1000 || stats.Topics[999].Topic != "topic-1002" || stats.Topics[999].Counts.Collected != 2 {
		t.Fatalf("Stats = %d topics, %v, want the 1000 with most letters", len(stats.Topics), err)
	}
	if o := stats.Others; o.Counts != (store.Counts{Collected: 3}) || o.Bytes == 0 || o.Topic != "" {
		t.Errorf("the others are %+v, want 3 letters", o)
	}
	same(t, "letters in all", stats.Letters(), 1004)
	for _, name := range []string{"topic-0999", "topic-1000", "topic-1001"} {
		stats, err := s.Stats(t.Context(), noon, name, "nobody's")
		if err != nil || len(stats.Topics) != 1000 || !slices.ContainsFunc(stats.Topics, func(of store.TopicStats) bool { return of.Topic == name }) {
			t.Errorf("Stats of %s: %d topics, %v, want it among them", name, len(stats.Topics), err)
		}
	}
}

func TestClustersAndStats(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		a, b := entry(1), entry(2)
		b.Fingerprint, b.ErrorText = "f2", "no such customer"
		late := entry(30)
		collect(t, s, noon.Add(time.Minute), collected(a), collected(b), collected(late))
		far := collected(entry(4))
		far.Source = "far.dead"
		far.Entry.Message.Topic = "far"
		far.Entry.DeadAt = noon.Add(48 * time.Hour) // says a clock that is wrong
		collect(t, s, noon.Add(2*time.Minute), far)

		clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
		if err != nil || len(clusters.Clusters) != 3 || clusters.Next != "" {
			t.Fatalf("Clusters = %+v, %v", clusters, err)
		}
		if c := clusters.Clusters[0]; c.Counts.Open() != 2 || c.ErrorText != "connection refused" || !c.FirstAt.Equal(noon.Add(time.Second)) || !c.LastAt.Equal(noon.Add(30*time.Second)) {
			t.Errorf("the largest cluster is %+v", c)
		}
		clusters, err = s.Clusters(t.Context(), store.Filter{}, store.ByLastDeath, store.Page{Limit: 1})
		if err != nil || len(clusters.Clusters) != 1 || clusters.Next == "" || clusters.Clusters[0].Topic != "far" || !clusters.Clusters[0].LastAt.Equal(noon.Add(2*time.Minute)) {
			t.Errorf("the latest cluster is %+v, %v", clusters, err)
		}
		stats, err := s.Stats(t.Context(), noon.Add(30*time.Minute))
		if err != nil || len(stats.Topics) != 2 || stats.NewClusters != 3 {
			t.Fatalf("Stats = %+v, %v", stats, err)
		}
		if o := stats.Topics[1]; o.Topic != "orders" || o.Counts.Collected != 3 || !o.OldestCollected.Equal(noon.Add(time.Second)) || o.Bytes == 0 {
			t.Errorf("Stats of orders = %+v", o)
		}
	})
}
