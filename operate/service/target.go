package service

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// Bounds of what waits for a target.
const (
	mostTargets    = 5000             // of each generation
	longestQueue   = time.Second      // in the process, for a call to the same target to end
	queuedPerSlot  = 12               // tasks in that queue at most, for each call that a target may have
	bodyPause      = 30 * time.Second // of a task whose body could not be had
	shortestPause  = time.Second      // of a task that is put off
	longestPark    = 30 * time.Minute // of one that many others are put off before
	usualPace      = 2 * time.Millisecond
	slowestPace    = 20 * time.Millisecond // at which tasks that were put off come back
	longestRefused = 15 * time.Minute      // of a retry that waits for a token
)

// deferral is why a task is put off that was not called: it does not count.
type deferral struct {
	reason string // one of the constants in cause.go
	detail string
	wait   time.Duration
}

func (d *deferral) Error() string {
	text := deferred + separatesDetail + d.reason
	if d.detail != "" {
		text += separatesDetail + d.detail
	}
	if d.wait == 0 {
		return text
	}
	return fmt.Sprintf("%s; again in about %v", text, d.wait.Round(time.Millisecond))
}

// Deferred returns true, and RetryAfter how long: package classify looks for them.
func (d *deferral) Deferred() bool            { return true }
func (d *deferral) RetryAfter() time.Duration { return d.wait }

// targets are what is called, by tenant, host and port: how a host answers one tenant
// says little about another's path or credentials there.
type targets struct {
	guard   *Guard
	base    http.RoundTripper
	perHost int
	traced  bool // calls have spans

	mu         sync.Mutex
	young, old map[targetKey]*target // when there are too many young ones, they become the old ones
}

func newTargets(g *Guard, resolver *net.Resolver, perHost int) *targets {
	return &targets{guard: g, base: once{newTransport(g, resolver, perHost)}, perHost: perHost, young: map[targetKey]*target{}}
}

type targetKey struct{ tenant, name string }

// of returns the target of a tenant's URL.
func (ts *targets) of(tenant string, u *url.URL) (*target, error) {
	key := targetKey{tenant, hostPort(u)}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.young[key]; t != nil {
		return t, nil
	}
	t := ts.old[key]
	if t == nil {
		var err error
		if t, err = ts.newTarget(key.name); err != nil {
			return nil, err
		}
	}
	if len(ts.young) >= mostTargets {
		ts.young, ts.old = map[targetKey]*target{}, ts.young
	}
	ts.young[key] = t
	return t, nil
}

// target is a host and port, and what a tenant's calls to it share.
type target struct {
	name    string
	client  *http.Client
	breaker *breaker.Breaker
	budget  *budget.Budget
	slots   chan struct{} // has one for each call under way

	mu       sync.Mutex
	queued   int
	took     time.Duration // by a call lately
	progress time.Time     // when a call ended last, or began with no other under way
	parked   time.Time     // when the last one of those that are put off comes back, by their pace
}

func (ts *targets) newTarget(name string) (*target, error) {
	gate := breaker.New(breaker.Config{})
	tokens, err := budget.New(budget.Mesh())
	if err != nil {
		return nil, err
	}
	base := ts.base
	if ts.traced {
		base = traced{base}
	}
	transport, err := httpretry.New(httpretry.Config{Base: base, Default: httpretry.Policy{
		Retries: -1, Timeout: -1, MaxBody: -1, Breaker: gate, NoBudget: true, // the queue retries, with the tokens below
	}})
	if err != nil {
		return nil, err
	}
	return &target{
		name: name, client: newClient(transport, ts.guard), breaker: gate, budget: tokens,
		slots: make(chan struct{}, ts.perHost),
	}, nil
}

// enter waits a moment for a slot, until stop is closed. Without one, it says when to
// come back: one after the other, as fast as calls end.
func (t *target) enter(stop <-chan struct{}, now func() time.Time) error {
	select {
	case t.slots <- struct{}{}:
		t.begins(now())
		return nil
	default:
	}
	if !t.queue(now()) {
		return t.full(now())
	}
	defer t.unqueue()
	timer := time.NewTimer(longestQueue)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		t.begins(now())
		return nil
	case <-stop:
	case <-timer.C:
	}
	return t.full(now())
}

// queue reports whether a task may wait, as it is likely to get a slot in time.
func (t *target) queue(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queued >= queuedPerSlot*cap(t.slots) || time.Duration(t.queued+1)*t.each(now) > longestQueue {
		return false
	}
	t.queued++
	return true
}

func (t *target) unqueue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queued--
}

func (t *target) begins(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.slots) == 1 {
		t.progress = now
	}
}

// leave gives back the slot of a call that took so long; zero if there was none.
func (t *target) leave(now time.Time, took time.Duration) {
	t.mu.Lock()
	t.progress = now
	if took > 0 {
		t.took += (took - t.took) / 8
	}
	t.mu.Unlock()
	<-t.slots
}

// full puts a task off for which there is no slot: those come back about as fast as
// calls end.
func (t *target) full(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &deferral{reasonBusy, t.name, t.park(now, shortestPause, min(t.each(now), slowestPace))}
}

// each is about how long it takes until a slot is free, while all are in use.
func (t *target) each(now time.Time) time.Duration {
	return max(t.took, now.Sub(t.progress)) / time.Duration(cap(t.slots))
}

// park returns how long a task is put off: for least, and behind those before it, so
// that a hundred thousand do not come back together, each to be claimed and put off
// once more.
func (t *target) park(now time.Time, least, each time.Duration) time.Duration {
	if t.parked = t.parked.Add(each); t.parked.Before(now) {
		t.parked = now
	}
	if latest := now.Add(longestPark); t.parked.After(latest) {
		t.parked = latest
	}
	return max(least, t.parked.Sub(now))
}

// token takes one for a retry, or says when to come back.
func (t *target) token(now time.Time, retry bool, random float64) error {
	if !retry {
		return nil
	}
	if wait, ok := t.budget.Withdraw(now, longestRefused, random); !ok {
		return &deferral{reasonTokens, t.name, wait}
	}
	return nil
}

// ended gives back the token of a retry that succeeded, or was not made. A first
// attempt that was made brings a part of one.
func (t *target) ended(now time.Time, retry bool, err error) {
	switch {
	case retry && (err == nil || isDeferral(err)):
		t.budget.Refund(now)
	case !retry && !isDeferral(err):
		t.budget.Deposit(now, 1)
	}
}

// closed makes a deferral of a breaker's refusal: the longer the longer nothing has
// succeeded, and tasks do not come back together.
func (t *target) closed(err error, now time.Time) error {
	open, ok := errors.AsType[*httpretry.OpenError](err)
	if !ok {
		return err
	}
	wait := open.Wait/2 + time.Duration(rand.Float64()*float64(open.Wait))
	t.mu.Lock()
	defer t.mu.Unlock()
	return &deferral{reasonDown, fmt.Sprintf("%s (%s)", t.name, open.Reason), t.park(now, wait, usualPace)}
}
