package main

import (
	"strings"
	"testing"
)

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
