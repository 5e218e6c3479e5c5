package consumer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// Guard says how the dependency of handlers is spared when it fails. Each topic
// is a dependency of its own, unless its [TopicConfig.Dependency] names another. The
// zero value protects, with a limit of runs at once and a budget for retries.
//
// Waiting is not an attempt. Nothing here drops a message or dead-letters one.
//
// A message that was sent back from a dead-letter queue (brokers.Meta.RedriveCount)
// lowers no limit. Such messages have half of the slots of their topic at most,
// and a budget of their own, of one retry a second.
type Guard struct {
	// Budget paces retries: each spends a token when it starts, deliveries earn
	// tokens, and a retry that succeeds gives its own back. A retry without a
	// token waits, uncounted. Nil means a budget of the dependency's own with
	// budget.Queue: 10 % of the deliveries and 1/s. One that is set here is
	// shared by all dependencies that this Guard is for. If it is a budget.Fleet,
	// the limits of its workers recover together.
	Budget budget.Pacer

	// Limiter says how many runs may go at once. It lowers its limit when the
	// dependency is overloaded or down, and raises it again, up to the
	// Concurrency of the topics together. Nil means one of the dependency's own.
	// One that is set here is shared by all dependencies that this Guard is for;
	// use its Pause and Resume to pause them by hand, which they see within a
	// second.
	Limiter *flow.Limiter

	// Off lets every run start at once and counts every failure as an attempt:
	// there is no limit below Concurrency. A Budget that is set still paces
	// retries, and messages that were sent back keep theirs. It is for tests, and
	// for dependencies that something else paces.
	Off bool
}

func (g Guard) faults(field string) error {
	if g.Off && g.Limiter != nil {
		return faulty(field+".Off", "is set beside a Limiter", "set one of them")
	}
	return nil
}

// dependency is what the handlers of one or several topics depend on.
type dependency struct {
	name    string
	limiter *flow.Limiter // nil if switched off
	budget  budget.Pacer  // nil if switched off
	shared  bool          // another Consumer, or a person, may change the limiter

	byHand bool // the limiter was told of a pause; under the mu of the control

	seen flow.Status // what the intake looked at last; under the mu of the pipeline

	line lineup

	paused atomic.Int64 // since when, as EventPaused told; 0 if it does not; written under the mu of the admission

	// The rest belongs to the admission, under its mu.
	timer *time.Timer // looks again when the next run may start
	pulse *pulse.Pulse
	fires time.Time // when it does
	alone time.Time // when a probe was first allowed and only retries were in line
}

// status returns what may start at now.
func (g *dependency) status(now time.Time) flow.Status { return g.adjust(now, flow.Change{}) }

// adjust tells the limiter of g, if it has one, of a change.
func (g *dependency) adjust(now time.Time, c flow.Change) flow.Status {
	if g.limiter == nil {
		return flow.Status{}
	}
	return g.limiter.Adjust(now, c)
}

// standing is the status of what lets runs of s start: of its dependency, or of a
// pause by hand. Messages are so held back in the same way.
func (s *subscription) standing(now time.Time) flow.Status {
	if p := s.byHand.Load(); p != nil {
		return flow.Status{Held: true, Slots: 1, Paused: p.String()}
	}
	return s.dependency.status(now)
}

// changed reports whether the intake would do something else by v than by w.
func changed(v, w flow.Status) bool {
	return v.Full() != w.Full() || v.Held != w.Held || int(v.Limit) != int(w.Limit)
}

// add returns the dependency of s, which it shares with others of routes.
func (a *admission) add(s *subscription, cfg Config, routes []*route) *dependency {
	a.semaphores = append(a.semaphores, s.returned)
	for _, g := range a.dependencies {
		if g.name == s.route.dependency {
			return g
		}
	}
	slots := 0
	for _, other := range routes {
		if other.dependency == s.route.dependency {
			slots += other.concurrency
		}
	}
	guard, ok := cfg.Guards[s.route.dependency]
	if !ok {
		guard = cfg.Guard
	}
	g := a.newDependency(s.route.dependency, guard, cfg.slots(slots))
	a.dependencies = append(a.dependencies, g)
	return g
}

// newDependency makes what is unset of g and not switched off, for so many slots.
func (a *admission) newDependency(name string, g Guard, slots int) *dependency {
	made, own := &dependency{name: name, limiter: g.Limiter, shared: g.Limiter != nil}, must(budget.New(budget.Queue()))
	if !g.Off {
		made.budget = own
		if made.limiter == nil {
			made.limiter = flow.New(slots, a.random)
		}
	}
	if f, ok := g.Budget.(budget.Fleet); ok {
		made.adjust(time.Time{}, flow.Change{Workers: f.Workers()})
	}
	if g.Budget != nil {
		made.budget = &given{g.Budget, own, func(err error) {
			a.report(Event{Kind: EventError, Dependency: name, Operation: "budget", Err: err})
		}}
	}
	return made
}

// must returns what a preset makes, which is valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("consumer: a preset is not valid: %v", err))
	}
	return v
}

// outcomeOf says what a failed run tells about the dependency.
func outcomeOf(v classify.Verdict, timedOut bool) flow.Outcome {
	switch {
	case v.Deferred, v.Class == classify.ClassSkipped, v.Class == classify.ClassShutdown, v.Class == classify.ClassLost:
		return flow.Neutral
	case v.Class == classify.ClassPoison:
		return flow.Poison
	case v.Class == classify.ClassThrottled:
		return flow.Throttled
	case timedOut:
		return flow.Timeout
	case v.Class == classify.ClassEnvironment, v.Class == classify.ClassTransient:
		return flow.Overload
	}
	return flow.Unknown
}

// identity tells the names of dependencies apart: FNV-1a.
func identity(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// lineup is the jobs that wait for a dependency or a semaphore: fresh messages go
// first, then retries, then those that were sent back.
type lineup struct {
	jobs   [ranks][][]*delivery // under the mu of the admission
	length atomic.Int32         // how many
}

const (
	fresh = iota
	retried
	sentBack
	ranks
)

// rank is the place of d in a lineup.
func (d *delivery) rank() int {
	switch {
	case d.returned():
		return sentBack
	case d.isRetry():
		return retried
	}
	return fresh
}

func (l *lineup) add(job []*delivery) {
	rank := job[0].rank()
	l.jobs[rank] = append(l.jobs[rank], job)
	l.length.Add(1)
}

// next takes the job that goes first out of those that rank below last.
func (l *lineup) next(last int) []*delivery {
	for rank := range l.jobs[:last] {
		for jobs := l.jobs[rank]; len(jobs) > 0; jobs = l.jobs[rank] {
			l.jobs[rank] = jobs[1:]
			l.length.Add(-1)
			if job := those(jobs[0], (*delivery).isWaiting); len(job) > 0 {
				return job
			}
		}
		l.jobs[rank] = nil
	}
	return nil
}

// all returns every delivery in line.
func (l *lineup) all() (ds []*delivery) {
	for _, jobs := range l.jobs {
		ds = append(ds, slices.Concat(jobs...)...)
	}
	return ds
}

// remove takes the jobs of s out of line.
func (l *lineup) remove(s *subscription) (removed [][]*delivery) {
	for rank := range l.jobs {
		l.jobs[rank] = slices.DeleteFunc(l.jobs[rank], func(job []*delivery) bool {
			if job[0].sub != s {
				return false
			}
			removed = append(removed, job)
			l.length.Add(-1)
			return true
		})
	}
	return removed
}

// shorten takes jobs out of line that cannot wait for the next start, or are too
// many if that is not near.
func (l *lineup) shorten(v flow.Status, now time.Time) (leave [][]*delivery) {
	start, n := v.Next, 0
	if start.IsZero() {
		start = now.Add(recheck)
	}
	lasts := func(d *delivery) bool { return d.lasts(start) }
	for rank, jobs := range l.jobs {
		l.jobs[rank] = slices.DeleteFunc(jobs, func(job []*delivery) bool {
			job = those(job, (*delivery).isWaiting)
			if n++; len(job) > 0 && len(those(job, lasts)) == len(job) && (n <= inLineMost || !far(v, now)) {
				return false
			}
			n--
			leave = append(leave, job)
			l.length.Add(-1)
			return true
		})
	}
	return leave
}

// semaphore limits the runs of messages of a topic that were sent back.
type semaphore struct {
	slots  int32
	used   atomic.Int32
	budget budget.Pacer
	line   lineup
}

// newSemaphore returns one with half of so many slots.
func newSemaphore(slots int) *semaphore {
	return &semaphore{slots: int32(max(1, slots/2)), budget: must(budget.New(budget.Queue()))}
}

// acquire takes a slot, if one is free: of half of the runs that g lets go at once.
func (s *semaphore) acquire(g *dependency, now time.Time) bool {
	if s.used.Add(1) > s.most(g, now) {
		s.used.Add(-1)
		return false
	}
	return true
}

// most is how many slots there are now.
func (s *semaphore) most(g *dependency, now time.Time) int32 {
	if v := g.status(now); !v.Full() {
		return min(s.slots, max(1, int32(v.Limit/2)))
	}
	return s.slots
}

// given is a budget of the user's, from whose faults messages are kept: local
// stands in for it when it panics, and waits are what they have to be.
type given struct {
	budget.Pacer
	local  budget.Pacer
	report func(error)
}

// Deposit implements budget.Pacer.
func (g *given) Deposit(now time.Time, n int) {
	defer g.rescue("Deposit", func() { g.local.Deposit(now, n) })
	g.Pacer.Deposit(now, n)
}

// Withdraw implements budget.Pacer.
func (g *given) Withdraw(now time.Time, most time.Duration, random float64) (wait time.Duration, ok bool) {
	defer g.rescue("Withdraw", func() { wait, ok = g.local.Withdraw(now, most, random) })
	wait, ok = g.Pacer.Withdraw(now, most, random)
	return min(max(wait, resumeEvery), most), ok
}

// Refund implements budget.Pacer.
func (g *given) Refund(now time.Time) {
	defer g.rescue("Refund", func() { g.local.Refund(now) })
	g.Pacer.Refund(now)
}

// Snapshot implements budget.Pacer.
func (g *given) Snapshot(now time.Time) (s budget.Snapshot) {
	defer g.rescue("Snapshot", func() { s = g.local.Snapshot(now) })
	return g.Pacer.Snapshot(now)
}

// rescue is to be deferred. It does instead what a method could not.
func (g *given) rescue(method string, instead func()) {
	if v := recover(); v != nil {
		g.report(fmt.Errorf("Guard.Budget: %s panicked: %v; a budget of the process stands in", method, v))
		instead()
	}
}

// pauseCause says why a dependency is paused.
func pauseCause(v flow.Status) string {
	if v.Paused != "" {
		return "paused by hand: " + v.Paused
	}
	return fmt.Sprintf("%d of the last %d messages failed: single runs try it out", v.Failing, v.Sampled)
}
