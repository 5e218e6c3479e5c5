package consumer

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/handling"
)

// attempt is one call of a handler, and the context that it gets. The
// standard context behind it is made only when somebody asks for Done, so
// that quick handlers pay nothing.
type attempt struct {
	one     [1]*delivery    // of a handler of single messages
	batch   *[]*delivery    // of one of batches; nil otherwise
	message brokers.Message // its own copy of that of one
	started time.Time

	mu       sync.Mutex
	finished bool
	standard *standard // nil until somebody asks for it
}

// standard is the standard context of an attempt, and how to end it.
type standard struct {
	context.Context
	stop context.CancelCauseFunc
}

// runs are the deliveries that the handler works on.
func (a *attempt) runs() []*delivery {
	if a.batch != nil {
		return *a.batch
	}
	return a.one[:]
}

// Deadline implements context.Context.
func (a *attempt) Deadline() (time.Time, bool) { return a.deadline(), true }

func (a *attempt) deadline() time.Time {
	at, _ := a.limit()
	return at
}

// limit returns when the context ends, and with which cause: after the timeout, or
// at the deadline of a message that runs alone.
func (a *attempt) limit() (time.Time, error) {
	d := a.runs()[0]
	at := a.started.Add(d.sub.timeout)
	if a.batch == nil && d.expires(at) {
		return d.deadline, ErrDeadline
	}
	return at, classify.ErrAttemptTimeout
}

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
	if a.standard == nil && !a.finished {
		return nil
	}
	return a.context().Err()
}

// Value implements context.Context. Going through the inner context lets the
// standard library find it and attach children without a goroutine.
func (a *attempt) Value(key any) any {
	if key == (handling.Key{}) {
		return a
	}
	a.mu.Lock()
	inner := a.standard
	a.mu.Unlock()
	if inner == nil {
		return a.base().Value(key)
	}
	return inner.Value(key)
}

// base is the context of Run, without its cancellation.
func (a *attempt) base() context.Context { return a.runs()[0].sub.values }

// context returns the standard context. mu is held.
func (a *attempt) context() *standard {
	if a.standard != nil {
		return a.standard
	}
	at, cause := a.limit()
	timed, cancel := context.WithDeadlineCause(a.base(), at, cause)
	inner, stop := context.WithCancelCause(timed)
	a.standard = &standard{inner, func(cause error) {
		stop(cause)
		cancel()
	}}
	if a.finished {
		a.standard.stop(context.Canceled)
	}
	return a.standard
}

// end ends the context with cause; the first cause stays.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.context().stop(cause)
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
	if a.standard == nil {
		return nil
	}
	cause = context.Cause(a.standard)
	a.standard.stop(context.Canceled)
	return cause
}

// Shares is what package handling asks: whether the runs depend on something that
// a Limiter paces and whose budget is shared.
func (a *attempt) Shares(shared any) bool {
	g := a.runs()[0].sub.dependency
	return g.limiter != nil && g.isGiven(shared)
}

// Returned is what package handling asks: whether the runs are of messages that
// were sent back.
func (a *attempt) Returned() bool { return a.runs()[0].returned() }

// isGiven reports whether the budget is that of the user's.
func (g *dependency) isGiven(b any) bool {
	of, ok := g.budget.(*given)
	return ok && reflect.ValueOf(b).Comparable() && b == any(of.Pacer)
}

// allLost reports whether no delivery of the attempt has a lease left.
func (a *attempt) allLost() bool {
	for _, d := range a.runs() {
		if d.loss.Load() == nil {
			return false
		}
	}
	return true
}

var _ context.Context = (*attempt)(nil)
