package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeStore is a Store in memory, with the rules that a Service relies on.
type fakeStore struct {
	mu       sync.Mutex
	rows     map[int64]*fakeRow
	policies map[string]Policy
	down     error // what everything fails with
	claims   int
	last     int64 // row
}

type fakeRow struct {
	Task
	log    []Attempt
	buried bool
}

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[int64]*fakeRow{}, policies: map[string]Policy{"default": Policy{ID: "default"}.WithDefaults()}}
}

func (f *fakeStore) Policy(_ context.Context, _, id string, _ int) (Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.policies[id]
	if f.down == nil && !ok {
		return p, errors.New("there is none of this name")
	}
	return p, f.down
}

func (f *fakeStore) Claim(_ context.Context, rows []int64, now time.Time, ahead time.Duration) (claimed []Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return nil, f.down
	}
	f.claims++
	for _, id := range rows {
		if r := f.rows[id]; r != nil && r.Status == Pending && !r.NextAttemptAt.After(now.Add(ahead)) {
			r.Status, r.LeaseUntil = InFlight, now.Add(r.VisibilityTimeout)
			if r.NextAttemptAt.After(now) {
				r.LeaseUntil = r.NextAttemptAt.Add(r.VisibilityTimeout)
			}
			r.Version++
			claimed = append(claimed, r.Task)
		}
	}
	return claimed, nil
}

func (f *fakeStore) Settle(_ context.Context, outcomes []Outcome) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	var lost []string
	for _, o := range outcomes {
		r := f.rows[o.Task.Row]
		if r.Status != InFlight || r.Version != o.Task.Version {
			lost = append(lost, o.Task.ID)
			continue
		}
		r.Task, r.LeaseUntil = o.Task, time.Time{}
		r.Version++
		if o.Attempt != nil {
			r.log = append(r.log, *o.Attempt)
		}
	}
	if lost != nil {
		return &LostError{lost}
	}
	return nil
}

// find returns the rows of a state, in the order in which they are due.
func (f *fakeStore) find(is func(*fakeRow) bool) (list []*fakeRow) {
	for _, r := range f.rows {
		if is(r) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *fakeRow) int {
		return cmp.Or(a.NextAttemptAt.Compare(b.NextAttemptAt), cmp.Compare(a.Row, b.Row))
	})
	return list
}

func (f *fakeStore) Waiting(_ context.Context, after Due, limit int) (list []Due, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.find(func(r *fakeRow) bool {
		return r.Status == Pending && cmp.Or(r.NextAttemptAt.Compare(after.At), cmp.Compare(r.Row, after.Row)) > 0
	}) {
		list = append(list, Due{r.Row, r.Tenant, r.NextAttemptAt})
	}
	return list[:min(limit, len(list))], f.down
}

func (f *fakeStore) Expire(_ context.Context, now time.Time, limit int) (list []Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.find(func(r *fakeRow) bool { return r.Status == InFlight && !r.LeaseUntil.After(now) }) {
		list = append(list, r.Task)
	}
	return list[:min(limit, len(list))], f.down
}

func (f *fakeStore) Dead(_ context.Context, now, until time.Time, limit int) (list []Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return nil, f.down
	}
	for _, r := range f.find(func(r *fakeRow) bool { return r.Status == Exhausted && !r.buried && !r.LeaseUntil.After(now) }) {
		if len(list) < limit {
			r.LeaseUntil = until
			list = append(list, r.Task)
		}
	}
	return list, nil
}

func (f *fakeStore) Buried(_ context.Context, dead []Task) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range dead {
		f.rows[t.Row].buried = true
	}
	return f.down
}

func (f *fakeStore) Forget(_ context.Context, before time.Time, letters bool, limit int) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.find(func(r *fakeRow) bool {
		over := r.Status == Succeeded || r.Status == Cancelled || r.Status == Exhausted && (r.buried || !letters)
		return over && r.UpdatedAt.Before(before)
	}) {
		if n < limit && f.down == nil {
			delete(f.rows, r.Row)
			n++
		}
	}
	return n, f.down
}

// world is a service on a fake store, in virtual time, and the targets that it calls.
type world struct {
	*testing.T
	store  *fakeStore
	config Config
	step   time.Duration // by which the clock was set

	mu      sync.Mutex
	targets map[string]func(context.Context, *http.Request) (*http.Response, error) // by host
	calls   map[string][]time.Time                                                  // by idempotency key
	sent    string                                                                  // the latest body
	log     bytes.Buffer
}

// pass lets so much of the virtual time pass.
func (w *world) pass(d time.Duration) { time.Sleep(d) }

// inVirtualTime runs a test, and prints the log of the service if it fails.
func inVirtualTime(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: newFakeStore(), calls: map[string][]time.Time{}, targets: map[string]func(context.Context, *http.Request) (*http.Response, error){}}
		w.config = Config{Store: w.store, Logger: slog.New(slog.NewTextHandler(&w.log, nil))}
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(w.log.String())
			}
		})
		test(w)
	})
}

// clock is the time of day, which may be set.
func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.step)
}

func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step += by
}

// RoundTrip is the network.
func (w *world) RoundTrip(req *http.Request) (*http.Response, error) {
	all, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.sent = string(all)
	key := req.Header[strings.ToLower(keyHeader)][0]
	w.calls[key] = append(w.calls[key], time.Now())
	target := w.targets[req.URL.Hostname()]
	w.mu.Unlock()
	if target == nil {
		return answered(200), nil
	}
	return target(req.Context(), req)
}

func answered(status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
}

// answers has a target answer so after a time.
func answers(d time.Duration, status func(n int) int) func(context.Context, *http.Request) (*http.Response, error) {
	var mu sync.Mutex
	n := 0
	return func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		if !sleep(ctx, d) {
			return nil, ctx.Err()
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		return answered(status(n)), nil
	}
}

func always(status int) func(int) int { return func(int) int { return status } }

// add stores a task that is due after a time.
func (w *world) add(tenant, host string, in time.Duration) *fakeRow {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.last++
	row := w.store.last
	now := w.clock()
	r := &fakeRow{Task: Task{
		ID: fmt.Sprint("task-", row), Row: row, Tenant: tenant, IdempotencyKey: fmt.Sprint("key-", row), Method: http.MethodPost,
		TargetURL: "https://" + host + "/", PolicyID: "default", PolicyVersion: 1, Status: Pending, Version: 1,
		CreatedAt: now, BudgetSince: now, NextAttemptAt: now.Add(in), VisibilityTimeout: time.Minute,
	}}
	w.store.rows[row] = r
	return r
}

// start runs a service until the end of the test, or until stop, which waits.
func (w *world) start() (s *Service, stop func()) {
	w.Helper()
	s, err := New(w.config)
	if err != nil {
		w.Fatal(err)
	}
	s.targets.base = w
	s.now = w.clock
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	stop = func() { cancel(); <-done }
	w.Cleanup(stop)
	return s, stop
}

// task returns what a row is now.
func (w *world) task(r *fakeRow) fakeRow {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return *r
}

func (w *world) callsOf(r *fakeRow) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls[r.IdempotencyKey])
}

// made is how many calls there were.
func (w *world) made() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.calls {
		n += len(all)
	}
	return n
}

// calledOnce fails if a task was called more than once.
func (w *world) calledOnce() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, calls := range w.calls {
		if len(calls) != 1 {
			w.Errorf("%s was called %d times", key, len(calls))
		}
	}
}

// count counts the tasks of a tenant in a state.
func (w *world) count(tenant string, s Status) int {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return len(w.store.find(func(r *fakeRow) bool { return r.Tenant == tenant && r.Status == s }))
}

// within fails unless so many tasks of a tenant are in a state after a time.
func (w *world) within(d time.Duration, tenant string, s Status, want int) {
	w.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := w.count(tenant, s); got != want {
		w.Errorf("after %v, %d tasks of %s are %s, want %d", d, got, tenant, s, want)
	}
}
