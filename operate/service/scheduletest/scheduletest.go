// Package scheduletest holds what every service.Schedule must pass.
package scheduletest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is so many milliseconds after noon.
func at(ms int64) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

// Run tests schedules that are empty.
func Run(t *testing.T, empty func(t *testing.T) service.Schedule) {
	for _, tt := range []struct {
		name string
		test func(s *schedule)
	}{
		{"what is due", whatIsDue},
		{"no more than asked for", noMore},
		{"a task moves", moves},
		{"tenants take turns", turns},
		{"what is put back", putBack},
		{"the clock steps back", stepBack},
		{"strange tenants", strangeTenants},
		{"at once", atOnce},
		{"against a model", model},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &schedule{t, empty(t)}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			tt.test(s)
		})
	}
}

type schedule struct {
	*testing.T
	service.Schedule
}

func (s *schedule) add(tasks ...service.Due) {
	s.Helper()
	if err := s.Add(s.Context(), tasks...); err != nil {
		s.Fatal(err)
	}
}

func (s *schedule) take(now time.Time, n int) (rows []int64, next time.Time) {
	s.Helper()
	due, next, err := s.Take(s.Context(), now, n)
	if err != nil {
		s.Fatal(err)
	}
	for _, d := range due {
		rows = append(rows, d.Row)
		if d.At.After(now) {
			s.Errorf("row %d is due at %v, and was taken at %v", d.Row, d.At, now)
		}
	}
	return rows, next
}

// expect takes, and holds rows and next against what is wanted.
func (s *schedule) expect(now time.Time, n int, next time.Time, rows ...int64) {
	s.Helper()
	got, when := s.take(now, n)
	if !slices.Equal(got, rows) {
		s.Errorf("took %v, want %v", got, rows)
	}
	if when.IsZero() != next.IsZero() || when.After(next) {
		s.Errorf("next %v, want %v, or somewhat earlier", when, next)
	}
	if len(rows) < n && !when.IsZero() && !when.After(now) && next.After(now) {
		s.Errorf("next %v, at %v: there is nothing due", when, now)
	}
}

func due(row int64, tenant string, ms int64) service.Due {
	return service.Due{Row: row, Tenant: tenant, At: at(ms)}
}

func whatIsDue(s *schedule) {
	s.expect(noon, 10, time.Time{})
	s.add()
	s.add(due(1, "a", 300), due(2, "a", 100), due(3, "a", 200))
	s.expect(at(99), 10, at(100))
	s.expect(at(200), 10, at(300), 2, 3)
	s.expect(at(299), 10, at(300))
	s.expect(at(300), 10, time.Time{}, 1)
	s.expect(at(400), 10, time.Time{})
	tasks, next, err := s.Take(s.Context(), at(400), 10)
	if len(tasks) > 0 || !next.IsZero() || err != nil {
		s.Errorf("Take = %v, %v, %v", tasks, next, err)
	}
	s.add(due(1, "a", 500))
	tasks, _, err = s.Take(s.Context(), at(600), 1)
	if err != nil || len(tasks) != 1 || tasks[0].Row != 1 || tasks[0].Tenant != "a" || !tasks[0].At.Equal(at(500)) {
		s.Errorf("Take = %v, %v, want row 1 of a at %v", tasks, err, at(500))
	}
}

func noMore(s *schedule) {
	for i := range int64(10) {
		s.add(due(i, "a", i))
	}
	for _, n := range []int{0, -1} {
		if got, _ := s.take(at(100), n); len(got) > 0 {
			s.Errorf("took %v when asked for %d", got, n)
		}
	}
	if rows, next := s.take(at(100), 4); len(rows) != 4 || next.After(at(100)) || next.IsZero() {
		s.Errorf("took %v, next %v: want 4, and next not after now", rows, next)
	}
	s.expect(at(100), 10, time.Time{}, 4, 5, 6, 7, 8, 9)
}

func moves(s *schedule) {
	s.add(due(1, "a", 100), due(2, "a", 200), due(3, "a", 300))
	s.add(due(1, "a", 400)) // later
	s.expect(at(150), 10, at(200))
	s.add(due(3, "a", 120)) // earlier
	s.expect(at(150), 10, at(200), 3)
	s.add(due(2, "a", 200)) // nowhere
	s.expect(at(250), 10, at(400), 2)
	for i := range int64(500) {
		s.add(due(1, "a", 400+i%7), due(7, "a", 1000-i))
	}
	s.expect(at(2000), 10, time.Time{}, 1, 7)
	s.expect(at(2000), 10, time.Time{})
}

// turns has one tenant flood the schedule: the others get theirs.
func turns(s *schedule) {
	for i := range int64(1000) {
		s.add(due(i, "flood", i))
	}
	for i := range int64(20) {
		s.add(due(2000+i, "small", 5000+i), due(3000+i, "other", 5000+i))
	}
	counts := map[string]int{}
	for range 4 {
		tasks, _, err := s.Take(s.Context(), at(6000), 15)
		if err != nil {
			s.Fatal(err)
		}
		for _, d := range tasks {
			counts[d.Tenant]++
		}
	}
	if counts["small"] != 20 || counts["other"] != 20 {
		s.Errorf("of 60 tasks these were taken: %v, want all 20 of each small tenant", counts)
	}
	seen := map[string]bool{}
	for i := range int64(50) {
		s.add(due(4000+i, fmt.Sprint("tenant ", i), 5500+i))
	}
	for range 18 {
		tasks, _, err := s.Take(s.Context(), at(6000), 3)
		if err != nil {
			s.Fatal(err)
		}
		for _, d := range tasks {
			seen[d.Tenant] = true
		}
	}
	if len(seen) != 51 {
		s.Errorf("54 takes, three at once, served %d tenants of 51", len(seen))
	}
}

// putBack puts back what a flood had taken, as who has no room for it does: its order
// stays, and others get their turns meanwhile.
func putBack(s *schedule) {
	for i := range int64(100) {
		s.add(due(i, "flood", i))
	}
	for range 3 {
		s.expect(at(1000), 4, at(4), 0, 1, 2, 3)
		s.add(due(3, "flood", 3), due(1, "flood", 1), due(0, "flood", 0), due(2, "flood", 2))
	}
	for i := range int64(20) {
		s.add(due(2000+i, "small", 500+i))
	}
	small := 0
	for range 4 {
		tasks, _, err := s.Take(s.Context(), at(1000), 12)
		if err != nil {
			s.Fatal(err)
		}
		for _, d := range tasks {
			if d.Tenant == "flood" {
				s.add(d)
			} else {
				small++
			}
		}
	}
	if small != 20 {
		s.Errorf("%d of 20 tasks of the small tenant were taken beside a flood that is put back", small)
	}
	if rows, _ := s.take(at(1000), 200); len(rows) != 100 || !slices.IsSorted(rows) {
		s.Errorf("took %v, want all of the flood in order", rows)
	}
}

func stepBack(s *schedule) {
	s.add(due(1, "a", 1000), due(2, "a", 2000), due(3, "b", 1500))
	s.expect(at(3000), 1, at(1500), 1)
	s.expect(at(0), 10, at(1500))
	s.expect(at(1600), 10, at(2000), 3)
	s.expect(at(2000), 10, time.Time{}, 2)
}

func strangeTenants(s *schedule) {
	for i, tenant := range []string{"", " ", "a}b", "{a", "ü\x00\xff", "a:b"} {
		s.add(due(int64(i), tenant, int64(i)))
		tasks, next, err := s.Take(s.Context(), at(100), 10)
		if err != nil || len(tasks) != 1 || tasks[0].Tenant != tenant || !next.IsZero() {
			s.Errorf("tenant %q: took %v, next %v, %v", tenant, tasks, next, err)
		}
	}
}

// atOnce has some add while others take.
func atOnce(s *schedule) {
	const each, workers = 200, 4
	var mu sync.Mutex
	taken := map[int64]int{}
	var wg sync.WaitGroup
	for w := range int64(workers) {
		wg.Go(func() {
			for i := range int64(each) {
				if err := s.Add(s.Context(), due(w*each+i, fmt.Sprint(i%3), i)); err != nil {
					s.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range each {
				tasks, _, err := s.Take(s.Context(), at(each), 3)
				if err != nil {
					s.Error(err)
				}
				mu.Lock()
				for _, d := range tasks {
					taken[d.Row]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for {
		rows, next := s.take(at(each), 100)
		for _, row := range rows {
			taken[row]++
		}
		if len(rows) == 0 {
			if !next.IsZero() {
				s.Errorf("nothing is due, and next is %v", next)
			}
			break
		}
	}
	for row := range int64(each * workers) {
		if taken[row] != 1 {
			s.Errorf("row %d was taken %d times", row, taken[row])
		}
	}
}

// model holds random calls against a map.
func model(s *schedule) {
	seed := rand.Uint64()
	defer func() {
		if s.Failed() {
			s.Logf("seed %d", seed)
		}
	}()
	r := rand.New(rand.NewPCG(seed, 0))
	tenant := func(row int64) string { return fmt.Sprint(row % 5) }
	waiting := map[int64]int64{}
	for now, step := int64(0), 0; step < 400 && !s.Failed(); step++ {
		if r.IntN(3) > 0 {
			row, ms := r.Int64N(60), now-20+r.Int64N(100)
			s.add(due(row, tenant(row), ms))
			waiting[row] = ms
			continue
		}
		now += r.Int64N(40) - 10
		n := r.IntN(8)
		rows, next := s.take(at(now), n)
		for _, row := range rows {
			for other, ms := range waiting {
				if tenant(other) == tenant(row) && ms < waiting[row] && !slices.Contains(rows, other) {
					s.Errorf("row %d was taken before %d, which is due earlier", row, other)
				}
			}
		}
		for _, row := range rows {
			if ms, ok := waiting[row]; !ok || ms > now {
				s.Errorf("took %d, which is not due: %d, %v, at %d", row, ms, ok, now)
			}
			delete(waiting, row)
		}
		checkNext(s, waiting, now, n-len(rows), next)
	}
}

// checkNext holds next against what waits, after a Take that had room for more.
func checkNext(s *schedule, waiting map[int64]int64, now int64, room int, next time.Time) {
	s.Helper()
	if len(waiting) == 0 {
		if !next.IsZero() {
			s.Errorf("nothing waits, and next is %v", next)
		}
		return
	}
	first := int64(1 << 60)
	for _, ms := range waiting {
		first = min(first, ms)
	}
	switch {
	case first <= now && room > 0:
		s.Errorf("something is due at %d, and was not taken at %d with room for %d", first, now, room)
	case first <= now:
		if next.IsZero() || next.After(at(now)) {
			s.Errorf("something is due, and next is %v", next)
		}
	case next.IsZero() || next.After(at(first)) || room > 0 && !next.After(at(now)):
		s.Errorf("next is %v, want %v, or a bit earlier", next, at(first))
	}
}
