package service

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
	"github.com/redrive-go/redrive/operate/internal/storetest"
)

var must, fails, onBoth, rawDB = storetest.Must, storetest.Fails, storetest.OnBoth, storetest.Raw

// errOf returns the error of a call alone.
func errOf[T any](_ T, err error) error { return err }

// gives returns a function that fails the test unless a call returned this value.
func gives[T any](t testing.TB, want T) func(T, error) {
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("error: %v", err)
		}
		same(t, "result", got, want)
	}
}

// same fails the test unless two values are equal.
func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v\nwant %+v", what, got, want)
	}
}

// failsIn wants an error that tells which state a task is in.
func failsIn(t testing.TB, err error, id string, status Status) {
	t.Helper()
	e, ok := errors.AsType[*StateError](err)
	if !ok {
		t.Fatalf("error: got %v, want a *StateError", err)
	}
	same(t, "state", *e, StateError{id, status})
}

// givesRows is gives for the rows of tasks.
func givesRows(t testing.TB, want ...int64) func([]Task, error) {
	return func(got []Task, err error) {
		t.Helper()
		must(t, err)
		same(t, "rows", rowsOf(got), want)
	}
}

// noon is when the tests begin.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return noon.Add(d) }

// onStores is onBoth for tests that need one open store.
func onStores(t *testing.T, test func(t *testing.T, s *Store)) {
	onBoth(t, func(t *testing.T, url string) { test(t, openStore(t, url)) })
}

func TestMain(m *testing.M) {
	code := m.Run()
	postgrestest.Stop()
	os.Exit(code)
}

// openStore opens a store for the length of a test, with a policy of the tenants acme
// and umbrella.
func openStore(t testing.TB, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
	})
	for _, tenant := range []string{"acme", "umbrella"} {
		must(t, errOf(s.PutPolicy(t.Context(), policy(tenant, 5))))
	}
	return s
}

func policy(tenant string, attempts int) Policy {
	return Policy{
		Tenant: tenant, ID: "standard", Backoff: "EXPONENTIAL", MaxAttempts: attempts, InitialDelayMs: 100, Multiplier: 2, MaxDelayMs: 10_000,
		TotalBudgetMs: 60_000, JitterType: "FULL", RetryableStatusCodes: []int{503, 429}, VisibilityTimeoutMs: 30_000,
	}
}

// task is the n-th task of a test, due n seconds after noon.
func task(n int) Task {
	return Task{
		ID: fmt.Sprintf("00000000-0000-7000-8000-%012x", n), Tenant: "acme", IdempotencyKey: fmt.Sprintf("key-%d", n),
		TargetURL: "https://bank.example/transfers", Method: "POST", Headers: map[string]string{"Authorization": "Bearer hunter2", "X-Order": "7"},
		Body: fmt.Appendf(nil, "{\"order\":%d}\x00\xff", n), PolicyID: "standard", PolicyVersion: 1,
		CreatedAt: noon, NextAttemptAt: after(time.Duration(n) * time.Second), VisibilityTimeout: 30 * time.Second,
	}
}

func create(t testing.TB, s *Store, tasks ...Task) (stored []Task) {
	t.Helper()
	for _, task := range tasks {
		got, created, err := s.Create(t.Context(), task)
		if err != nil || !created {
			t.Fatalf("Create = %v, %v, want it created", created, err)
		}
		stored = append(stored, got)
	}
	return stored
}

func rowsOf(tasks []Task) (rows []int64) {
	for _, t := range tasks {
		rows = append(rows, t.Row)
	}
	return rows
}

// claimAll claims tasks, all of which must be due within the first hour.
func claimAll(t testing.TB, s *Store, tasks ...Task) []Task {
	t.Helper()
	claimed, err := s.Claim(t.Context(), rowsOf(tasks), after(time.Hour), 0)
	must(t, err)
	same(t, "claimed", len(claimed), len(tasks))
	return claimed
}

// wantTask checks that a task is stored as it should be.
func wantTask(t testing.TB, s *Store, want Task) {
	t.Helper()
	gives(t, want)(s.Task(t.Context(), want.Tenant, want.ID))
}

// ended is the outcome of a claimed task, an hour after noon.
func ended(task Task, status Status, responded int) Outcome {
	task.Status, task.AttemptNumber, task.UpdatedAt, task.LastStatus = status, task.AttemptNumber+1, after(time.Hour), responded
	a := &Attempt{StartedAt: after(time.Hour), Duration: 250 * time.Millisecond, ResponseStatus: responded}
	if status != Succeeded {
		task.LastError, a.Error = "no", "no"
	}
	return Outcome{Task: task, Attempt: a}
}

func TestCreate(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		plain := task(1)
		plain.Headers, plain.Body, plain.BodyRef = nil, nil, "sha256:cafe"
		plain.CreatedAt = noon.Add(1_234_567 * time.Nanosecond)
		for i, given := range []Task{plain, task(2)} {
			got := create(t, s, given)[0]
			want := given
			want.CreatedAt = given.CreatedAt.Truncate(time.Millisecond)
			want.Status, want.UpdatedAt, want.BudgetSince, want.Row, want.Version = Pending, want.CreatedAt, want.CreatedAt, int64(i+1), 1
			same(t, "created", got, want)
			wantTask(t, s, want)
		}
		again := Task{Tenant: "acme", IdempotencyKey: "key-2", TargetURL: task(2).TargetURL, Method: "POST", Headers: task(2).Headers, Body: task(2).Body, PolicyID: "standard"}
		known, err := s.Same(t.Context(), again)
		must(t, err)
		same(t, "known", known.ID, task(2).ID)
		again.Method = "PUT"
		fails(t, errOf(s.Same(t.Context(), again)), ErrKeyReused)
		again.Tenant = "umbrella"
		fails(t, errOf(s.Same(t.Context(), again)), ErrNotFound)
		endless := task(3)
		endless.VisibilityTimeout = 0
		_, _, err = s.Create(t.Context(), endless)
		fails(t, err, "VisibilityTimeout")
		fails(t, errOf(s.Task(t.Context(), "umbrella", plain.ID)), ErrNotFound)
		fails(t, errOf(s.Task(t.Context(), "acme", "none")), ErrNotFound)
	})
}

// TestCreateOnce has a hundred callers of two processes create a task for one key.
func TestCreateOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		stores := []*Store{openStore(t, url), openStore(t, url)}
		var mu sync.Mutex
		var wg sync.WaitGroup
		created := map[bool]int{}
		ids := map[string]bool{}
		for n := range 100 {
			wg.Go(func() {
				mine := task(n)
				mine.IdempotencyKey, mine.Body = "one", []byte("one")
				got, isNew, err := stores[n%2].Create(t.Context(), mine)
				if err != nil || isNew != (got.ID == mine.ID) {
					t.Errorf("Create = %s, %v, %v for %s", got.ID, isNew, err, mine.ID)
				}
				mu.Lock()
				defer mu.Unlock()
				created[isNew]++
				ids[got.ID] = true
			})
		}
		wg.Wait()
		same(t, "created or not", created, map[bool]int{true: 1, false: 99})
		same(t, "tasks that the answers name", len(ids), 1)
		same(t, "rows", len(allRows(t, url)), 1) // of any number: one that loses may have used up the first
	})
}

func TestKeyReused(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*Task)
		created bool
		err     error
	}{
		{"the same", func(*Task) {}, false, nil},
		{"another time", func(t *Task) { t.CreatedAt, t.NextAttemptAt = after(time.Hour), after(time.Hour) }, false, nil},
		{"a newer version of the policy", func(t *Task) { t.PolicyVersion = 2 }, false, nil},
		{"another target", func(t *Task) { t.TargetURL += "/" }, false, ErrKeyReused},
		{"another method", func(t *Task) { t.Method = "PUT" }, false, ErrKeyReused},
		{"another header", func(t *Task) { t.Headers["X-Order"] = "8" }, false, ErrKeyReused},
		{"another secret", func(t *Task) { t.Headers["Authorization"] = "Bearer hunter3" }, false, ErrKeyReused},
		{"a masked secret", func(t *Task) { t.Headers["Authorization"] = mask }, false, ErrKeyReused},
		{"another body", func(t *Task) { t.Body = []byte("{}") }, false, ErrKeyReused},
		{"a body elsewhere", func(t *Task) { t.Body, t.BodyRef = nil, "sha256:cafe" }, false, ErrKeyReused},
		{"the same body elsewhere", func(t *Task) {
			t.BodyRef, t.Body = fmt.Sprintf("acme/%x", sha256.Sum256(t.Body)), nil
		}, false, nil},
		{"another policy", func(t *Task) { t.PolicyID = "none" }, false, ErrKeyReused},
		{"another tenant", func(t *Task) { t.Tenant = "umbrella" }, true, nil},
		{"another key", func(t *Task) { t.IdempotencyKey = "" }, true, nil},
	}
	onStores(t, func(t *testing.T, s *Store) {
		first := create(t, s, task(0))[0]
		must(t, errOf(s.PutPolicy(t.Context(), policy("acme", 9))))
		for i, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				again := task(0)
				again.ID = task(i + 1).ID
				tt.change(&again)
				got, created, err := s.Create(t.Context(), again)
				same(t, "created", created, tt.created)
				if !errors.Is(err, tt.err) {
					t.Errorf("Create: %v, want %v", err, tt.err)
				}
				if !created && err == nil {
					same(t, "known", got, first)
				}
				same(t, "stored", errOf(s.Task(t.Context(), again.Tenant, again.ID)) == nil, tt.created)
			})
		}
		wantTask(t, s, first)
	})
}

// TestCreateTogether stores tasks in one transaction, some of which cannot be stored.
func TestCreateTogether(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		create(t, s, task(0))
		var batch []*creation
		add := func(n int, change func(*Task)) {
			given := task(n)
			change(&given)
			c, err := newCreation(given)
			must(t, err)
			batch = append(batch, c)
		}
		keep := func(*Task) {}
		add(1, keep)
		add(2, func(t *Task) { t.PolicyID = "none" })
		add(3, func(t *Task) { t.PolicyVersion = 7 })
		add(0, func(t *Task) { t.IdempotencyKey = "new" }) // its ID is taken
		add(4, func(t *Task) { t.IdempotencyKey, t.Body = "key-0", nil })
		add(0, keep) // once more
		add(5, keep)
		add(5, func(t *Task) { t.ID = "another" }) // the same key in the same transaction
		add(6, keep)
		add(6, func(t *Task) { t.Body = nil }) // the same ID, too
		for n := range 300 {
			add(100+n, keep)
		}
		must(t, s.create(t.Context(), batch))
		wants := []string{"created", "none of this name", "version 7", "has its ID", "other content", "created"}
		for i, want := range wants {
			c := batch[i]
			if want != "created" {
				fails(t, c.err, want)
				continue
			}
			must(t, c.err)
			same(t, fmt.Sprint("created ", i), c.created && c.result.Row != 0, true)
			wantTask(t, s, c.result)
		}
		a, b := batch[6], batch[7]
		if a.err != nil || b.err != nil || a.created == b.created || a.result.ID != b.result.ID {
			t.Errorf("two of one key: %+v and %+v", a, b)
		}
		a, b = batch[8], batch[9]
		if a.created == b.created || !errors.Is(errors.Join(a.err, b.err), ErrKeyReused) {
			t.Errorf("two of one ID: %+v and %+v", a, b)
		}
		wantTask(t, s, map[bool]Task{true: a.result, false: b.result}[a.created])
		list, err := s.Waiting(t.Context(), Due{}, 1000)
		must(t, err)
		same(t, "tasks that wait", len(list), 304)
	})
}

// TestCreateRefused has the database refuse one of many that come at once: the
// others are stored.
func TestCreateRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := openStore(t, url)
		refuse := "alter table retry_tasks add check (method <> 'BAD'::bytea)"
		if !s.db.Postgres() {
			refuse = "create trigger refuse before insert on retry_tasks when new.method = cast('BAD' as blob) begin select raise(abort, 'refused'); end"
		}
		must(t, errOf(rawDB(t, url).Exec(refuse)))
		errs := make([]error, 50)
		var wg sync.WaitGroup
		for n := range errs {
			wg.Go(func() {
				given := task(n)
				if n%10 == 3 {
					given.Method = "BAD"
				}
				_, _, errs[n] = s.Create(t.Context(), given)
			})
		}
		wg.Wait()
		for n, err := range errs {
			if _, lookup := s.Task(t.Context(), "acme", task(n).ID); (err != nil) != (n%10 == 3) || (lookup != nil) != (err != nil) {
				t.Errorf("Create of task %d: %v, Task: %v", n, err, lookup)
			}
		}
	})
}

// TestClaimOnce has two processes claim the same tasks.
func TestClaimOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		stores := []*Store{openStore(t, url), openStore(t, url)}
		var tasks []Task
		for n := range 60 {
			given := task(n)
			given.VisibilityTimeout = time.Duration(n+1) * 1234 * time.Millisecond
			tasks = append(tasks, create(t, stores[0], given)...)
		}
		claimed := make([][]Task, 2)
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() {
				for rows := range slices.Chunk(rowsOf(tasks), 7) {
					list, err := s.Claim(t.Context(), append(rows, 4711), after(48*time.Second), time.Second)
					if err != nil {
						t.Errorf("Claim: %v", err)
					}
					claimed[i] = append(claimed[i], list...)
				}
			})
		}
		wg.Wait()
		times := map[string]int{}
		for _, c := range slices.Concat(claimed...) {
			times[c.ID]++
			want := tasks[c.Row-1]
			want.Status, want.Version, want.LeaseUntil = InFlight, 2, after(48*time.Second+want.VisibilityTimeout)
			if want.NextAttemptAt.After(after(48 * time.Second)) {
				want.LeaseUntil = want.NextAttemptAt.Add(want.VisibilityTimeout)
			}
			same(t, "claimed", c, want)
		}
		for n, task := range tasks {
			same(t, fmt.Sprint("claims of task ", n), times[task.ID], map[bool]int{true: 1}[n <= 49])
		}
		givesRows(t)(stores[1].Claim(t.Context(), nil, after(time.Hour), 0))
	})
}

func TestSettle(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		claimed := claimAll(t, s, create(t, s, task(1), task(2), task(3), task(4))...)
		again := ended(claimed[0], Pending, 503)
		again.Task.NextAttemptAt, again.Task.FirstFailedAt, again.Task.PrevDelay = after(time.Minute+1500*time.Millisecond), after(time.Hour), 1500*time.Millisecond
		again.Task.LastError, again.Task.LastSpan = "\xff\x00", someParent
		unused := Outcome{Task: claimed[3]}
		unused.Task.Status = Pending
		outcomes := []Outcome{again, ended(claimed[1], Succeeded, 200), ended(claimed[2], Exhausted, 400), unused}
		must(t, s.Settle(t.Context(), outcomes))
		for _, o := range outcomes {
			want := o.Task
			want.Version++
			want.LeaseUntil = time.Time{}
			wantTask(t, s, want)
		}
		wantLog(t, s, claimed[0], 503)
		wantLog(t, s, claimed[1], 200)
		wantLog(t, s, claimed[3])

		second := claimAll(t, s, claimed[3], again.Task) // in the order of their times
		o := ended(second[1], Succeeded, 204)
		o.Attempt.Number = 77 // does not matter
		must(t, s.Settle(t.Context(), []Outcome{o}))
		wantLog(t, s, claimed[0], 503, 204)
		gives(t, []Attempt{attempt(2, 204)})(s.Attempts(t.Context(), "acme", claimed[0].ID, 1, 10))
		gives(t, []Attempt{attempt(1, 503)})(s.Attempts(t.Context(), "acme", claimed[0].ID, 0, 1))
		fails(t, errOf(s.Attempts(t.Context(), "umbrella", claimed[0].ID, 0, 1)), ErrNotFound)
	})
}

// attempt is the n-th of a task, as ended has it.
func attempt(n, responded int) Attempt {
	a := Attempt{n, after(time.Hour), 250 * time.Millisecond, responded, "no"}
	if responded/100 == 2 {
		a.Error = ""
	}
	return a
}

// wantLog checks what the attempts of a task were answered with.
func wantLog(t *testing.T, s *Store, of Task, responded ...int) {
	t.Helper()
	var want []Attempt
	for i, status := range responded {
		want = append(want, attempt(i+1, status))
	}
	gives(t, want)(s.Attempts(t.Context(), of.Tenant, of.ID, 0, 100))
}

// TestSettleTooLate settles tasks that others have settled: that is dropped and named,
// and all else of the transaction is stored.
func TestSettleTooLate(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s, other := openStore(t, url), openStore(t, url)
		claimed := claimAll(t, s, create(t, s, task(1), task(2), task(3))...)
		taken := claimed[0]
		must(t, other.Settle(t.Context(), []Outcome{ended(taken, Pending, 0)}))
		claimAll(t, other, taken)
		twice := ended(claimed[2], Exhausted, 500)
		twice.Attempt = nil
		mine := &settlement{outcomes: []Outcome{ended(taken, Succeeded, 200), ended(claimed[1], Succeeded, 200)}}
		others := &settlement{outcomes: []Outcome{ended(claimed[2], Succeeded, 201), twice}}
		must(t, s.settle(t.Context(), []*settlement{mine, others}))
		same(t, "lost by me", mine.lost, []string{taken.ID})
		same(t, "lost by others", others.lost, []string{claimed[2].ID})
		wantLog(t, s, taken, 0)
		wantLog(t, s, claimed[1], 200)
		wantLog(t, s, claimed[2], 201)
		for i, want := range []Status{InFlight, Succeeded, Succeeded} {
			got, err := s.Task(t.Context(), "acme", claimed[i].ID)
			must(t, err)
			same(t, "status", got.Status, want)
		}
		lost, ok := errors.AsType[*LostError](s.Settle(t.Context(), []Outcome{ended(claimed[1], Succeeded, 200)}))
		if !ok || !slices.Equal(lost.TaskIDs, []string{claimed[1].ID}) {
			t.Errorf("Settle of what is settled: %v", lost)
		}
		fails(t, s.Settle(t.Context(), []Outcome{ended(taken, InFlight, 0)}), "IN_FLIGHT")
	})
}

func TestExpire(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		for i := range 4 {
			given := task(i + 1)
			given.NextAttemptAt, given.VisibilityTimeout = noon, time.Duration(10-i)*time.Minute
			if created := create(t, s, given); i < 3 {
				must(t, errOf(s.Claim(t.Context(), rowsOf(created), noon, 0)))
			}
		}
		givesRows(t)(s.Expire(t.Context(), after(8*time.Minute-1), 10))
		list, err := s.Expire(t.Context(), after(9*time.Minute), 10)
		givesRows(t, 3, 2)(list, err)
		givesRows(t, 3)(s.Expire(t.Context(), after(time.Hour), 1))
		must(t, s.Settle(t.Context(), []Outcome{ended(list[0], Pending, 0)})) // by what was read
		givesRows(t, 2, 1)(s.Expire(t.Context(), after(time.Hour), 10))
	})
}

func TestCancel(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		tasks := create(t, s, task(1), task(2), task(3))
		claimed := claimAll(t, s, tasks[1:]...)
		must(t, s.Settle(t.Context(), []Outcome{ended(claimed[1], Succeeded, 200)}))
		want := tasks[0]
		got, err := s.Cancel(t.Context(), "acme", want.ID)
		want.Status, want.Version, want.UpdatedAt = Cancelled, 2, got.UpdatedAt
		gives(t, want)(got, err)
		wantTask(t, s, want)
		for i, status := range []Status{Cancelled, InFlight, Succeeded} {
			failsIn(t, errOf(s.Cancel(t.Context(), "acme", tasks[i].ID)), tasks[i].ID, status)
		}
		for _, name := range [][2]string{{"umbrella", tasks[0].ID}, {"acme", "none"}} {
			fails(t, errOf(s.Cancel(t.Context(), name[0], name[1])), ErrNotFound)
		}
		givesRows(t)(s.Claim(t.Context(), rowsOf(tasks), after(time.Hour), 0)) // none is PENDING
	})
}

// TestCancelOrClaim has one process cancel what another claims: one of them does.
func TestCancelOrClaim(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s, other := openStore(t, url), openStore(t, url)
		for n := range 20 {
			of := create(t, s, task(n))[0]
			var wg sync.WaitGroup
			var claimed []Task
			var claimErr, cancelErr error
			wg.Go(func() { _, cancelErr = s.Cancel(t.Context(), "acme", of.ID) })
			wg.Go(func() {
				claimed, claimErr = other.Claim(t.Context(), []int64{of.Row}, after(time.Hour), 0)
			})
			wg.Wait()
			if _, refused := errors.AsType[*StateError](cancelErr); claimErr != nil || refused != (len(claimed) == 1) {
				t.Fatalf("Cancel: %v, Claim = %d, %v, want one of them", cancelErr, len(claimed), claimErr)
			}
		}
	})
}

func TestPolicies(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		put := func(p Policy, want int) {
			t.Helper()
			if got, err := s.PutPolicy(t.Context(), p); err != nil || got.Version != want || got.Tenant != p.Tenant {
				t.Errorf("PutPolicy = %+v, %v, want version %d", got, err, want)
			}
		}
		reordered := policy("acme", 5)
		reordered.RetryableStatusCodes, reordered.Version = []int{429, 503, 429}, 9
		put(policy("acme", 5), 1) // it is there
		put(reordered, 1)
		put(policy("acme", 6), 2)
		put(policy("acme", 6), 2)
		put(policy("acme", 5), 3) // no longer the newest
		put(policy("umbrella", 8), 2)
		for version, attempts := range []int{5, 5, 6, 5} {
			want := policy("acme", attempts)
			want.Version, want.RetryableStatusCodes = version, []int{429, 503}
			if version == 0 {
				want.Version = 3
			}
			gives(t, want)(s.Policy(t.Context(), "acme", "standard", version))
		}
		for name, version := range map[string]int{"standard": 4, "none": 0} {
			err := errOf(s.Policy(t.Context(), "acme", name, version))
			fails(t, err, ErrNotFound)
			fails(t, err, name)
		}
	})
}

// TestPoliciesAtOnce has two processes store policies of one name: each gets a
// version of its own, and none is missing.
func TestPoliciesAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		stores := []*Store{openStore(t, url), openStore(t, url)}
		const n = 10
		var wg sync.WaitGroup
		versions := make([]Policy, 2*n)
		for i := range versions {
			wg.Go(func() {
				var err error
				if versions[i], err = stores[i%2].PutPolicy(t.Context(), policy("acme", 100+i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		slices.SortFunc(versions, func(a, b Policy) int { return a.Version - b.Version })
		for i, p := range versions {
			same(t, "version", p.Version, i+2)
		}
	})
}

func TestWaiting(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		var want []Due
		for n := range 20 {
			given := task(n)
			given.NextAttemptAt = after(time.Duration(n%3) * time.Second) // many at one time
			if n%2 == 0 {
				given.Tenant = "umbrella"
			}
			got := create(t, s, given)[0]
			want = append(want, Due{got.Row, got.Tenant, got.NextAttemptAt})
		}
		for _, gone := range []int64{1, 9, 20} {
			must(t, errOf(s.Claim(t.Context(), []int64{gone}, after(time.Hour), 0)))
		}
		want = slices.DeleteFunc(want, func(d Due) bool { return d.Row == 1 || d.Row == 9 || d.Row == 20 })
		slices.SortStableFunc(want, func(a, b Due) int { return a.At.Compare(b.At) })
		for _, limit := range []int{1, 4, 100} {
			var got []Due
			for after := (Due{}); ; {
				page, err := s.Waiting(t.Context(), after, limit)
				must(t, err)
				if len(page) == 0 {
					break
				}
				got, after = append(got, page...), page[len(page)-1]
				same(t, "size of the page", len(page), min(limit, len(want)-len(got)+len(page)))
			}
			same(t, fmt.Sprint("in pages of ", limit), got, want)
		}
	})
}

func TestDead(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := openStore(t, url)
		die := func(tasks ...Task) {
			t.Helper()
			for _, c := range claimAll(t, s, tasks...) {
				must(t, s.Settle(t.Context(), []Outcome{ended(c, Exhausted, 500)}))
			}
		}
		clock, other := noon, openStore(t, url)
		dead := func(want ...int64) []Task {
			t.Helper()
			clock = clock.Add(time.Minute)
			list, err := s.Dead(t.Context(), clock, clock.Add(30*time.Second), 10)
			givesRows(t)(other.Dead(t.Context(), clock.Add(30*time.Second-1e6), clock.Add(time.Hour), 10))
			givesRows(t, want...)(list, err)
			return list
		}
		bury := func(tasks []Task) {
			t.Helper()
			must(t, s.Buried(t.Context(), tasks))
		}
		tasks := create(t, s, task(1), task(2), task(3))
		die(tasks[2], tasks[0])
		list := dead(1, 3)
		for _, want := range []int64{1, 3} {
			givesRows(t, want)(s.Dead(t.Context(), after(2*time.Minute), after(2*time.Minute+1), 1))
		}
		bury(list[:1])
		dead(3)
		bury(list)
		bury(nil)
		dead()

		begin := time.Now().Truncate(time.Millisecond)
		fails(t, errOf(s.Revive(t.Context(), "umbrella", list[0].ID)), ErrNotFound)
		revived, err := s.Revive(t.Context(), "acme", list[0].ID)
		want := list[0]
		want.Status, want.Version, want.AttemptNumber, want.LeaseUntil = Pending, want.Version+1, 0, time.Time{}
		want.NextAttemptAt, want.BudgetSince, want.UpdatedAt = revived.UpdatedAt, revived.UpdatedAt, revived.UpdatedAt
		gives(t, want)(revived, err)
		same(t, "it is of the past", revived.UpdatedAt.Before(begin), false)
		failsIn(t, errOf(s.Revive(t.Context(), "acme", list[0].ID)), list[0].ID, Pending)
		fails(t, errOf(s.Revive(t.Context(), "acme", "none")), ErrNotFound)
		claimed, err := s.Claim(t.Context(), []int64{1}, revived.NextAttemptAt, 0)
		givesRows(t, 1)(claimed, err)
		must(t, s.Settle(t.Context(), []Outcome{ended(claimed[0], Exhausted, 502)}))
		bury(list) // a late confirm of the letter that came back
		second := dead(1)
		bury(second)

		failsIn(t, errOf(s.ReviveAt(t.Context(), list[0].ID, list[0].Version)), list[0].ID, Exhausted) // of an earlier death
		fails(t, errOf(s.ReviveAt(t.Context(), "none", 1)), ErrNotFound)
		back, err := s.ReviveAt(t.Context(), list[0].ID, second[0].Version)
		must(t, err)
		same(t, "status", back.Status, Pending)
		wantLog(t, s, tasks[0], 500, 502)
	})
}

func TestForget(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := openStore(t, url)
		for i, status := range []Status{Succeeded, Exhausted, Exhausted, Succeeded, Pending} {
			n := i + 1
			o := ended(claimAll(t, s, create(t, s, task(n))...)[0], status, 200)
			o.Task.UpdatedAt = after(time.Duration(n) * time.Hour)
			must(t, s.Settle(t.Context(), []Outcome{o}))
		}
		claimAll(t, s, create(t, s, task(6))...)
		must(t, errOf(s.Cancel(t.Context(), "acme", create(t, s, task(7))[0].ID)))
		dead, err := s.Dead(t.Context(), noon, noon, 1)
		givesRows(t, 2)(dead, err)
		must(t, s.Buried(t.Context(), dead))
		later := time.Now().Add(time.Hour)
		for _, step := range []struct {
			before  time.Time
			letters bool
			limit   int
			deleted int
			left    []int64
		}{
			{after(time.Hour), false, 10, 0, []int64{1, 2, 3, 4, 5, 6, 7}},
			{after(time.Hour + 1e6), true, 10, 1, []int64{2, 3, 4, 5, 6, 7}},
			{later, true, 1, 1, []int64{3, 4, 5, 6, 7}},
			{later, true, 10, 2, []int64{3, 5, 6}},
			{later, false, 10, 1, []int64{5, 6}},
		} {
			gives(t, step.deleted)(s.Forget(t.Context(), step.before, step.letters, step.limit))
			same(t, "left", allRows(t, url), step.left)
		}
		var logged int
		must(t, rawDB(t, url).QueryRow("select count(*) from retry_attempts").Scan(&logged))
		same(t, "attempts in the log", logged, 1) // that of the task that waits
		create(t, s, task(1))                     // its key is free
	})
}

// allRows are the rows that there are.
func allRows(t *testing.T, url string) (rows []int64) {
	t.Helper()
	list, err := rawDB(t, url).Query("select id from retry_tasks order by id")
	must(t, err)
	defer list.Close()
	for list.Next() {
		var row int64
		must(t, list.Scan(&row))
		rows = append(rows, row)
	}
	return rows
}

func TestStats(t *testing.T) {
	onStores(t, func(t *testing.T, s *Store) {
		gives(t, Stats{})(s.Stats(t.Context()))
		var tasks []Task
		for n := range 8 {
			given := task(n)
			given.CreatedAt = after(time.Duration(n) * time.Minute)
			if n == 7 {
				given.Tenant = "umbrella"
			}
			tasks = append(tasks, create(t, s, given)...)
		}
		claimed := claimAll(t, s, tasks[:4]...)
		must(t, s.Settle(t.Context(), []Outcome{ended(claimed[0], Succeeded, 200), ended(claimed[1], Exhausted, 400), ended(claimed[2], Exhausted, 400)}))
		must(t, errOf(s.Cancel(t.Context(), "acme", tasks[4].ID)))
		want := Stats{Oldest: after(3 * time.Minute), Policies: []PolicyStats{
			{Tenant: "acme", PolicyID: "standard", Pending: 2, InFlight: 1, Succeeded: 1, Exhausted: 2, Cancelled: 1},
			{Tenant: "umbrella", PolicyID: "standard", Pending: 1},
		}}
		gives(t, want)(s.Stats(t.Context()))
	})
}

// TestIndexes shows that what is done all the time looks at no more rows than it
// wants, however many wait.
func TestIndexes(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := openStore(t, url)
		var batch []*creation
		for n := range 3000 {
			c, err := newCreation(task(n))
			must(t, err)
			batch = append(batch, c)
		}
		must(t, s.create(t.Context(), batch))
		raw := rawDB(t, url)
		must(t, errOf(raw.Exec("update retry_tasks set status = 2 where id > 2000")))
		if s.db.Postgres() {
			must(t, errOf(raw.Exec("analyze retry_tasks")))
		}
		for _, tt := range []struct {
			name, statement string
			args            []any
			uses            string
		}{
			{"Claim", claimTasks, []any{InFlight, noon, noon, []int64{1, 2, 3}, after(time.Hour)}, "retry_tasks_pkey"},
			{"Waiting", waitingTasks, []any{noon, 0, 100}, "retry_tasks_waiting"},
			{"Expire", expiredTasks, []any{noon, 100}, "retry_tasks_leases"},
			{"Dead", deadTasks, []any{noon, noon, 100}, "retry_tasks_dead"},
			{"Forget", forgetTasks, []any{noon, true, 100}, "retry_tasks_over"},
			{"Stats", statsQuery, nil, "retry_tasks_counts"},
			{"Usage of tasks", waitingOf, []any{"acme", "acme"}, "retry_tasks_counts"},
			{"Usage of bytes", bytesOf, []any{"acme"}, "retry_tasks_sizes"},
		} {
			if s.db.Postgres() && (tt.name == "Stats" || tt.name == "Usage of tasks") {
				continue // most wait here, so it may read the table as well
			}
			plan, err := planOf(t.Context(), s, tt.statement, tt.args)
			must(t, err)
			if !s.db.Postgres() && tt.name == "Claim" {
				tt.uses = "SEARCH retry_tasks USING INTEGER PRIMARY KEY"
			}
			if !strings.Contains(plan, tt.uses) || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "SCAN retry_tasks\n") || strings.Contains(plan, "waiting") && tt.name == "Claim" {
				t.Errorf("%s does not use %s:\n%s", tt.name, tt.uses, plan)
			}
		}
	})
}

func planOf(ctx context.Context, s *Store, statement string, args []any) (plan string, err error) {
	explain, before := "explain ", 0
	if !s.db.Postgres() {
		explain, before = "explain query plan ", 3
	}
	err = s.db.Write(ctx, func(tx sqldb.Tx) error {
		return tx.Each(ctx, explain+statement, args, func(scan func(...any) error) error {
			var line string
			dest := []any{new(any), new(any), new(any), &line}
			err := scan(dest[3-before:]...)
			plan += line + "\n"
			return err
		})
	})
	return plan, err
}

// TestStoreID is the same for all who open a store, and for nobody else.
func TestStoreID(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		ids := make(chan string, 8)
		var opening sync.WaitGroup
		for range cap(ids) { // at once, when there is none yet
			opening.Go(func() {
				s, err := Open(t.Context(), url)
				if err != nil {
					t.Error(err)
					return
				}
				ids <- s.ID()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		opening.Wait()
		close(ids)
		a, b := openStore(t, url), openStore(t, url)
		for id := range ids {
			same(t, "ID of one who opened it", id, a.ID())
		}
		other := openStore(t, filepath.Join(t.TempDir(), "other.db"))
		if len(a.ID()) != 26 || b.ID() != a.ID() || other.ID() == a.ID() {
			t.Errorf("IDs %q and %q, and of another store %q", a.ID(), b.ID(), other.ID())
		}
	})
}

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
		plan, err := planOf(t.Context(), s, bodiesOfTasks, []any{[][]byte{[]byte("acme/waiting")}})
		if err != nil || !strings.Contains(plan, "retry_tasks_bodies") {
			t.Errorf("no index is used: %v\n%s", err, plan)
		}
	})
}
