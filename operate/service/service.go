package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"
)

// Config says what a [Service] works with. Store is required.
type Config struct {
	// Store keeps the tasks: a [*Store].
	Store queue

	// Schedule says which tasks are due. Nil is a [Heap], for a store that no other
	// process uses. The Service does not close it.
	Schedule Schedule

	// Guard says what may be called. Nil is that of Targets{}: public addresses alone.
	Guard *Guard

	// Bodies has the bodies that tasks refer to. Nil means that none does.
	Bodies interface {
		Open(ctx context.Context, ref string) (body io.ReadCloser, size int64, err error)
	}

	// Bury publishes the dead letter of a task that is EXHAUSTED, and returns nil once
	// it is confirmed. Its context ends after 30 s at most. After an error or a crash it
	// is called again, so that a letter may be there twice. Nil leaves them in the store.
	Bury func(context.Context, Task) error

	// Retention is how long tasks are kept that have ended. Where there are letters, one
	// that is EXHAUSTED is kept until its letter is confirmed, too. Zero means 30 days.
	Retention time.Duration

	// Tracer makes a span of each call, in the trace of the request that created the task.
	// Nil means none: the calls have the headers of that trace as they came.
	Tracer Tracer

	// Metrics count what happens. Nil means that nobody asks.
	Metrics *Metrics

	// Logger hears when something fails that an operator should mend, and when it works
	// again. Nil is slog.Default().
	Logger *slog.Logger

	// Workers is how many calls are made at once. One tenant alone makes at most three
	// quarters of them, but at least one, so that there is a worker for another. Zero
	// means 64.
	Workers int

	// PerHost is how many calls of one tenant may go to the same host and port at once,
	// so that one which hangs does not hold all workers. Tenants that call the same host
	// have as many each, and it may get all of these. Zero means a quarter of Workers.
	PerHost int

	// Sweep is how often the store is searched for tasks that the schedule has lost, for
	// those whose worker has died, and for letters to be buried. Zero means 5 s.
	Sweep time.Duration

	// Drain is how long calls may still take when the service stops. Those that are cut
	// off then count as attempts. Zero means 25 s, as orchestrators kill after 30.
	Drain time.Duration
}

// queue is what a Service needs of a [Store], which see.
type queue interface {
	Policy(ctx context.Context, tenant, id string, version int) (Policy, error)
	Claim(ctx context.Context, rows []int64, now time.Time, ahead time.Duration) ([]Task, error)
	Settle(ctx context.Context, outcomes []Outcome) error
	Waiting(ctx context.Context, after Due, limit int) ([]Due, error)
	Expire(ctx context.Context, now time.Time, limit int) ([]Task, error)
	Dead(ctx context.Context, now, until time.Time, limit int) ([]Task, error)
	Buried(ctx context.Context, dead []Task) error
	Forget(ctx context.Context, before time.Time, letters bool, limit int) (int, error)
}

const (
	ahead       = 250 * time.Millisecond // how long before they are due tasks are claimed
	mostMargin  = 5 * time.Second        // see Task.margin
	poll        = 250 * time.Millisecond // how long nobody asks the schedule at most
	breather    = 20 * time.Millisecond  // until more is claimed, while much is in hand
	retryStore  = time.Second            // after a failure of store or schedule
	retryPolicy = 5 * time.Second        // of a task whose policy cannot be read
	addTime     = 200 * time.Millisecond // for adding to the schedule, while callers and outcomes wait
	takeTime    = time.Second            // for taking from it
	storeTime   = 10 * time.Second       // for one call of the store
	mostInHand  = 8                      // tasks that are claimed, for each worker
	mostClaimed = 256                    // at once
	mostSettled = 256                    // likewise
	mostCached  = 10_000                 // policies
)

// Service makes the calls of the tasks in a store: it takes what is due, calls, and
// stores what became of it, until the tasks are at an end.
//
// A task is called until that succeeds, or its policy or a DELETE ends it. A claim by a
// worker that dies counts as an attempt, as nobody knows whether it called: with a
// single attempt in its policy, the task may be EXHAUSTED without a call. Any number of
// services may share a store, in as many processes.
type Service struct {
	cfg     Config
	targets *targets
	workers *shares // of the calls under way
	open    *shares // of the bodies that are kept elsewhere and are open
	hands   *shares // of the tasks that are claimed
	trouble trouble
	failed  failures
	now     func() time.Time

	wake    chan struct{} // something was added
	dead    chan struct{} // a task was exhausted
	endings chan ending
	tasks   sync.WaitGroup
	working sync.Map // the rows that are claimed

	mu       sync.Mutex
	policies map[policyKey]Policy
}

type policyKey struct {
	tenant, id string
	version    int
}

// New returns a Service that does nothing yet. Its error names every fault of c.
func New(c Config) (*Service, error) {
	if err := c.faults(); err != nil {
		return nil, err
	}
	if c.Schedule == nil {
		c.Schedule = NewHeap()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Guard == nil {
		c.Guard = &Guard{hosts: []pattern{anyHost}}
	}
	c.Workers = cmp.Or(c.Workers, 64)
	c.PerHost = cmp.Or(c.PerHost, max(c.Workers/4, 1))
	c.Sweep = cmp.Or(c.Sweep, 5*time.Second)
	c.Drain = cmp.Or(c.Drain, 25*time.Second)
	c.Retention = cmp.Or(c.Retention, 30*24*time.Hour)
	targets := newTargets(c.Guard, nil, c.PerHost)
	targets.traced = c.Tracer != nil
	return &Service{
		cfg:      c,
		targets:  targets,
		workers:  newShares(c.Workers, mostOfOne, 0),
		open:     newShares(c.Workers, mostOfOne, 0),
		hands:    newShares(c.Workers*mostInHand, mostOfOne, 0),
		trouble:  trouble{log: c.Logger},
		failed:   failures{log: c.Logger},
		now:      time.Now,
		wake:     make(chan struct{}, 1),
		dead:     make(chan struct{}, 1),
		endings:  make(chan ending, mostSettled),
		policies: map[policyKey]Policy{},
	}, nil
}

func (c Config) faults() error {
	var all []error
	refuse := func(bad bool, field, fix string) {
		if bad {
			all = append(all, fmt.Errorf("service: Config.%s: %s", field, fix))
		}
	}
	refuse(c.Store == nil, "Store", "is nil: open one with Open")
	refuse(c.Workers < 0 || c.Workers > 10_000, "Workers", "use 1 to 10000, or 0 for 64")
	refuse(c.PerHost < 0 || c.PerHost > 10_000, "PerHost", "use 1 to Workers, or 0 for a quarter of them")
	refuse(c.Sweep < 0, "Sweep", "use a positive duration, or 0 for 5 s")
	refuse(c.Drain < 0, "Drain", "use a positive duration, or 0 for 25 s")
	refuse(c.Retention < 0, "Retention", "use a positive duration, or 0 for 30 days")
	return errors.Join(all...)
}

// Scheduled adds tasks that were stored as PENDING to the schedule, and has those
// that are due taken at once. It takes 200 ms at most. Where it fails, the sweeper
// finds them.
func (s *Service) Scheduled(ctx context.Context, tasks ...Due) error {
	ctx, cancel := context.WithTimeout(ctx, addTime)
	defer cancel()
	err := s.cfg.Schedule.Add(ctx, tasks...)
	s.trouble.note("add tasks to the schedule", err)
	signal(s.wake)
	return err
}

// signal wakes who waits for c, now or later.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ending is what became of a task.
type ending struct {
	Outcome
	quiet   bool // it was given back as it was
	foreign bool // it was in the hand of a worker that died
}

// back gives a task back as it was.
func back(t Task) ending {
	t.Status = Pending
	return ending{Outcome: Outcome{Task: t}, quiet: true}
}

// work makes one attempt at a task that was claimed, within its lease. It gives the
// task back when ctx ends before the call has begun; the call itself ends with calls.
func (s *Service) work(ctx, calls context.Context, t Task) ending {
	if !s.await(ctx, t.NextAttemptAt) {
		return back(t)
	}
	inTime, cancel := context.WithTimeout(ctx, s.left(t))
	defer cancel()
	p, err := s.policy(inTime, t)
	switch {
	case err != nil && ctx.Err() != nil:
		return back(t)
	case err != nil:
		t.Status, t.NextAttemptAt = Pending, ceil(s.now().Add(retryPolicy))
		return ending{Outcome: Outcome{Task: t}, quiet: true}
	}
	span, calls := s.span(calls, t)
	r := result{began: s.now(), err: errBudgetOver}
	if p.left(t, r.began) > 0 {
		r = s.attempt(inTime, calls, t, p)
	}
	if isDeferral(r.err) && ctx.Err() != nil {
		span.released()
		return back(t)
	}
	s.failed.note(span, t, r, s.now())
	if span != nil {
		t.LastSpan = span.traceparent()
	}
	o := decide(t, p, r, s.now(), rand.Float64())
	span.decided(p, r, o)
	return ending{Outcome: o}
}

// left is how long a task may still wait for its call to begin.
func (s *Service) left(t Task) time.Duration {
	return t.LeaseUntil.Sub(s.now()) - t.callTime() - t.margin()
}

// await waits until a task is due. It reports false if ctx ends first, and if a clock
// that was set back makes it too long.
func (s *Service) await(ctx context.Context, due time.Time) bool {
	for {
		wait := due.Sub(s.now())
		if wait <= 0 {
			return ctx.Err() == nil
		}
		if wait > 2*ahead || !sleep(ctx, wait) {
			return false
		}
	}
}

// sleep reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// policy returns the one of a task. A version never changes.
func (s *Service) policy(ctx context.Context, t Task) (Policy, error) {
	key := policyKey{t.Tenant, t.PolicyID, t.PolicyVersion}
	s.mu.Lock()
	p, ok := s.policies[key]
	s.mu.Unlock()
	if ok {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	p, err := s.cfg.Store.Policy(ctx, key.tenant, key.id, key.version)
	s.trouble.note("read a policy", err)
	if err != nil {
		return Policy{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.policies) >= mostCached {
		clear(s.policies)
	}
	s.policies[key] = p
	return p, nil
}

// attempt calls the target of a task, unless something keeps it from that until ctx
// ends.
func (s *Service) attempt(ctx, calls context.Context, t Task, p Policy) (r result) {
	r.began = s.now()
	u, err := url.Parse(t.TargetURL)
	if err != nil {
		r.err = &TargetError{Target: fmt.Sprintf("%.300q", t.TargetURL), Reason: "it is no URL"}
		return r
	}
	if r.err = s.cfg.Guard.Allowed(u); r.err != nil {
		return r
	}
	to, err := s.targets.of(t.Tenant, u)
	if err != nil {
		r.err = &deferral{reasonNoTarget, err.Error(), retryStore} // a bug: defaults are valid
		return r
	}
	if r.err = to.enter(ctx.Done(), s.now); r.err != nil {
		return r
	}
	defer func() { to.leave(s.now(), r.took) }()
	retry := t.AttemptNumber > 0
	if r.err = to.token(s.now(), retry, rand.Float64()); r.err != nil {
		return r
	}
	r = s.occupy(ctx, calls, to, t, p)
	to.ended(s.now(), retry, r.err)
	return r
}

// occupy waits until ctx ends for what a call needs: its body, and then a worker.
func (s *Service) occupy(ctx, calls context.Context, to *target, t Task, p Policy) (r result) {
	r.began = s.now()
	var body *stream
	if t.BodyRef != "" {
		if !s.open.wait(ctx, t.Tenant) {
			r.err = errNoWorker
			return r
		}
		defer s.open.give(t.Tenant)
		if body, r.err = s.body(ctx, t.BodyRef); r.err != nil {
			return r
		}
		defer body.Close()
	}
	if !s.workers.wait(ctx, t.Tenant) {
		r.err = errNoWorker
		return r
	}
	defer s.workers.give(t.Tenant)
	return s.callNow(calls, to, t, p, body)
}

// callNow calls, if there is enough time left for it, and for no longer than what is
// left of the budget.
func (s *Service) callNow(calls context.Context, to *target, t Task, p Policy, body *stream) (r result) {
	r.began = s.now()
	if s.left(t) < 0 {
		r.err = errNoWorker
		return r
	}
	limit := min(t.callTime(), p.left(t, r.began))
	if limit <= 0 {
		r.err = errBudgetOver
		return r
	}
	r.status, r.took, r.err = call(calls, to.client, t, body, limit)
	if r.err != nil && calls.Err() != nil {
		r.err = fmt.Errorf("%s: %w", causeCut, r.err)
	}
	if r.err = to.closed(r.err, s.now()); isDeferral(r.err) {
		r.took = 0
	} else {
		s.cfg.Metrics.called(t, r.began)
	}
	return r
}

var (
	// errNoWorker puts off a task whose lease would not last for the call.
	errNoWorker = &deferral{reasonNoWorker, "", shortestPause}

	// errBudgetOver ends a task: what comes after it is too late.
	errBudgetOver = &deferral{reason: reasonBudget}
)

func isDeferral(err error) bool {
	_, ok := err.(*deferral)
	return ok
}

// trouble tells the log when something begins to fail, and when it works again.
type trouble struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]time.Time
}

// note notes how an attempt at something went.
func (t *trouble) note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	since, failing := t.failing[what]
	switch {
	case err != nil && !failing:
		if t.failing == nil {
			t.failing = map[string]time.Time{}
		}
		t.failing[what] = time.Now()
		t.log.Warn("retry service: cannot "+what+": no task is lost, some may wait", "error", err)
	case err == nil && failing:
		delete(t.failing, what)
		t.log.Info("retry service: can "+what+" again", "after", time.Since(since).Round(time.Second))
	}
}
