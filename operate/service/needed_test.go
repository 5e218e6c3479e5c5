package service

import (
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

func TestNeededBodies(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		var refs []string
		with := func(n int, ref string) Task {
			one := task(n)
			one.Body, one.BodyRef = nil, "acme/"+ref
			refs = append(refs, one.BodyRef)
			return create(t, s, one)[0]
		}
		with(1, "waiting")
		with(2, "twice")
		with(3, "twice")
		claimAll(t, s, with(4, "called"))
		for i, end := range []Status{Succeeded, Exhausted} {
			claimed := claimAll(t, s, with(5+i, string(end)))
			must(t, s.Settle(t.Context(), []Outcome{ended(claimed[0], end, 422)}))
		}
		must(t, errOf(s.Cancel(t.Context(), "acme", with(7, "cancelled").ID)))
		create(t, s, task(8)) // which has no reference
		got, err := s.NeededBodies(t.Context(), append(refs, "acme/unknown", "umbrella/waiting"))
		slices.Sort(got)
		if want := []string{"acme/EXHAUSTED", "acme/called", "acme/twice", "acme/waiting"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("needed: %q, error %v, want %q", got, err, want)
		}
		if s.db.Postgres() {
			return // which reads a table of eight rows as a whole
		}
		plan, err := planOf(t.Context(), s, bodiesOfTasks, []any{sqldb.Keys{[]byte("acme/waiting")}})
		if err != nil || !strings.Contains(plan, "retry_tasks_bodies") {
			t.Errorf("no index is used: %v\n%s", err, plan)
		}
	})
}
