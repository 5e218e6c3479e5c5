package brokertest

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
)

// broken is a broker with one fault, and the clauses that must fail for it.
type broken struct {
	name    string
	fails   string // names of clauses
	hooks   func() hooks
	options memory.Options
	adjust  func(*Harness)
}

func allBroken() []broken {
	return slices.Concat(brokenPublishing, brokenMessages, brokenSettling, brokenRetries, brokenReturning, brokenReading,
		brokenLeases, brokenReceiving, brokenUnreadable, brokenPausing, brokenClosing)
}

// TestBrokenBrokers demands that each broken broker fails exactly its clauses,
// that clauses are skipped only when they rest on one of these, and that the
// failure prints the rule.
func TestBrokenBrokers(t *testing.T) {
	for _, b := range allBroken() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			h := harness(b.options, b.hooks)
			if b.adjust != nil {
				b.adjust(&h)
			}
			failed := failures(t, h, func(examine func(*testing.T)) { examine(t) })
			got := slices.Sorted(maps.Keys(failed))
			if want := slices.Sorted(strings.FieldsSeq(b.fails)); !slices.Equal(got, want) {
				t.Errorf("failed clauses: %q, want %q", got, want)
			}
			for _, name := range got {
				if !slices.Contains(strings.Fields(b.fails), name) || testing.Verbose() {
					t.Logf("%s:%s", name, failed[name])
				}
			}
		})
	}
}

// failures says what each clause that fails prints, which contains its rule.
func failures(t *testing.T, h Harness, run func(examine func(*testing.T))) map[string]string {
	s := newSuite(h)
	failed := make(map[string]string)
	for _, c := range clauses() {
		var err error
		run(func(t *testing.T) { err = s.examine(t, c, func() {}) })
		s.done(c)
		if _, skipped := errors.AsType[skip](err); err == nil || skipped {
			continue
		}
		failed[c.name] = c.explain(err)
		if !strings.Contains(failed[c.name], c.rule) {
			t.Errorf("the failure of %s does not print its rule: %s", c.name, failed[c.name])
		}
	}
	return failed
}

// TestBrokenBrokersOutside takes away what the suite knows of a broker in its
// own process. Brokers that break more than the right to deliver twice must
// fail all the same, and fail nothing else.
func TestBrokenBrokersOutside(t *testing.T) {
	excused := []string{
		"open starts a goroutine that never ends", // not visible from outside
		"retry leaves a copy behind",              // duplicates are legal
		"two sources both get the fresh messages", // as if the ack had been lost
		"retry overflows after some hours",        // too long to wait for
		"receive buffers deliveries and forgets their leases",
	}
	for _, b := range allBroken() {
		if slices.Contains(excused, b.name) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			h := harness(b.options, b.hooks)
			if b.adjust != nil {
				b.adjust(&h)
			}
			h.Virtual = false
			failed := failures(t, h, func(examine func(*testing.T)) { synctest.Test(t, examine) })
			for name, why := range failed {
				if !slices.Contains(strings.Fields(b.fails), name) {
					t.Errorf("%s failed, too:%s", name, why)
				}
			}
			if len(failed) == 0 {
				t.Errorf("no clause failed, want one of %q", b.fails)
			}
		})
	}
}

// TestJudgedAfterWhatItRestsOn runs a clause beside those that it rests on: it
// counts when they hold, and is skipped when one does not.
func TestJudgedAfterWhatItRestsOn(t *testing.T) {
	fault := errors.New("a fault")
	for _, below := range []error{nil, fault, skip("not for this broker")} {
		synctest.Test(t, func(t *testing.T) {
			h := harness(memory.Options{}, func() hooks { return hooks{} })
			h.Virtual = false
			s := newSuite(h)
			all := clauses()
			base, next, last := all[0], all[1], all[2]
			base.with, base.check = "", func(tr *trial) { tr.pause(time.Hour); tr.must(below) }
			next.needs, next.check = base.name, func(tr *trial) { tr.must(fault) }
			last.needs, last.check = next.name, func(*trial) {}
			errs := make(map[string]error)
			var mu sync.Mutex
			var running sync.WaitGroup
			for _, c := range []clause{last, next, base} {
				running.Go(func() {
					defer s.done(c)
					err := s.examine(t, c, func() {})
					mu.Lock()
					defer mu.Unlock()
					errs[c.name] = err
				})
			}
			running.Wait()
			_, nextSkipped := errors.AsType[skip](errs[next.name])
			if errs[base.name] != below || nextSkipped != (below == fault) || !nextSkipped && errs[next.name] != fault {
				t.Errorf("where the first says %v, the second says %v", below, errs[next.name])
			}
			if _, skipped := errors.AsType[skip](errs[last.name]); !skipped {
				t.Errorf("where the first says %v, the third says %v, want a skip in any case", below, errs[last.name])
			}
		})
	}
}

// TestEveryClauseCatchesSomething demands a broken broker for every clause.
func TestEveryClauseCatchesSomething(t *testing.T) {
	caught := make(map[string]bool)
	for _, b := range allBroken() {
		for _, name := range strings.Fields(b.fails) {
			caught[name] = true
		}
	}
	for _, c := range clauses() {
		if !caught[c.name] {
			t.Errorf("no broken broker fails clause %q", c.name)
		}
		delete(caught, c.name)
	}
	for name := range caught {
		t.Errorf("a broken broker must fail %q, which is no clause", name)
	}
}

// TestClauses checks the list itself: names are unique, and what a clause rests
// on comes before it.
func TestClauses(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range clauses() {
		if seen[c.name] {
			t.Errorf("there are two clauses called %q", c.name)
		}
		for _, name := range strings.Fields(c.needs) {
			if !seen[name] {
				t.Errorf("clause %q rests on %q, which does not come before it", c.name, name)
			}
		}
		if !strings.HasSuffix(c.rule, ".") || c.check == nil {
			t.Errorf("clause %q lacks a sentence or a check", c.name)
		}
		seen[c.name] = true
	}
}
