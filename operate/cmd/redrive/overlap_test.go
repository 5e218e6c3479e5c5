package main

import (
	"strings"
	"testing"
	"time"
)

// TestTwoJobsOverTheSameLetters tests that each of two jobs counts the letters
// that the other job took, and that the numbers of each job add up.
func TestTwoJobsOverTheSameLetters(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 1000)
		w, stop := s.work("shop", "orders")
		defer stop()
		if got := s.call("dlq", "send", "1"); got.code != exitOK {
			s.Fatalf("%+v", got)
		}
		args := []string{"dlq", "send", "--all", "--yes", "--waves", "none", "--rate", "100"}
		first := make(chan result)
		s.call(append(args, "--detach", "--who", "anna@desk")...) // job 2
		s.call(append(args, "--detach", "--who", "bob@desk")...)  // job 3, with the same plan
		go func() { first <- s.call("dlq", "jobs", "resume", "2") }()
		time.Sleep(2 * time.Second)
		second := s.call("dlq", "jobs", "resume", "3")
		<-first
		if w.ran() != 1000 {
			s.Errorf("%d letters ran, want 1000", w.ran())
		}
		for id, other := range map[int]string{2: "taken by job 3", 3: "taken by job 2"} {
			j := s.job(id)
			if j.State != "done" || j.Letters != 999 || j.Skipped[other] == 0 || j.Moved+j.Skipped[other] != 999 || j.Left != 0 {
				s.Errorf("job %d: %+v", id, j.jobRow)
			}
		}
		if second.code != exitPartial || !strings.Contains(second.stdout, " skipped (taken by job 2), 0 left\n") {
			s.Errorf("%+v", second)
		}
		if row := s.jobs()[0]; row.ID != 3 || row.Skipped["taken by job 2"] == 0 {
			s.Errorf("%+v", row)
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
