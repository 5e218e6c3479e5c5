package store_test

import (
	"maps"
	"testing"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

// TestNotePassed tests that a job counts the letters of its plan that it could
// not take: letters that another job took, and a letter that an operator
// discarded. Changes before the plan do not count.
func TestNotePassed(t *testing.T) {
	for name, filter := range map[string]store.Filter{"all": {}, "by content": {Text: `"order"`}} {
		t.Run(name, func(t *testing.T) {
			onStores(t, func(t *testing.T, s *store.Store) {
				at := func(d time.Duration) time.Time { return noon.Add(d) }
				must := func(err error) {
					t.Helper()
					must(t, err)
				}
				create := func(d time.Duration, f store.Filter) store.Lease {
					j, err := s.CreateJob(t.Context(), at(d), operator, f, nil)
					must(err)
					return lease(t, s, j.ID)
				}
				take := func(d time.Duration, l store.Lease, n int) {
					t.Helper()
					queued, _, err := s.Queue(t.Context(), at(d), l, n, sendAll)
					if must(err); queued != n {
						t.Fatalf("job %d queues %d letters, want %d", l.Job, queued, n)
					}
				}
				send := func(d time.Duration, l store.Lease, refused string) (sent []store.Sending) {
					t.Helper()
					sent, err := s.Claim(t.Context(), at(d), l, 10)
					must(err)
					var outcomes []store.Outcome
					for _, letter := range sent {
						outcomes = append(outcomes, store.Outcome{Letter: letter.ID, Refused: refused})
					}
					must(s.Sent(t.Context(), at(d), l, outcomes))
					return sent
				}
				handled := func(d time.Duration, letter store.Sending) {
					t.Helper()
					_, err := s.Receipts(t.Context(), at(d), []dlq.Receipt{{Send: letter.Token, Outcome: "handled"}})
					must(err)
				}
				discard := func(d time.Duration, id int64) {
					t.Helper()
					_, err := s.Discard(t.Context(), at(d), operator, store.Filter{IDs: []int64{id}})
					must(err)
				}
				for n := range 12 { // letters 1 to 12
					collect(t, s, noon.Add(-time.Hour), collected(entry(n)))
				}
				a := create(0, store.Filter{})
				take(time.Second, a, 2)
				first := send(2*time.Second, a, "")
				handled(3*time.Second, first[0])
				discard(30*time.Second, 6)
				const planned = time.Minute
				b := create(2*time.Minute, filter)
				handled(3*time.Minute, first[1])
				take(3*time.Minute, a, 2) // letters 3 and 4
				second := send(3*time.Minute, a, "")
				handled(3*time.Minute, second[0])
				discard(3*time.Minute, 5)
				c := create(4*time.Minute, store.Filter{})
				take(4*time.Minute, c, 1) // letter 7
				take(5*time.Minute, b, 5) // the remaining letters
				if _, more, err := s.Queue(t.Context(), at(5*time.Minute), b, 1, sendAll); err != nil || more {
					t.Fatalf("Queue: more = %v, %v", more, err)
				}
				send(6*time.Minute, c, "too large") // letter 7 is free again, but job 2 has passed it

				all := map[string]int64{"taken by job 1": 2, "taken by job 3": 1, "discarded": 1}
				for _, tt := range []struct {
					missing int64
					want    map[string]int64
				}{
					{4, all}, {4, all}, {3, map[string]int64{"discarded": 1, "taken by job 1": 2}}, {0, map[string]int64{}},
					{6, map[string]int64{"taken by job 1": 2, "taken by job 3": 1, "discarded": 1, "changed meanwhile": 2}},
				} {
					must(s.NotePassed(t.Context(), b, at(planned), tt.missing))
					j, err := s.Job(t.Context(), b.Job)
					if must(err); !maps.Equal(j.Skipped, tt.want) || j.Passed() != tt.missing {
						t.Errorf("%d missing: skipped %v, passed %d, want %v", tt.missing, j.Skipped, j.Passed(), tt.want)
					}
				}
				if j, err := s.Job(t.Context(), a.Job); err != nil || len(j.Skipped) > 0 || j.Tally.Counts != (store.Counts{Sent: 1, Confirmed: 3}) {
					t.Errorf("the first job: %+v, %v", j, err)
				}
			})
		})
	}
}
