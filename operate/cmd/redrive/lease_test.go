package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/store"
)

const killed = "bob@shop-1, process 4711, run K7QXB2"

// leave creates a job over all letters. Its process was killed a moment ago,
// and had queued some letters that it did not send.
func (s *shop) leave(queued int) {
	s.Helper()
	if got := s.call("dlq", "send", "--all", "--yes", "--detach", "--waves", "none", "--without-receipts", "--who", "anna@desk"); got.code != exitOK {
		s.Fatalf("%+v", got)
	}
	s.withStore(func(st *store.Store) {
		l, err := st.Lease(s.Context(), time.Now(), 1, killed, 30*time.Second)
		s.must(err)
		_, _, err = st.Queue(s.Context(), time.Now(), l, queued, func(store.Letter) string { return "" })
		s.must(err)
	})
}

// TestResumeAfterKill resumes the job of a process that was killed. Resume
// names that process, waits for the end of its lease, and takes the job over.
func TestResumeAfterKill(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 40)
		w, stop := s.work("shop", "orders")
		defer stop()
		s.leave(10)
		time.Sleep(5 * time.Second)
		began := time.Now()
		ctx, cancel := context.WithTimeoutCause(s.Context(), 5*time.Minute, errInterrupted)
		defer cancel()
		got := s.callWith(ctx, "dlq", "jobs", "resume", "1")
		if got.code != exitOK || !strings.HasPrefix(got.stdout, "Job 1 is done: 40 of 40 moved, 40 confirmed, 0 left\n") || w.ran() != 40 {
			s.Errorf("%+v after %d runs", got, w.ran())
		}
		said := strings.Join(strings.Fields(got.stderr), " ")
		for _, want := range []string{
			killed + " works on job 1, and has it until 2000-01-01T00:00:30Z, unless it renews its lease.",
			"No process works on job 1 any more: this command goes on with it.",
		} {
			if !strings.Contains(said, want) {
				s.Errorf("messages %q, want %q", said, want)
			}
		}
		if took := time.Since(began); took > 40*time.Second {
			s.Errorf("it took %v, want the rest of the lease and the letters", took)
		}
	})
}

// TestJobsShowIdle tests that the list of jobs, a single job and the JSON show
// whether a process works on a running job.
func TestJobsShowIdle(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 40)
		s.leave(10)
		row := func() jobRow { return s.jobs()[0] }
		until := time.Now().Add(30 * time.Second)
		if r := row(); r.Idle || r.State != "running" || r.Owner != killed || !r.OwnedUntil.Equal(until) {
			s.Errorf("with a lease: %+v", r)
		}
		s.wants("jobs_held.text", "dlq", "jobs", "show", "1")
		time.Sleep(31 * time.Second)
		if r := row(); !r.Idle || r.State != "running" || r.Owner != killed || !r.OwnedUntil.Equal(until) {
			s.Errorf("after the lease: %+v", r)
		}
		s.wants("jobs_idle.text", "dlq", "jobs")
		s.wants("jobs_show_idle.text", "dlq", "jobs", "show", "1")
		if got := s.call("dlq", "jobs", "pause", "1"); !strings.HasPrefix(got.stdout, "Job 1 is paused: ") {
			s.Errorf("%+v", got)
		}
		if r := row(); r.Idle || r.State != "paused" {
			s.Errorf("paused: %+v", r)
		}
	})
}

// TestResumeWatches tests that a second command watches a job until the first
// command has finished it.
func TestResumeWatches(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 100)
		w, stop := s.work("shop", "orders")
		defer stop()
		first := make(chan result)
		go func() {
			first <- s.call("dlq", "send", "--all", "--yes", "--waves", "none", "--without-receipts", "--rate", "10")
		}()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		got := s.call("dlq", "jobs", "resume", "1")
		if one := <-first; one.code != exitOK || got.code != exitOK || got.stdout != one.stdout || w.ran() != 100 {
			s.Errorf("%+v\n%+v after %d runs", one, got, w.ran())
		}
		if said := strings.Join(strings.Fields(got.stderr), " "); !strings.Contains(said, whoami()+", process ") || strings.Contains(said, "goes on with it") {
			s.Errorf("messages %q", said)
		}
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
		defer cancel()
		if got := s.callWith(ctx, "dlq", "jobs", "resume", "1"); got.code != exitFailure || !strings.Contains(got.stderr, "job 1 is done") {
			s.Errorf("%+v", got)
		}
	})
}

// TestDiscardBesideJob tests that a job counts letters that an operator has
// discarded.
func TestDiscardBesideJob(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 20)
		_, stop := s.work("shop", "orders")
		defer stop()
		s.call("dlq", "send", "--all", "--yes", "--detach")
		if got := s.call("dlq", "discard", "18", "19", "--because", "refunded by hand", "--yes"); got.code != exitOK {
			s.Fatalf("%+v", got)
		}
		if got := s.call("dlq", "jobs", "resume", "1"); got.code != exitPartial || !strings.HasPrefix(got.stdout, "Job 1 is done: 18 of 20 moved, 18 confirmed, 2 skipped (discarded), 0 left\n") {
			s.Errorf("%+v", got)
		}
	})
}
