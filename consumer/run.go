package consumer

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// run is one delivery on its way through the pipeline. It is owned by one
// stage at a time (queue, worker, hold, outbox); only the fields under mu are
// shared with those who may take its lease away.
type run struct {
	delivery *brokers.Delivery
	route    *route
	meta     *brokers.Meta // as of the last failure; replaced under mu, never changed
	laned    bool          // holds the lane of its key
	permit   permit        // of its fetch, then of its run
	slot     time.Time     // its room in the budget; zero if it has none

	action  brokers.Action // how it is settled
	settled atomic.Bool    // a settlement is decided: nobody may decide again
	held    bool           // waits outside the window; under the mu of the pipeline
	entry   *dlq.Entry     // its dead letter
	parked  bool           // waits for it outside the window
	tooBig  bool           // the broker refused the dead letter for its size

	self  [1]*run // the job of this run alone
	first attempt // saves an allocation; later attempts have their own

	gone atomic.Bool // loss is set: nobody need lock to see that it is not

	mu      sync.Mutex
	loss    error    // why the lease is lost
	current *attempt // of the handler that runs
	last    int      // number of that run
}

// metaOfRun is what the handler sees. It may be asked after the run.
func (r *run) metaOfRun() brokers.Meta {
	r.mu.Lock()
	m := *r.meta
	r.mu.Unlock()
	m.Attempt++
	if m.IdempotencyKey == "" {
		m.IdempotencyKey = keyOf(&r.delivery.Message)
	}
	return m
}

// keyOf is the idempotency key that the producer gave a message in the header
// that HTTP APIs know it by, or else the ID.
func keyOf(m *brokers.Message) string {
	key := m.ID
	for _, h := range m.Headers {
		if h.Value != "" && strings.EqualFold(h.Name, "Idempotency-Key") {
			key = h.Value
		}
	}
	return key
}

func (r *run) setMeta(m brokers.Meta) {
	r.mu.Lock()
	r.meta = &m
	r.mu.Unlock()
}

// lose marks the lease as lost and stops the work on it.
func (r *run) lose(cause error) {
	r.mu.Lock()
	if r.loss == nil {
		r.loss = cause
		r.gone.Store(true)
	}
	current := r.current
	r.mu.Unlock()
	if current != nil && current.allLost() {
		current.end(cause)
	}
}

// lost returns why the delivery belongs to somebody else, nil if it does not.
func (r *run) lost() error {
	session := r.delivery.Session
	ended := session != nil && session.Err() != nil
	if !ended && !r.gone.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loss == nil {
		r.loss = leaseLost(context.Cause(session))
		r.gone.Store(true)
	}
	return r.loss
}

func (r *run) setCurrent(a *attempt) {
	r.mu.Lock()
	r.current, r.last = a, r.meta.Attempt+1
	r.mu.Unlock()
}

// failed is the Meta after a failed run. Own is the delay that the policy chose,
// before the budget did.
func (r *run) failed(now time.Time, v classify.Verdict, fingerprint string, d retry.Decision, own time.Duration) brokers.Meta {
	m, class := *r.meta, string(v.Class)
	failure := brokers.Failure{Attempt: m.Attempt + 1, At: now, Class: class, Fingerprint: fingerprint, Delay: d.Delay, Ambiguous: v.Ambiguous}
	if d.Counted {
		m.Attempt++
	} else if class == throttledClass {
		m.Throttles++
	}
	if m.FirstFailedAt.IsZero() || m.FirstFailedAt.After(now) {
		m.FirstFailedAt = now
	}
	m.LastFailedAt = now
	m.Class = class
	m.Delay = own
	if d.Action == retry.ActionRetry {
		m.DueAt = now.Add(d.Delay)
	}
	old := m.History[max(0, len(m.History)-brokers.HistoryLimit+1):]
	m.History = append(append(make([]brokers.Failure, 0, len(old)+1), old...), failure)
	return m
}

// attempt is one call of a handler, and the context that it gets. The
// standard context behind it is made only when somebody asks for Done, so
// that quick handlers pay nothing.
type attempt struct {
	base    context.Context // of Run, without its cancellation
	runs    []*run
	alone   bool            // the handler takes single messages
	message brokers.Message // its own copy then
	started time.Time

	mu       sync.Mutex
	inner    context.Context
	stop     context.CancelCauseFunc
	finished bool
}

// Deadline implements context.Context.
func (a *attempt) Deadline() (time.Time, bool) { return a.deadline(), true }

func (a *attempt) deadline() time.Time { return a.started.Add(a.runs[0].route.timeout) }

// Done implements context.Context.
func (a *attempt) Done() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.context().Done()
}

// Err implements context.Context.
func (a *attempt) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inner == nil && !a.finished {
		return nil
	}
	return a.context().Err()
}

// Value implements context.Context. Going through the inner context lets the
// standard library find it and attach children without a goroutine.
func (a *attempt) Value(key any) any {
	if key == attemptKey {
		return a
	}
	a.mu.Lock()
	inner := a.inner
	a.mu.Unlock()
	if inner == nil {
		return a.base.Value(key)
	}
	return inner.Value(key)
}

// context returns the standard context. mu is held.
func (a *attempt) context() context.Context {
	if a.inner != nil {
		return a.inner
	}
	timed, cancel := context.WithDeadlineCause(a.base, a.deadline(), classify.ErrAttemptTimeout)
	inner, stop := context.WithCancelCause(timed)
	a.inner = inner
	a.stop = func(cause error) {
		stop(cause)
		cancel()
	}
	if a.finished {
		a.stop(context.Canceled)
	}
	return a.inner
}

// end ends the context with cause; the first cause stays.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.context()
	a.stop(cause)
}

// expire sees to it that a context whose deadline has passed has ended: the
// standard one does so by itself, once there is one.
func (a *attempt) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.context()
}

// finish ends the context of a handler that has returned and tells why it had
// ended before, if it had.
func (a *attempt) finish() (cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished = true
	if a.inner == nil {
		return nil
	}
	cause = context.Cause(a.inner)
	a.stop(context.Canceled)
	return cause
}

// allLost reports whether no run of the attempt has a lease left.
func (a *attempt) allLost() bool {
	for _, r := range a.runs {
		r.mu.Lock()
		lost := r.loss != nil
		r.mu.Unlock()
		if !lost {
			return false
		}
	}
	return true
}
