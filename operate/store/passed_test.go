package store_test

import (
	"fmt"
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
				now := noon
				create := func(f store.Filter) store.Lease {
					j, err := s.CreateJob(t.Context(), now, operator, f, nil)
					must(t, err)
					return lease(t, s, j.ID)
				}
				take := func(l store.Lease, n int) {
					t.Helper()
					same(t, fmt.Sprint("queued by job ", l.Job), queueAt(t, s, now, l, n), n)
				}
				send := func(l store.Lease, refused string) []store.Sending {
					t.Helper()
					sent, err := s.Claim(t.Context(), now, l, 10)
					must(t, err)
					var outcomes []store.Outcome
					for _, letter := range sent {
						outcomes = append(outcomes, store.Outcome{Letter: letter.ID, Refused: refused})
					}
					must(t, s.Sent(t.Context(), now, l, outcomes))
					return sent
				}
				handled := func(letter store.Sending) {
					t.Helper()
					gives(t, 1)(s.Receipts(t.Context(), now, []dlq.Receipt{{Send: letter.Token, Outcome: "handled"}}))
				}
				discard := func(id int64) {
					t.Helper()
					gives(t, int64(1))(s.Discard(t.Context(), now, operator, store.Filter{IDs: []int64{id}}))
				}
				for n := range 12 { // letters 1 to 12
					collect(t, s, noon.Add(-time.Hour), collected(entry(n)))
				}
				a := create(store.Filter{})
				take(a, 2)
				first := send(a, "")
				handled(first[0])
				discard(6)
				planned := noon.Add(time.Minute)
				now = noon.Add(2 * time.Minute)
				b := create(filter)
				handled(first[1])
				take(a, 2) // letters 3 and 4
				second := send(a, "")
				handled(second[0])
				discard(5)
				c := create(store.Filter{})
				take(c, 1) // letter 7
				take(b, 5) // the remaining letters
				take(b, 0)
				send(c, "too large") // letter 7 is free again, but job 2 has passed it

				all := map[string]int64{"taken by job 1": 2, "taken by job 3": 1, "discarded": 1}
				for _, tt := range []struct {
					missing int64
					want    map[string]int64
				}{
					{4, all}, {4, all}, {3, map[string]int64{"discarded": 1, "taken by job 1": 2}}, {0, map[string]int64{}},
					{6, map[string]int64{"taken by job 1": 2, "taken by job 3": 1, "discarded": 1, "changed meanwhile": 2}},
				} {
					must(t, s.NotePassed(t.Context(), b, planned, tt.missing))
					j := job(t, s, b.Job)
					same(t, fmt.Sprint("skipped, of missing ", tt.missing), j.Skipped, tt.want)
					same(t, "passed", j.Passed(), tt.missing)
				}
				j := job(t, s, a.Job)
				same(t, "skipped by the first job", len(j.Skipped), 0)
				same(t, "counts of the first job", j.Tally.Counts, store.Counts{Sent: 1, Confirmed: 3})
			})
		})
	}
}
