package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
				e = e.Stub()
			}
			c := collected(e)
			collect(t, s, noon.Add(time.Hour), c)
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
			var bytes int64
			for i := range got {
				bytes += got[i].Bytes
				got[i].Bytes = 0
			}
			if err != nil || !reflect.DeepEqual(got, want) || bytes == 0 {
				t.Errorf("Breakdown(%+v) = %+v (%d bytes), %v\nwant %+v", f, got, bytes, err, want)
			}
		}
		for _, f := range []store.Filter{{Topic: "other"}, {UpTo: 1, States: []store.State{store.StateUnknown}}, {Text: "nobody wrote this"}} {
			if got, err := s.Breakdown(t.Context(), f); err != nil || len(got) != 0 {
				t.Errorf("Breakdown(%+v) = %+v, %v, want nothing", f, got, err)
			}
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
		steps := []struct {
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
		}
		for i, step := range steps {
			got, err := s.Sweep(t.Context(), noon.Add(step.now), step.keep)
			if err != nil || got != step.want {
				t.Errorf("step %d: Sweep = %+v, %v, want %+v", i, got, err, step.want)
			}
		}
		wantState(t, s, 4, store.StateCollected)
		if _, _, err := s.Content(t.Context(), 1); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the content of a letter that was swept: %v", err)
		}
		if n, err := s.Delete(t.Context(), noon, operator, "customer-3"); n != 1 || err != nil {
			t.Fatalf("Delete = %d, %v", n, err)
		}
		if got, err := s.Sweep(t.Context(), noon, store.Retention{}); err != nil || got != (store.Swept{Clusters: 1}) {
			t.Errorf("Sweep of an empty store = %+v, %v, want the cluster gone and the topic kept, which has a receipt", got, err)
		}
	})
}

// TestSweepByTopic keeps the letters of a topic for another time than the others.
func TestSweepByTopic(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		list := []store.Collected{collected(entry(1)), collected(entry(2)), collected(entry(3))}
		list[1].Broker, list[2].Entry.Message.Topic = "another", "payments"
		collect(t, s, noon, list...)
		if n, err := s.Discard(t.Context(), noon, operator, store.Filter{}); n != 3 || err != nil {
			t.Fatalf("Discard = %d, %v", n, err)
		}
		keep := store.Retention{Discarded: 10 * time.Hour, Of: map[store.Topic]store.Retention{
			{Broker: list[0].Broker, Name: list[0].Entry.Message.Topic}: {Discarded: 20 * time.Hour},
			{Broker: list[0].Broker, Name: "payments"}:                  {Discarded: time.Hour},
		}}
		for _, step := range []struct {
			hours int
			left  []int64
		}{{2, []int64{2, 1}}, {11, []int64{1}}, {21, nil}} {
			must(t, errOf(s.Sweep(t.Context(), noon.Add(time.Duration(step.hours)*time.Hour), keep)))
			got, err := s.Letters(t.Context(), store.Filter{}, store.Page{})
			must(t, err)
			var left []int64
			for _, l := range got.Letters {
				left = append(left, l.ID)
			}
			slices.Sort(left)
			slices.Sort(step.left)
			if !slices.Equal(left, step.left) {
				t.Errorf("after %d hours the letters %v are left, want %v", step.hours, left, step.left)
			}
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
		n, err := s.Delete(t.Context(), noon, anna, secret)
		if err != nil || n != 1 {
			t.Fatalf("Delete = %d, %v, want 1", n, err)
		}
		if got := list(t, s, store.Filter{}, 10); len(got) != 1 || got[0].ID != 2 {
			t.Errorf("the letters are %+v", got)
		}
		clusters, err := s.Clusters(t.Context(), store.Filter{}, store.ByOpen, store.Page{})
		if err != nil || len(clusters.Clusters) != 1 || clusters.Clusters[0].ErrorText != "connection refused" {
			t.Errorf("Clusters = %+v, %v", clusters, err)
		}
		audit, err := s.Audit(t.Context(), store.Page{})
		if want := []store.Act{{ID: 1, At: noon, Actor: anna, What: "delete", Letters: 1}}; err != nil || !slices.Equal(audit.Acts, want) {
			t.Errorf("Audit = %+v, %v, want %+v", audit, err, want)
		}
		if n, err := s.Collect(t.Context(), noon, []store.Collected{collected(e)}); n != 1 || err != nil {
			t.Errorf("Collect of the letter = %d, %v: nothing remembers it", n, err)
		}
		must(t, errOf(s.Delete(t.Context(), noon, store.Actor{}, secret)))
		files, _ := filepath.Glob(url + "*")
		for _, file := range files {
			if text, err := os.ReadFile(file); err != nil || bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s still has it (%v)", filepath.Base(file), err)
			}
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
			if !slices.Equal(letters, []int64{2, 3, 4}) {
				t.Errorf("letters %d are published, want those that no job holds", letters)
			}
			collect(t, s, noon.Add(time.Hour), again) // by somebody who is fast, and who acks it
			cancel()
			return []int64{2, 4}, refused
		})
		if put != 2 || !errors.Is(err, refused) {
			t.Fatalf("PutBack = %d, %v, want 2 and the error of publish", put, err)
		}
		for id, want := range map[int64]store.State{1: store.StateQueued, 2: store.StateDiscarded, 3: store.StateCollected, 4: store.StateDiscarded, 5: store.StateCollected} {
			wantState(t, s, id, want)
		}
		must(t, errOf(s.Sweep(t.Context(), noon.Add(1000*time.Hour), store.Retention{Discarded: time.Hour})))
		if got := idsOf(list(t, s, store.Filter{MessageID: "message-1"}, 10)); !slices.Equal(got, []int64{5}) {
			t.Errorf("after retention the letters with that ID are %d, want the one that was collected again", got)
		}
		collect(t, s, noon.Add(time.Hour), collected(entry(2))) // of which nobody knows whether the broker has it
	})
}

// TestDiscardedComesAgain delivers a letter once more after it was discarded: in
// a moment, because an ack got lost, and after a week.
func TestDiscardedComesAgain(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		c := collected(entry(1))
		collect(t, s, noon, c)
		must(t, errOf(s.Discard(t.Context(), noon, operator, store.Filter{})))
		for _, later := range []time.Duration{time.Second, 7 * 24 * time.Hour} {
			if n, err := s.Collect(t.Context(), noon.Add(later), []store.Collected{c}); n != 0 || err != nil {
				t.Errorf("Collect %v later = %d, %v, want none", later, n, err)
			}
		}
		wantState(t, s, 1, store.StateDiscarded)
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
			if got := everything(t, to); !reflect.DeepEqual(got, want) {
				t.Errorf("the copy is\n%+v\nwant\n%+v", got, want)
			}
			if err := s.Copy(t.Context(), to); !errors.Is(err, store.ErrNotEmpty) {
				t.Errorf("Copy into a store that is not empty: %v", err)
			}
			if got := claim(t, to, l, 3); len(got) != 2 || got[0].Token != claimed[1].Token {
				t.Errorf("the job goes on with %+v", got)
			}
			if n, err := to.Collect(t.Context(), noon, []store.Collected{collected(large), collected(entry(200))}); n != 1 || err != nil {
				t.Errorf("Collect into the copy = %d, %v, want 1: it knows the other", n, err)
			}
			wantState(t, to, 15, store.StateCollected)
		})
	})
}

// TestCopyIsOneMoment copies while others write.
func TestCopyIsOneMoment(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s, to := open(t, url), open(t, sibling(t, url))
		done := make(chan struct{})
		started := make(chan struct{})
		errs := make(chan error, 1)
		go func() {
			defer close(errs)
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.Collect(t.Context(), noon, []store.Collected{collected(entry(2 * n)), collected(entry(2*n + 1))}); err != nil {
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
		close(done)
		must(t, errors.Join(err, <-errs))
		letters := list(t, to, store.Filter{}, 1000)
		stats, err := to.Stats(t.Context(), noon)
		if n := len(letters); err != nil || n%2 != 0 || stats.Topics[0].Counts.Collected != int64(n) {
			t.Errorf("the copy has %d letters of pairs, and counts %+v, %v", n, stats, err)
		}
		for _, l := range letters {
			if _, _, err := to.Content(t.Context(), l.ID); err != nil {
				t.Error(err)
			}
		}
	})
}
