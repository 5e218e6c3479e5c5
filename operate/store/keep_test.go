package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

func TestBreakdown(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		for n := range 5 {
			e := entry(n)
			e.Fingerprint = fmt.Sprint(n) // clusters are not told apart
			e.Meta.RedriveCount = n / 4
			if n == 3 {
				e.Original = &dlq.Original{BodyBytes: len(e.Message.Body)}
			}
			collect(t, s, noon.Add(time.Hour), collected(e))
		}
		must(t, errOf(s.Discard(t.Context(), noon, operator, store.Filter{IDs: []int64{2}})))
		with := func(f func(*store.Slice)) store.Slice {
			slice := store.Slice{
				Broker: "rabbit", Source: "orders.dead", Topic: "orders", Group: "billing", Reason: "exhausted", Format: "redrive",
				State: store.StateCollected, Letters: 1,
			}
			f(&slice)
			return slice
		}
		second := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Second) }
		want := []store.Slice{
			with(func(s *store.Slice) { s.Letters, s.FirstAt, s.LastAt = 2, noon, second(2) }),
			with(func(s *store.Slice) { s.Stub, s.FirstAt, s.LastAt = true, second(3), second(3) }),
			with(func(s *store.Slice) { s.RedriveCount, s.FirstAt, s.LastAt = 1, second(4), second(4) }),
			with(func(s *store.Slice) { s.State, s.FirstAt, s.LastAt = store.StateDiscarded, second(1), second(1) }),
		}
		for _, f := range []store.Filter{{}, {Text: "order"}, {Topic: "orders", Since: noon, MessageID: ""}} {
			got, err := s.Breakdown(t.Context(), f)
			must(t, err)
			for i := range got {
				same(t, "a size of 0", got[i].Bytes == 0, false)
				got[i].Bytes = 0
			}
			same(t, fmt.Sprintf("breakdown of %+v", f), got, want)
		}
		for _, f := range []store.Filter{{Topic: "other"}, {UpTo: 1, States: []store.State{store.StateUnknown}}, {Text: "nobody wrote this"}} {
			gives(t, []store.Slice(nil))(s.Breakdown(t.Context(), f))
		}
	})
}

func TestSweep(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 4)
		queue(t, s, l, 2)
		for i, c := range claim(t, s, l, 2) {
			sent(t, s, l, c.ID)
			receipts(t, s, dlq.Receipt{Send: c.Token, Outcome: []string{"handled", "dead"}[i]}) // an hour after noon
		}
		must(t, errOf(s.Discard(t.Context(), noon, operator, store.Filter{IDs: []int64{3}})))
		must(t, s.SetJob(t.Context(), noon, operator, l.Job, store.JobDone, ""))
		for _, step := range []struct {
			now  time.Duration
			keep store.Retention
			want store.Swept
		}{
			{1000 * time.Hour, store.Retention{}, store.Swept{}},
			{10 * time.Hour, store.Retention{Confirmed: 10 * time.Hour, Returned: 10 * time.Hour, Discarded: 11 * time.Hour, Audit: 11 * time.Hour}, store.Swept{}},
			{12 * time.Hour, store.Retention{Confirmed: 10 * time.Hour}, store.Swept{Letters: 1}},
			{12 * time.Hour, store.Retention{Confirmed: 10 * time.Hour, Returned: 10 * time.Hour}, store.Swept{Letters: 1}},
			{12 * time.Hour, store.Retention{Discarded: 11 * time.Hour}, store.Swept{Letters: 1}},
			{12 * time.Hour, store.Retention{Audit: 11 * time.Hour}, store.Swept{Jobs: 1, Acts: 3}},
		} {
			gives(t, step.want)(s.Sweep(t.Context(), noon.Add(step.now), step.keep))
		}
		wantState(t, s, 4, store.StateCollected)
		_, _, err := s.Content(t.Context(), 1)
		fails(t, err, store.ErrNotFound)
		gives(t, int64(1))(s.Delete(t.Context(), noon, operator, "customer-3"))
		gives(t, store.Swept{Clusters: 1})(s.Sweep(t.Context(), noon, store.Retention{})) // the topic is kept, which has a receipt
	})
}

// TestSweepByTopic keeps the letters of a topic for another time than the others.
func TestSweepByTopic(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		letters := []store.Collected{collected(entry(1)), collected(entry(2)), collected(entry(3))}
		letters[1].Broker, letters[2].Entry.Message.Topic = "another", "payments"
		collect(t, s, noon, letters...)
		gives(t, int64(3))(s.Discard(t.Context(), noon, operator, store.Filter{}))
		keep := store.Retention{Discarded: 10 * time.Hour, Of: map[store.Topic]store.Retention{
			{Broker: "rabbit", Name: "orders"}:   {Discarded: 20 * time.Hour},
			{Broker: "rabbit", Name: "payments"}: {Discarded: time.Hour},
		}}
		for _, step := range []struct {
			hours int
			left  []int64
		}{{2, []int64{2, 1}}, {11, []int64{1}}, {21, nil}} {
			must(t, errOf(s.Sweep(t.Context(), noon.Add(time.Duration(step.hours)*time.Hour), keep)))
			same(t, fmt.Sprint("left after hours: ", step.hours), idsOf(list(t, s, store.Filter{}, 10)), step.left)
		}
	})
}

// TestDelete leaves nothing of a person: not in a list, not in a text, not in the
// file.
func TestDelete(t *testing.T) {
	const secret = "jane.doe@example.com"
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		e := entry(1)
		e.Message.Key, e.ErrorText = secret, "no account of "+secret
		e.Message.ID = secret
		e.Message.Body = bytes.Repeat([]byte(secret+" "), 200<<10) // in parts, too
		e.Message.Headers = brokers.Headers{{Name: "user", Value: secret}}
		collect(t, s, noon.Add(time.Hour), collected(e), collected(entry(2)))
		anna := store.Actor{Who: "anna", Command: "delete", Reason: "asked for, ticket 7"}
		gives(t, int64(1))(s.Delete(t.Context(), noon, anna, secret))
		same(t, "letters", idsOf(list(t, s, store.Filter{}, 10)), []int64{2})
		clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
		must(t, err)
		if len(clusters.Clusters) != 1 || clusters.Clusters[0].ErrorText != "connection refused" {
			t.Errorf("Clusters = %+v", clusters)
		}
		audit := store.AuditListing{Acts: []store.Act{{ID: 1, At: noon, Actor: anna, What: "delete", Letters: 1}}}
		gives(t, audit)(s.Audit(t.Context(), store.Page{}))
		collect(t, s, noon, collected(e)) // nothing remembers it
		must(t, errOf(s.Delete(t.Context(), noon, store.Actor{}, secret)))
		files, _ := filepath.Glob(url + "*")
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			same(t, filepath.Base(file)+" still has it", bytes.Contains(text, []byte(secret)), false)
		}
	})
}

func TestPutBack(t *testing.T) {
	refused := errors.New("the second one is too large")
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 4) // letters 1 to 4
		queue(t, s, l, 1)
		again := collected(entry(1))
		ctx, cancel := context.WithCancel(t.Context())
		put, err := s.PutBack(ctx, noon, operator, []int64{1, 2, 3, 4, 99}, func(_ context.Context, letters []int64) ([]int64, error) {
			same(t, "published", letters, []int64{2, 3, 4}) // those that no job holds
			collect(t, s, noon.Add(time.Hour), again)       // by somebody who is fast, and who acks it
			cancel()
			return []int64{2, 4}, refused
		})
		same(t, "put back", put, 2)
		fails(t, err, refused)
		for id, want := range map[int64]store.State{1: store.StateQueued, 2: store.StateDiscarded, 3: store.StateCollected, 4: store.StateDiscarded, 5: store.StateCollected} {
			wantState(t, s, id, want)
		}
		must(t, errOf(s.Sweep(t.Context(), noon.Add(1000*time.Hour), store.Retention{Discarded: time.Hour})))
		same(t, "letters after retention", idsOf(list(t, s, store.Filter{MessageID: "message-1"}, 10)), []int64{5}) // collected again
		collect(t, s, noon.Add(time.Hour), collected(entry(2)))                                                     // of which nobody knows whether the broker has it
	})
}

// everything is what a store tells.
func everything(t *testing.T, s *store.Store) (all []any) {
	t.Helper()
	add := func(v any, err error) {
		t.Helper()
		must(t, err)
		all = append(all, v)
	}
	for _, l := range list(t, s, store.Filter{}, 1000) {
		raw, e, err := s.Content(t.Context(), l.ID)
		add(l, nil)
		add(raw, err)
		add(e, nil)
		add(s.History(t.Context(), l.ID))
	}
	add(s.Clusters(t.Context(), store.Filter{}, store.ByLastDeath, store.Page{}))
	add(s.Stats(t.Context(), noon))
	add(s.Jobs(t.Context(), store.Page{}))
	add(s.Audit(t.Context(), store.Page{}))
	return all
}

func TestCopy(t *testing.T) {
	onBoth(t, func(t *testing.T, from string) {
		s := open(t, from)
		large := entry(100)
		large.Message.Body = bytes.Repeat([]byte("\x00\xff"), 3<<20)
		foreign := collected(entry(101))
		foreign.Raw.Body, foreign.Position = []byte("wrapped"), "0/1"
		unknown := collected(entry(102))
		unknown.Entry.DeadAt = time.Time{}
		collect(t, s, noon.Add(time.Hour), collected(large), foreign, unknown, store.Collected{})
		l := running(t, s, 10)
		queue(t, s, l, 5)
		claimed := claim(t, s, l, 3)
		sent(t, s, l, claimed[0].ID)
		receipts(t, s, dlq.Receipt{Send: claimed[0].Token, Outcome: "handled"})
		want := everything(t, s)

		onBoth(t, func(t *testing.T, into string) {
			to := open(t, into)
			must(t, s.Copy(t.Context(), to))
			same(t, "the copy", everything(t, to), want)
			fails(t, s.Copy(t.Context(), to), store.ErrNotEmpty)
			same(t, "the job goes on", claim(t, to, l, 3), claimed[1:])
			gives(t, 1)(to.Collect(t.Context(), noon, []store.Collected{collected(large), collected(entry(200))})) // it knows the other
			wantState(t, to, 15, store.StateCollected)
		})
	})
}

// TestCopyIsOneMoment copies while others write.
func TestCopyIsOneMoment(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		intoURL := sibling(t, url)
		s, to := open(t, url), open(t, intoURL)
		var ended atomic.Bool
		started := make(chan struct{})
		errs := make(chan error, 1)
		go func() {
			defer close(errs)
			for n := 0; !ended.Load(); n++ {
				if _, err := s.Collect(t.Context(), noon, pair(n)); err != nil {
					errs <- err
					return
				}
				if n == 5 {
					close(started)
				}
			}
		}()
		<-started
		err := s.Copy(t.Context(), to)
		ended.Store(true)
		must(t, errors.Join(err, <-errs))
		letters := list(t, to, store.Filter{}, 1000)
		same(t, "pairs without the second", len(letters)%2, 0)
		recount(t, raw(t, intoURL), "topic", "topics")
		for _, l := range letters {
			_, _, err := to.Content(t.Context(), l.ID)
			must(t, err)
		}
	})
}
