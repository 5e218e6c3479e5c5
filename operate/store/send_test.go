package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

var operator = store.Actor{Who: "anna", Command: "redrive dlq redrive", Reason: "fixed"}

// running makes a job with n letters, and takes its lease.
func running(t testing.TB, s *store.Store, n int) store.Lease {
	t.Helper()
	for i := range n {
		collect(t, s, noon.Add(time.Hour), collected(entry(i)))
	}
	j, err := s.CreateJob(t.Context(), noon, operator, store.Filter{}, []byte("spec"))
	must(t, err)
	return lease(t, s, j.ID)
}

func lease(t testing.TB, s *store.Store, job int64) store.Lease {
	t.Helper()
	l, err := s.Lease(t.Context(), noon, job, "process 1", time.Minute)
	must(t, err)
	return l
}

func sendAll(store.Letter) string { return "" }

func sendingIDs(claimed []store.Sending) (ids []int64) {
	for _, c := range claimed {
		ids = append(ids, c.ID)
	}
	return ids
}

func queue(t testing.TB, s *store.Store, l store.Lease, n int) int {
	t.Helper()
	return queueAt(t, s, noon, l, n)
}

func queueAt(t testing.TB, s *store.Store, at time.Time, l store.Lease, n int) int {
	t.Helper()
	queued, _, err := s.Queue(t.Context(), at, l, n, sendAll)
	must(t, err)
	return queued
}

func claim(t testing.TB, s *store.Store, l store.Lease, n int) []store.Sending {
	t.Helper()
	claimed, err := s.Claim(t.Context(), noon, l, n)
	must(t, err)
	return claimed
}

func sent(t testing.TB, s *store.Store, l store.Lease, letters ...int64) {
	t.Helper()
	var outcomes []store.Outcome
	for _, id := range letters {
		outcomes = append(outcomes, store.Outcome{Letter: id})
	}
	must(t, s.Sent(t.Context(), noon, l, outcomes))
}

func receipts(t testing.TB, s *store.Store, list ...dlq.Receipt) int {
	t.Helper()
	believed, err := s.Receipts(t.Context(), noon.Add(time.Hour), list)
	must(t, err)
	return believed
}

func wave(t testing.TB, s *store.Store, job int64, n int) store.Wave {
	t.Helper()
	waves, err := s.Waves(t.Context(), job, n)
	must(t, err)
	if len(waves) == 0 || waves[0].N != n {
		t.Fatalf("Waves from %d on = %+v", n, waves)
	}
	return waves[0]
}

func job(t testing.TB, s *store.Store, id int64) store.Job {
	t.Helper()
	j, err := s.Job(t.Context(), id)
	must(t, err)
	return j
}

func letter(t testing.TB, s *store.Store, id int64) store.Letter {
	t.Helper()
	l, err := s.Letter(t.Context(), id)
	must(t, err)
	return l
}

func wantState(t testing.TB, s *store.Store, id int64, want store.State) {
	t.Helper()
	if l := letter(t, s, id); l.State != want {
		t.Errorf("letter %d is %s (%s), want %s", id, l.State, l.Note, want)
	}
}

// TestLife follows letters from the first collecting to the second, and looks at what
// TestModel does not: notes, history, and what jobs and waves say.
func TestLife(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 30)
		plan := func(l store.Letter) string {
			if l.ID > 2 && l.ID < 30 {
				return "too old"
			}
			return ""
		}
		for calls, want := range []int{1, 1, 1, 0} { // and it needs few to skip many
			n, more, err := s.Queue(t.Context(), noon, l, 1, plan)
			if n != want || more != (calls < 2) || err != nil || job(t, s, l.Job).Exhausted == more {
				t.Fatalf("call %d: Queue = %d, %v, %v", calls, n, more, err)
			}
		}
		claimed := claim(t, s, l, 10)
		same(t, "claimed", sendingIDs(claimed), []int64{1, 2, 30})
		if c := claimed[0]; c.Entry.Message.ID != "message-0" || c.Raw.Topic != "orders.dead" || c.Sends != 1 {
			t.Errorf("Claim = %+v", c)
		}
		token := claimed[0].Token
		if !strings.HasPrefix(token, "1.1.") || len(token) > 64 || len(token) < 20 {
			t.Errorf("the token is %q", token)
		}
		gives(t, 2)(s.NextWave(t.Context(), noon.Add(time.Minute), l))
		must(t, s.Sent(t.Context(), noon, l, []store.Outcome{{Letter: 1}, {Letter: 2, Refused: "too large"}, {Letter: 30}}))
		same(t, "queued again", queue(t, s, l, 10), 0) // not even what was refused
		same(t, "believed", receipts(t, s, dlq.Receipt{Send: token, Outcome: "failed", Class: "transient", Fingerprint: "f1"}), 1)
		wantState(t, s, 1, store.StateSent)
		w := wave(t, s, l.Job, 1)
		same(t, "failing", w.Failing, map[string]int64{"transient": 1})
		same(t, "sent at", w.SentAt, noon)

		back := func(n int, token string) store.Collected {
			e := entry(n)
			e.Meta.Send, e.Meta.RedriveCount = token, 1
			return collected(e)
		}
		collect(t, s, noon.Add(2*time.Hour), back(110, token[:len(token)-1]+"x"), back(109, token))
		collect(t, s, noon.Add(2*time.Hour), back(111, token))
		if old := letter(t, s, 1); old.State != store.StateReturned || old.Next != 32 || old.Sends != 1 || old.Job != l.Job {
			t.Errorf("the letter that came back is %+v", old)
		}
		for id, want := range map[int64]int64{31: 0, 32: 1, 33: 0} {
			same(t, fmt.Sprint("what letter ", id, " was before"), letter(t, s, id).Previous, want)
			wantState(t, s, id, store.StateCollected)
		}
		same(t, "note of the skipped letter", letter(t, s, 3).Note, "too old")
		same(t, "note of the refused letter", letter(t, s, 2).Note, "refused: too large")
		history, err := s.History(t.Context(), 1)
		must(t, err)
		var got []string
		for _, c := range history {
			got = append(got, fmt.Sprintf("%s→%s %s %s %d", c.From, c.To, c.Note, c.Actor.Who, c.Job))
		}
		same(t, "history", got, []string{
			"→collected   0", "collected→queued  anna 1", "queued→sending  anna 1", "sending→sent  anna 1",
			"sent→sent failed transient f1  0", "sent→returned it came back as another letter  0",
		})
		w = wave(t, s, l.Job, 1)
		same(t, "tally", w.Tally, store.Tally{Counts: store.Counts{Collected: 1, Sent: 1, Skipped: 27, Returned: 1}, Failed: 1})
		same(t, "failing in the end", len(w.Failing), 0)
		want := job(t, s, l.Job)
		want.Filter, want.Spec, want.Actor, want.Exhausted = store.Filter{UpTo: 30}, []byte("spec"), operator, true
		want.Wave, want.WaveSince, want.Skipped, want.Tally = 2, noon.Add(time.Minute), map[string]int64{"too old": 27}, w.Tally
		same(t, "job", job(t, s, l.Job), want)
		for topic, seen := range map[string]bool{"orders": true, "other": false} {
			at, err := s.SeenReceipt(t.Context(), "rabbit", topic)
			must(t, err)
			same(t, "receipt of "+topic, !at.IsZero(), seen)
		}
	})
}

// TestJobOfAnEmptyStore takes nothing that comes later, either.
func TestJobOfAnEmptyStore(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 0)
		gives(t, int64(-1))(s.Last(t.Context()))
		collect(t, s, noon.Add(time.Hour), collected(entry(1)))
		same(t, "queued", queue(t, s, l, 10), 0)
		gives(t, int64(1))(s.Last(t.Context()))
	})
}

func TestClaimIsBounded(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		for n := range 3 {
			e := entry(n)
			e.Message.Body = make([]byte, 10<<20)
			collect(t, s, noon.Add(time.Hour), collected(e))
		}
		l := running(t, s, 0)
		queue(t, s, l, 10)
		for id := range int64(3) {
			claimed := claim(t, s, l, 10)
			if same(t, "claimed", sendingIDs(claimed), []int64{id + 1}); len(claimed[0].Raw.Body) != 10<<20 {
				t.Errorf("it has a body of %d bytes", len(claimed[0].Raw.Body))
			}
			sent(t, s, l, id+1)
		}
	})
}

// TestReceipts believes those with the token of the last send, and is not led back.
func TestReceipts(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 3)
		queue(t, s, l, 3)
		claimed := claim(t, s, l, 3)
		token := claimed[0].Token
		say := func(believed int, token string, outcomes ...string) {
			t.Helper()
			for _, o := range outcomes {
				same(t, o+" of "+token, receipts(t, s, dlq.Receipt{Send: token, Outcome: o}), believed)
			}
		}
		for _, made := range []string{token + "x", "99.1.abc", "", "-1.1.1 or 1=1"} {
			say(0, made, "handled")
		}
		say(1, token, "paused") // a word of a later version
		say(1, claimed[1].Token, "handled")
		say(1, claimed[2].Token, "dead")
		must(t, s.Sent(t.Context(), noon, l, []store.Outcome{{Letter: 1}, {Letter: 2}, {Letter: 3, Refused: "so it seems"}}))
		say(1, claimed[1].Token, "failed", "dead") // after the end
		say(1, token, "failed", "failed")
		for id, want := range map[int64]store.State{1: store.StateSent, 2: store.StateConfirmed, 3: store.StateReturned} {
			wantState(t, s, id, want)
		}
		same(t, "failed", wave(t, s, l.Job, 1).Failed, 1)
		gives(t, int64(1))(s.Expire(t.Context(), noon, l.Job, noon.Add(2*time.Hour)))
		again := running(t, s, 0)
		queue(t, s, again, 1)
		claimed = claim(t, s, again, 1)
		if len(claimed) != 1 {
			t.Fatalf("claimed %d letters, want letter 1 again", len(claimed))
		}
		sent(t, s, again, claimed[0].ID)
		say(0, token, "failed", "dead") // of the send before
		wantState(t, s, 1, store.StateSent)
	})
}

func TestLease(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 2)
		queue(t, s, l, 2)
		leases := func(after time.Duration, job int64, owner string) (store.Lease, error) {
			return s.Lease(t.Context(), noon.Add(after), job, owner, time.Minute)
		}
		err := errOf(leases(59*time.Second, l.Job, "process 2"))
		fails(t, err, store.ErrLeased)
		var leased *store.LeasedError
		if !errors.As(err, &leased) || leased.Owner != "process 1" || !leased.Until.Equal(noon.Add(time.Minute)) {
			t.Errorf("Lease of the second process: %v", err)
		}
		must(t, errOf(leases(59*time.Second, l.Job, "process 1"))) // again
		other, err := leases(3*time.Minute, l.Job, "process 2")    // after its end
		must(t, err)
		_, _, queueErr := s.Queue(t.Context(), noon, l, 1, sendAll)
		fails(t, queueErr, store.ErrLeased)
		fails(t, errOf(s.Claim(t.Context(), noon, l, 1)), store.ErrLeased)
		fails(t, errOf(s.NextWave(t.Context(), noon, l)), store.ErrLeased)
		fails(t, s.Sent(t.Context(), noon, l, nil), store.ErrLeased)
		fails(t, s.SetOwnJob(t.Context(), noon, l, operator, store.JobPaused, "by whoever had the lease"), store.ErrLeased)
		must(t, s.Release(t.Context(), l)) // does nothing to that of another
		same(t, "claimed by the new owner", len(claim(t, s, other, 1)), 1)
		must(t, s.SetOwnJob(t.Context(), noon, other, operator, store.JobPaused, "by its owner"))
		same(t, "note", job(t, s, l.Job).Note, "by its owner")
		fails(t, s.SetOwnJob(t.Context(), noon, other, operator, store.JobDone, ""), store.ErrNotRunning)
		must(t, s.Release(t.Context(), other))
		must(t, errOf(leases(0, l.Job, "process 1")))
		fails(t, errOf(leases(0, 99, "process 1")), store.ErrNotFound)
	})
}

func TestPauseAndCancel(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 3)
		queue(t, s, l, 3)
		claim(t, s, l, 1)
		set := func(state store.JobState) error {
			return s.SetJob(t.Context(), noon, operator, l.Job, state, "because")
		}
		must(t, set(store.JobPaused))
		err := errOf(s.Claim(t.Context(), noon, l, 1))
		fails(t, err, store.ErrNotRunning)
		fails(t, err, "because")
		must(t, set(store.JobRunning))
		same(t, "wave", job(t, s, l.Job).Wave, 2)
		same(t, "wave 2 is of a job that was resumed", wave(t, s, l.Job, 2).Resumed, true)
		same(t, "wave 1 is of a job that was resumed", wave(t, s, l.Job, 1).Resumed, false)
		must(t, set(store.JobCancelled))
		wantState(t, s, 1, store.StateSending)
		wantState(t, s, 2, store.StateCollected)
		fails(t, set(store.JobRunning), store.ErrNotRunning)
		gives(t, int64(0))(s.Expire(t.Context(), noon, l.Job, noon.Add(time.Hour))) // the process may still be sending
		gives(t, int64(1))(s.Expire(t.Context(), noon.Add(2*time.Minute), l.Job, noon.Add(time.Hour)))
		wantState(t, s, 1, store.StateUnknown)
		want := job(t, s, l.Job)
		want.State, want.EndedAt, want.Note, want.Tally.Counts = store.JobCancelled, noon, "because", store.Counts{Collected: 2, Unknown: 1}
		same(t, "job", job(t, s, l.Job), want)
		audit, err := s.Audit(t.Context(), store.Page{})
		must(t, err)
		var got []string
		for _, a := range audit.Acts {
			got = append(got, a.What)
		}
		same(t, "audit", got, []string{"cancelled", "running", "paused", "create"})
	})
}

func TestJobs(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		f := store.Filter{Topic: "\xff\x00", Header: store.HeaderFilter{Name: "base64:", Value: new("\xfe")}, States: []store.State{store.StateUnknown}, Since: noon, IDs: []int64{7}}
		for range 5 {
			must(t, errOf(s.CreateJob(t.Context(), noon, operator, f, nil)))
		}
		var got []int64
		for p := (store.Page{Limit: 2}); len(got) == 0 || p.After != ""; {
			jobs, err := s.Jobs(t.Context(), p)
			must(t, err)
			for _, j := range jobs.Jobs {
				got = append(got, j.ID)
				j.Filter.UpTo = 0
				same(t, "filter", j.Filter, f)
			}
			p.After = jobs.Next
		}
		same(t, "jobs", got, []int64{5, 4, 3, 2, 1})
		if f.Topic != "\xff\x00" || *f.Header.Value != "\xfe" {
			t.Error("CreateJob has changed the filter of its caller")
		}
		fails(t, errOf(s.Job(t.Context(), 6)), store.ErrNotFound)
	})
}

// TestUnfinishedJobs leaves out those with which nothing is to be done any more.
func TestUnfinishedJobs(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		wants := func(what string, want ...int64) {
			t.Helper()
			jobs, err := s.UnfinishedJobs(t.Context())
			must(t, err)
			var got []int64
			for _, j := range jobs {
				got = append(got, j.ID)
			}
			same(t, what, got, want)
		}
		set := func(job int64, state store.JobState) {
			t.Helper()
			must(t, s.SetJob(t.Context(), noon, operator, job, state, ""))
		}
		wants("no job")
		l := running(t, s, 2)
		running(t, s, 0)
		running(t, s, 0)
		set(2, store.JobPaused)
		set(3, store.JobDone)
		wants("running, paused and done", 2, 1)
		queue(t, s, l, 1)
		sent(t, s, l, claim(t, s, l, 1)[0].ID)
		set(1, store.JobCancelled)
		set(2, store.JobCancelled)
		wants("one of them with a letter on its way", 1)
		must(t, errOf(s.Expire(t.Context(), noon, 1, noon.Add(time.Second))))
		wants("nobody has heard of it")
	})
}
