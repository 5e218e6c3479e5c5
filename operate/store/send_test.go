package store_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
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

func queue(t testing.TB, s *store.Store, l store.Lease, n int) int {
	t.Helper()
	queued, _, err := s.Queue(t.Context(), noon, l, n, sendAll)
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
	if err != nil || len(waves) == 0 || waves[0].N != n {
		t.Fatalf("Waves from %d on = %+v, %v", n, waves, err)
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

// TestLife follows a letter from the first collecting to the second.
func TestLife(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 1)
		if n := queue(t, s, l, 10); n != 1 {
			t.Fatalf("Queue = %d, want 1", n)
		}
		claimed := claim(t, s, l, 10)
		if len(claimed) != 1 || claimed[0].Entry.Message.ID != "message-0" || claimed[0].Raw.Topic != "orders.dead" || claimed[0].Sends != 1 {
			t.Fatalf("Claim = %+v", claimed)
		}
		token := claimed[0].Token
		if !strings.HasPrefix(token, "1.1.") || len(token) > 64 || len(token) < 20 {
			t.Errorf("the token is %q", token)
		}
		sent(t, s, l, 1)
		if n := receipts(t, s, dlq.Receipt{Send: token, Outcome: "failed", Class: "transient", Fingerprint: "f1"}); n != 1 {
			t.Errorf("Receipts = %d, want 1", n)
		}
		wantState(t, s, 1, store.StateSent)
		if w := wave(t, s, l.Job, 1); w.Failed != 1 || w.Failing["transient"] != 1 || !w.SentAt.Equal(noon) {
			t.Errorf("the wave is %+v, want one that failed", w)
		}

		dead := entry(9)
		dead.Meta.Send, dead.Meta.RedriveCount = token, 1
		forged := entry(10)
		forged.Meta.Send = token[:len(token)-1] + "x"
		collect(t, s, noon.Add(2*time.Hour), collected(forged), collected(dead))
		collect(t, s, noon.Add(2*time.Hour), func() store.Collected { e := entry(11); e.Meta.Send = token; return collected(e) }())

		old := letter(t, s, 1)
		if old.State != store.StateReturned || old.Next != 3 || old.Sends != 1 || old.Job != l.Job {
			t.Errorf("the letter that came back is %+v", old)
		}
		for id, want := range map[int64]int64{2: 0, 3: 1, 4: 0} {
			if l := letter(t, s, id); l.Previous != want || l.State != store.StateCollected {
				t.Errorf("letter %d came back from %d and is %s, want %d", id, l.Previous, l.State, want)
			}
		}
		history, err := s.History(t.Context(), 1)
		var got []string
		for _, c := range history {
			got = append(got, fmt.Sprintf("%s→%s %s %s %d", c.From, c.To, c.Note, c.Actor.Who, c.Job))
		}
		want := []string{
			"→collected   0", "collected→queued  anna 1", "queued→sending  anna 1", "sending→sent  anna 1",
			"sent→sent failed transient f1  0", "sent→returned it came back as another letter  0",
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("History = %q, %v\nwant %q", got, err, want)
		}
		w := wave(t, s, l.Job, 1)
		if want := (store.Tally{Counts: store.Counts{Returned: 1}, Failed: 1}); w.Tally != want || !w.SentAt.Equal(noon) || len(w.Failing) != 0 {
			t.Errorf("the wave is %+v, want %+v", w, want)
		}
		if at, err := s.SeenReceipt(t.Context(), "rabbit", "orders"); err != nil || at.IsZero() {
			t.Errorf("SeenReceipt = %v, %v", at, err)
		}
		if at, err := s.SeenReceipt(t.Context(), "rabbit", "other"); err != nil || !at.IsZero() {
			t.Errorf("SeenReceipt of another topic = %v, %v", at, err)
		}
	})
}

// TestQueueInOrder takes letters once, oldest first, in waves.
func TestQueueInOrder(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		for _, n := range []int{5, 3, 9, 1, 7, 8} {
			collect(t, s, noon.Add(time.Hour), collected(entry(n)))
		}
		l := running(t, s, 0)
		collect(t, s, noon.Add(time.Hour), collected(entry(0))) // too late for the job

		odd := func(l store.Letter) string {
			if l.MessageID == "message-8" {
				return "redrive-limit"
			}
			return ""
		}
		if n, more, err := s.Queue(t.Context(), noon, l, 2, odd); n != 2 || !more || err != nil || job(t, s, l.Job).Exhausted {
			t.Fatalf("Queue = %d, %v, %v, want 2 and more", n, more, err)
		}
		if wave, err := s.NextWave(t.Context(), noon.Add(time.Minute), l); wave != 2 || err != nil {
			t.Fatalf("NextWave = %d, %v", wave, err)
		}
		var got []string
		for _, c := range claim(t, s, l, 10) {
			got = append(got, c.MessageID)
		}
		if n, more, err := s.Queue(t.Context(), noon, l, 10, odd); n != 3 || more || err != nil {
			t.Fatalf("Queue of the rest = %d, %v, %v, want 3", n, more, err)
		}
		sent(t, s, l, 2)
		must(t, s.Sent(t.Context(), noon, l, []store.Outcome{{Letter: 4, Refused: "too large"}}))
		for {
			claimed := claim(t, s, l, 2)
			if len(claimed) == 0 {
				break
			}
			for _, c := range claimed {
				got = append(got, c.MessageID)
				sent(t, s, l, c.ID)
			}
		}
		want := []string{"message-1", "message-3", "message-5", "message-7", "message-9"}
		if !slices.Equal(got, want) {
			t.Errorf("claimed %q, want %q", got, want)
		}
		if n, more, err := s.Queue(t.Context(), noon, l, 10, sendAll); n != 0 || more || err != nil {
			t.Errorf("Queue at the end = %d, %v, %v: nothing twice, not even what was refused", n, more, err)
		}
		j := job(t, s, l.Job)
		wantJob := j
		wantJob.Filter, wantJob.Spec, wantJob.Actor, wantJob.Exhausted = store.Filter{UpTo: 6}, []byte("spec"), operator, true
		wantJob.Wave, wantJob.WaveSince, wantJob.Skipped = 2, noon.Add(time.Minute), map[string]int64{"redrive-limit": 1}
		wantJob.Tally = store.Tally{Counts: store.Counts{Collected: 1, Sent: 4, Skipped: 1}}
		if !reflect.DeepEqual(j, wantJob) {
			t.Errorf("the job is %+v\nwant %+v", j, wantJob)
		}
		if l := letter(t, s, 6); l.State != store.StateSkipped || l.Note != "redrive-limit" {
			t.Errorf("the letter over the limit is %+v", l)
		}
		if l := letter(t, s, 4); l.State != store.StateCollected || l.Note != "refused: too large" || l.Sends != 1 {
			t.Errorf("the refused letter is %+v", l)
		}
	})
}

// TestQueueGetsOnWhereManyAreSkipped needs few calls to skip many letters.
func TestQueueGetsOnWhereManyAreSkipped(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 30)
		last := func(l store.Letter) string {
			if l.ID < 30 {
				return "too old"
			}
			return ""
		}
		if n, more, err := s.Queue(t.Context(), noon, l, 1, last); n != 1 || more || err != nil {
			t.Errorf("Queue = %d, %v, %v, want the last of 30", n, more, err)
		}
		if j := job(t, s, l.Job); j.Skipped["too old"] != 29 || j.Tally.Queued != 1 {
			t.Errorf("the job is %+v", j)
		}
	})
}

// TestJobOfAnEmptyStore takes nothing that comes later, either.
func TestJobOfAnEmptyStore(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 0)
		if last, err := s.Last(t.Context()); last != -1 || err != nil {
			t.Errorf("Last = %d, %v, want -1", last, err)
		}
		collect(t, s, noon.Add(time.Hour), collected(entry(1)))
		if n := queue(t, s, l, 10); n != 0 {
			t.Errorf("Queue = %d, want nothing", n)
		}
		if last, err := s.Last(t.Context()); last != 1 || err != nil {
			t.Errorf("Last = %d, %v, want 1", last, err)
		}
	})
}

// TestClaimAgain returns what a process that crashed was sending.
func TestClaimAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		l := running(t, s, 5)
		queue(t, s, l, 10)
		before := claim(t, s, l, 3)
		sent(t, s, l, before[1].ID)

		s = open(t, url) // as another process does
		after := claim(t, s, lease(t, s, l.Job), 10)
		if len(after) != 2 || after[0].ID != before[0].ID || after[1].ID != before[2].ID || after[0].Token != before[0].Token || after[0].Sends != 1 {
			t.Errorf("Claim after a crash = %+v", after)
		}
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
		for n := range 3 {
			claimed := claim(t, s, l, 10)
			if len(claimed) != 1 || claimed[0].MessageID != fmt.Sprintf("message-%d", n) || len(claimed[0].Raw.Body) != 10<<20 {
				t.Fatalf("Claim of large letters returns %d", len(claimed))
			}
			sent(t, s, l, claimed[0].ID)
		}
	})
}

func TestReceipts(t *testing.T) {
	token := func(s store.Sending) string { return s.Token }
	tests := []struct {
		name     string
		before   func(t *testing.T, s *store.Store, l store.Lease, c store.Sending)
		send     func(store.Sending) string
		outcomes []string
		believed int
		want     store.State
		failed   int64
	}{
		{"handled", nil, token, []string{"handled"}, 1, store.StateConfirmed, 0},
		{"dead", nil, token, []string{"dead"}, 1, store.StateReturned, 0},
		{"failed, then handled", nil, token, []string{"failed", "handled"}, 2, store.StateConfirmed, 1},
		{"failed twice", nil, token, []string{"failed", "failed"}, 2, store.StateSent, 1},
		{"of a later version", nil, token, []string{"paused"}, 1, store.StateSent, 0},
		{"forged", nil, func(c store.Sending) string { return c.Token + "x" }, []string{"handled"}, 0, store.StateSent, 0},
		{"of nobody", nil, func(store.Sending) string { return "99.1.abc" }, []string{"handled"}, 0, store.StateSent, 0},
		{"no token", nil, func(store.Sending) string { return "" }, []string{"handled"}, 0, store.StateSent, 0},
		{"not a token", nil, func(store.Sending) string { return "-1.1.1 or 1=1" }, []string{"handled"}, 0, store.StateSent, 0},
		{"late", func(t *testing.T, s *store.Store, l store.Lease, _ store.Sending) {
			if n, err := s.Expire(t.Context(), noon, l.Job, noon.Add(time.Second)); n != 1 || err != nil {
				t.Fatalf("Expire = %d, %v", n, err)
			}
		}, token, []string{"failed", "handled"}, 2, store.StateConfirmed, 1},
		{"after the end", func(t *testing.T, s *store.Store, _ store.Lease, c store.Sending) {
			receipts(t, s, dlq.Receipt{Send: c.Token, Outcome: "handled"})
		}, token, []string{"failed", "dead"}, 2, store.StateConfirmed, 0},
		{"of the send before", func(t *testing.T, s *store.Store, l store.Lease, c store.Sending) {
			must(t, errOf(s.Expire(t.Context(), noon, l.Job, noon.Add(time.Second))))
			again := running(t, s, 0)
			queue(t, s, again, 1)
			sent(t, s, again, claim(t, s, again, 1)[0].ID)
		}, token, []string{"failed", "dead"}, 0, store.StateSent, 0},
	}
	onBoth(t, func(t *testing.T, url string) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				s := open(t, sibling(t, url))
				l := running(t, s, 1)
				queue(t, s, l, 1)
				c := claim(t, s, l, 1)[0]
				sent(t, s, l, 1)
				if tt.before != nil {
					tt.before(t, s, l, c)
				}
				believed := 0
				for _, o := range tt.outcomes {
					believed += receipts(t, s, dlq.Receipt{Send: tt.send(c), Outcome: o})
				}
				if believed != tt.believed {
					t.Errorf("%d receipts are believed, want %d", believed, tt.believed)
				}
				wantState(t, s, 1, tt.want)
				if w := wave(t, s, l.Job, 1); w.Failed != tt.failed {
					t.Errorf("the wave is %+v, want %d failed", w, tt.failed)
				}
			})
		}
	})
}

// TestReceiptOvertakesConfirm lets a worker be faster than the broker's answer.
func TestReceiptOvertakesConfirm(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 2)
		queue(t, s, l, 2)
		claimed := claim(t, s, l, 2)
		receipts(t, s, dlq.Receipt{Send: claimed[0].Token, Outcome: "handled"}, dlq.Receipt{Send: claimed[1].Token, Outcome: "dead"})
		must(t, s.Sent(t.Context(), noon, l, []store.Outcome{{Letter: 1}, {Letter: 2, Refused: "so it seems"}}))
		wantState(t, s, 1, store.StateConfirmed)
		wantState(t, s, 2, store.StateReturned)
	})
}

func TestLease(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 2)
		queue(t, s, l, 2)
		_, err := s.Lease(t.Context(), noon.Add(59*time.Second), l.Job, "process 2", time.Minute)
		var leased *store.LeasedError
		if !errors.Is(err, store.ErrLeased) || !errors.As(err, &leased) || leased.Owner != "process 1" || !leased.Until.Equal(noon.Add(time.Minute)) {
			t.Errorf("Lease of the second process: %v", err)
		}
		if _, err := s.Lease(t.Context(), noon.Add(59*time.Second), l.Job, "process 1", time.Minute); err != nil {
			t.Errorf("Lease again: %v", err)
		}
		other, err := s.Lease(t.Context(), noon.Add(3*time.Minute), l.Job, "process 2", time.Minute)
		if err != nil {
			t.Fatalf("Lease after its end: %v", err)
		}
		ownErr := s.SetOwnJob(t.Context(), noon, l, operator, store.JobPaused, "by whoever had the lease")
		_, _, queueErr := s.Queue(t.Context(), noon, l, 1, sendAll)
		_, claimErr := s.Claim(t.Context(), noon, l, 1)
		_, waveErr := s.NextWave(t.Context(), noon, l)
		for call, err := range map[string]error{"Queue": queueErr, "Claim": claimErr, "NextWave": waveErr, "Sent": s.Sent(t.Context(), noon, l, nil), "SetOwnJob": ownErr} {
			if !errors.Is(err, store.ErrLeased) {
				t.Errorf("%s without the lease: %v, want ErrLeased", call, err)
			}
		}
		if err := s.Release(t.Context(), l); err != nil { // does nothing to that of another
			t.Error(err)
		}
		if n := len(claim(t, s, other, 1)); n != 1 {
			t.Errorf("the new owner claims %d", n)
		}
		if err := s.SetOwnJob(t.Context(), noon, other, operator, store.JobPaused, "by its owner"); err != nil || job(t, s, l.Job).Note != "by its owner" {
			t.Errorf("SetOwnJob: %v", err)
		}
		if err := s.SetOwnJob(t.Context(), noon, other, operator, store.JobDone, ""); !errors.Is(err, store.ErrNotRunning) {
			t.Errorf("SetOwnJob of a job that others have paused: %v", err)
		}
		if err := s.Release(t.Context(), other); err != nil {
			t.Error(err)
		}
		if _, err := s.Lease(t.Context(), noon, l.Job, "process 1", time.Minute); err != nil {
			t.Errorf("Lease after Release: %v", err)
		}
		if _, err := s.Lease(t.Context(), noon, 99, "process 1", time.Minute); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Lease of no job: %v", err)
		}
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
		if _, err := s.Claim(t.Context(), noon, l, 1); !errors.Is(err, store.ErrNotRunning) || !strings.Contains(err.Error(), "because") {
			t.Errorf("Claim of a paused job: %v", err)
		}
		must(t, set(store.JobRunning))
		if w := wave(t, s, l.Job, 2); !w.Resumed || job(t, s, l.Job).Wave != 2 || wave(t, s, l.Job, 1).Resumed {
			t.Errorf("the job that was resumed is in wave %+v", w)
		}
		must(t, set(store.JobCancelled))
		wantState(t, s, 1, store.StateSending)
		wantState(t, s, 2, store.StateCollected)
		if err := set(store.JobRunning); !errors.Is(err, store.ErrNotRunning) {
			t.Errorf("a job that was cancelled goes on: %v", err)
		}
		if n, err := s.Expire(t.Context(), noon, l.Job, noon.Add(time.Hour)); n != 0 || err != nil {
			t.Errorf("Expire = %d, %v: the process may still be sending", n, err)
		}
		if n, err := s.Expire(t.Context(), noon.Add(2*time.Minute), l.Job, noon.Add(time.Hour)); n != 1 || err != nil {
			t.Errorf("Expire after the lease = %d, %v, want 1", n, err)
		}
		wantState(t, s, 1, store.StateUnknown)
		j := job(t, s, l.Job)
		if want := (store.Counts{Collected: 2, Unknown: 1}); j.Tally.Counts != want || j.State != store.JobCancelled || !j.EndedAt.Equal(noon) || j.Note != "because" {
			t.Errorf("the job is %+v", j)
		}
		audit, err := s.Audit(t.Context(), store.Page{})
		var got []string
		for _, a := range audit.Acts {
			got = append(got, a.What)
		}
		if want := []string{"cancelled", "running", "paused", "create"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("Audit = %q, %v, want %q", got, err, want)
		}
	})
}

func TestJobs(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		f := store.Filter{Topic: "\xff\x00", Header: store.HeaderFilter{Name: "base64:", Value: new("\xfe")}, States: []store.State{store.StateUnknown}, Since: noon, IDs: []int64{7}}
		for range 5 {
			must(t, errOf(s.CreateJob(t.Context(), noon, operator, f, nil)))
		}
		var got []int64
		for p := (store.Page{Limit: 2}); ; {
			jobs, err := s.Jobs(t.Context(), p)
			must(t, err)
			for _, j := range jobs.Jobs {
				got = append(got, j.ID)
				want := f
				if want.UpTo = j.Filter.UpTo; !reflect.DeepEqual(j.Filter, want) {
					t.Errorf("the filter came back as %+v, want %+v", j.Filter, want)
				}
			}
			if p.After = jobs.Next; p.After == "" {
				break
			}
		}
		if want := []int64{5, 4, 3, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("Jobs = %v, want %v", got, want)
		}
		if f.Topic != "\xff\x00" || *f.Header.Value != "\xfe" {
			t.Error("CreateJob has changed the filter of its caller")
		}
		if _, err := s.Job(t.Context(), 6); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Job(6): %v", err)
		}
	})
}

// TestUnfinishedJobs leaves out those with which nothing is to be done any more.
func TestUnfinishedJobs(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		wants := func(what string, want ...int64) {
			t.Helper()
			jobs, err := s.UnfinishedJobs(t.Context())
			var got []int64
			for _, j := range jobs {
				got = append(got, j.ID)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v, want %v", what, got, err, want)
			}
		}
		set := func(job int64, state store.JobState) {
			t.Helper()
			must(t, s.SetJob(t.Context(), noon, operator, job, state, ""))
		}
		wants("no job")
		l := running(t, s, 2)
		for range 2 {
			running(t, s, 0)
		}
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

func TestDiscardAndRestore(t *testing.T) {
	onStores(t, func(t *testing.T, s *store.Store) {
		l := running(t, s, 5) // letters 1 to 5
		queue(t, s, l, 3)
		for _, c := range claim(t, s, l, 2) {
			sent(t, s, l, c.ID)
		}
		must(t, errOf(s.Expire(t.Context(), noon, l.Job, noon.Add(time.Second))))
		// 1 and 2 are unknown, 3 is queued, 4 and 5 are collected
		n, err := s.Discard(t.Context(), noon, store.Actor{Who: "bob", Reason: "obsolete"}, store.Filter{UpTo: 4})
		if err != nil || n != 3 {
			t.Errorf("Discard = %d, %v, want 3", n, err)
		}
		for id, want := range map[int64]store.State{1: store.StateDiscarded, 2: store.StateDiscarded, 3: store.StateQueued, 4: store.StateDiscarded, 5: store.StateCollected} {
			wantState(t, s, id, want)
		}
		if n, err := s.Discard(t.Context(), noon, operator, store.Filter{States: []store.State{store.StateQueued}}); err != nil || n != 0 {
			t.Errorf("Discard of what a job holds = %d, %v", n, err)
		}
		if n, err := s.Restore(t.Context(), noon, operator, store.Filter{}); err != nil || n != 3 {
			t.Errorf("Restore = %d, %v, want 3", n, err)
		}
		for id, want := range map[int64]store.State{1: store.StateUnknown, 2: store.StateUnknown, 3: store.StateQueued, 4: store.StateCollected, 5: store.StateCollected} {
			wantState(t, s, id, want)
		}
		history, err := s.History(t.Context(), 4)
		bob := store.Actor{Who: "bob", Reason: "obsolete"}
		change := store.Change{At: noon, From: store.StateCollected, To: store.StateDiscarded, Note: "obsolete", Actor: bob}
		if err != nil || len(history) != 3 || history[1] != change {
			t.Errorf("History = %+v, %v, want %+v in the middle", history, err, change)
		}
		audit, err := s.Audit(t.Context(), store.Page{Limit: 2})
		act := store.Act{ID: 2, At: noon, Actor: bob, What: "discard", Letters: 3} // after the job was created
		if err != nil || len(audit.Acts) != 2 || audit.Acts[1] != act || audit.Next == "" {
			t.Errorf("Audit = %+v, %v, want %+v and another page", audit, err, act)
		}
	})
}
