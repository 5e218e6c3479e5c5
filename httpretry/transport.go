package httpretry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/handling"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
	"github.com/redrive-go/redrive/settings"
)

// Transport is an [http.RoundTripper] with a breaker, a budget and at most one
// retry for each dependency. Make one with [New], and put it into an
// http.Client. It may be used by any number of goroutines.
type Transport struct {
	base http.RoundTripper
	name func(*http.Request) string
	rest *dependency // of the names beyond maxDependencies

	mu     sync.Mutex
	known  map[string]*dependency
	spare  int // dependencies that may still be made
	others Policy
}

// New returns a Transport. The error names every fault of c at once, each a
// *settings.Error.
func New(c Config) (*Transport, error) {
	if err := c.faults(); err != nil {
		return nil, err
	}
	t := &Transport{
		base:   c.Base,
		name:   c.Dependency,
		rest:   newDependency("(others)", c.Default),
		known:  make(map[string]*dependency),
		spare:  maxDependencies,
		others: c.Default,
	}
	if t.base == nil {
		t.base = http.DefaultTransport
	}
	if t.name == nil {
		t.name = hostOf
	}
	for name, p := range maps.All(c.Policies) {
		t.known[name] = newDependency(name, p)
	}
	return t, nil
}

// CloseIdleConnections has the base close its idle connections, if it can.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) dependency(req *http.Request) *dependency {
	name := t.name(req)
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.known[name]
	switch {
	case d != nil:
	case t.spare == 0:
		return t.rest
	default:
		d = newDependency(name, t.others)
		t.known[name] = d
		t.spare--
	}
	return d
}

// RoundTrip implements [http.RoundTripper]. If a retry is not made, for
// whatever reason, it returns what the first attempt gave.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodConnect || req.Header.Get("Upgrade") != "" {
		return t.base.RoundTrip(req)
	}
	d := t.dependency(req)
	c := &call{base: t.base, dependency: d, req: req, returned: handling.Returned(req.Context()), gate: d.Breaker}
	paced := d.paced(req.Context())
	if paced {
		c.gate = nil
	}
	began, err := c.start()
	if err != nil {
		c.close()
		return nil, err
	}
	if d.Budget != nil && !c.returned && !paced {
		d.Budget.Deposit(time.Now(), 1)
	}
	c.prepare()
	first := c.try(c.body, began)
	delay, ok := c.delay(first)
	if !ok {
		return first.resp, first.err
	}
	body, ok := c.bodyAgain()
	if !ok {
		return first.resp, first.err
	}
	if began, ok = c.wait(delay, first.ran); !ok {
		if body != nil {
			_ = body.Close()
		}
		return first.resp, first.err
	}
	first.attempt.discard(first.resp)
	second := c.try(body, began)
	if second.outcome() == flow.Success {
		c.refund()
	}
	return second.resp, second.err
}

// call is one request of the caller, with all its attempts.
type call struct {
	*dependency
	base     http.RoundTripper
	req      *http.Request    // the caller's: not to be changed
	key      string           // the Idempotency-Key that is added; may be empty
	astray   bool             // a redirect led to a host that the handler did not name
	returned bool             // it is for a message that was sent back from a dead-letter queue
	gate     *breaker.Breaker // nil if there is none, or a consumer paces the call
	body     io.ReadCloser
	record   *recorder // nil if nothing is kept
}

// result is what an attempt came to.
type result struct {
	attempt *attempt
	resp    *http.Response
	err     error
	verdict classify.Verdict // zero if it succeeded
	ended   time.Time
	ran     time.Duration // until there were headers
}

func (c *call) close() {
	if c.req.Body != nil {
		_ = c.req.Body.Close()
	}
}

// start asks the breaker for an attempt, which begins at now.
func (c *call) start() (now time.Time, err error) {
	now = time.Now()
	if c.gate == nil {
		return now, nil
	}
	if ok, _ := c.gate.Start(now); !ok {
		return now, c.closed(now)
	}
	return now, nil
}

// retryable reports whether the breaker lets a retry pass. One that is not closed
// keeps its few calls for other requests.
func (c *call) retryable(now time.Time) bool {
	return c.gate == nil || c.gate.Snapshot(now).State == breaker.Closed
}

// prepare finds the key of the request, and sees to it that its body can be had
// again, if that is of use.
func (c *call) prepare() {
	c.astray = elsewhere(c.req)
	if !c.astray && !idempotent(c.req.Method) && c.req.Header.Get(keyHeader) == "" {
		if key := c.Key(c.req); key != "" {
			c.key = safeKey(key)
		}
	}
	c.body = c.req.Body
	if c.Retries > 0 && c.repeatable() && c.hasBody() && c.req.GetBody == nil && c.MaxBody > 0 && c.req.ContentLength <= c.MaxBody {
		c.record = &recorder{ReadCloser: c.body, length: c.req.ContentLength, limit: c.MaxBody}
		c.body = c.record
	}
}

func (c *call) hasBody() bool { return c.req.Body != nil && c.req.Body != http.NoBody }

// repeatable reports whether the request may be sent twice.
func (c *call) repeatable() bool {
	return idempotent(c.req.Method) || c.key != "" || c.req.Header.Get(keyHeader) != ""
}

// bodyAgain returns the body for the second attempt.
func (c *call) bodyAgain() (body io.ReadCloser, ok bool) {
	switch {
	case !c.hasBody():
		return c.req.Body, true
	case c.req.GetBody != nil:
		body, err := c.req.GetBody()
		return body, err == nil
	case c.record != nil:
		return c.record.again()
	}
	return nil, false
}

// try sends the request once, and reports to the breaker how that went.
func (c *call) try(body io.ReadCloser, began time.Time) result {
	o := flow.Neutral // of an attempt that panics
	if c.gate != nil {
		defer func() { c.gate.Done(time.Now(), began, c.message(), o) }()
	}
	a := c.attempt(c.req.Context())
	out := c.req.Clone(a.ctx)
	out.Body = body
	if out.Header == nil {
		out.Header = make(http.Header)
	}
	if c.key != "" {
		out.Header.Set(keyHeader, c.key)
	}
	if c.Propagate != nil && !c.astray {
		c.Propagate(a.parent, out.Header)
	}
	resp, err := c.base.RoundTrip(out)
	r := result{attempt: a, resp: resp, err: err}
	c.judge(&r)
	r.ended = time.Now()
	r.ran = r.ended.Sub(began)
	o = c.evidence(r.outcome())
	return r
}

// evidence is what an attempt says to the breaker. A message that was sent back
// failed before, for reasons that may be its own. A throttled handler is paced by
// its consumer, which a refusal here would tell nothing.
func (c *call) evidence(o flow.Outcome) flow.Outcome {
	if c.returned && o != flow.Success || c.message() != 0 && o == flow.Throttled {
		return flow.Neutral
	}
	return o
}

// judge says what r means, and makes it fit for the caller.
func (c *call) judge(r *result) {
	a := r.attempt
	if r.resp == nil && r.err == nil {
		r.err = fmt.Errorf("httpretry: Config.Base (%T) returned neither a response nor an error: mend it", c.base)
	}
	if r.err != nil {
		r.err = a.late(r.err)
		a.cancel()
		r.verdict = classify.Of(&url.Error{Op: c.req.Method, Err: r.err}, c.Rules...)
		return
	}
	if r.resp.Body == nil || r.resp.Body == http.NoBody {
		a.cancel()
	} else {
		r.resp.Body = &responseBody{ReadCloser: r.resp.Body, attempt: a}
	}
	if r.resp.StatusCode >= 400 {
		r.verdict = classify.Of(problemOf(r.resp, len(c.Rules) > 0), c.Rules...)
	}
}

// outcome is what r says about the dependency. A server that refuses a request,
// or finds it in conflict with another, is up. What is deferred says nothing: it
// may not have been sent at all, by a Transport that is the base of this one.
func (r *result) outcome() flow.Outcome {
	v := r.verdict
	answered := r.resp != nil && (v.Class == classify.ClassPoison || v.Class == classify.ClassTransient && v.MaxAttempts > 0)
	switch {
	case v.Deferred:
		return flow.Neutral
	case v.Class == "" || answered:
		return flow.Success
	case r.err != nil && errors.Is(r.attempt.parent.Err(), context.Canceled):
		return flow.Neutral
	}
	switch v.Class {
	case classify.ClassThrottled:
		return flow.Throttled
	case classify.ClassEnvironment:
		return flow.Overload
	case classify.ClassTransient, classify.ClassUnknown:
		switch {
		case r.timedOut():
			return flow.Timeout
		case v.Class == classify.ClassUnknown:
			return flow.Unknown
		}
		return flow.Overload
	}
	return flow.Neutral
}

func (r *result) timedOut() bool {
	e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](r.err)
	return ok && e.Timeout()
}

// withdraw takes the token of a retry.
func (c *call) withdraw() bool {
	if c.Budget == nil {
		return true
	}
	_, ok := c.Budget.Withdraw(time.Now(), 0, 0)
	return ok
}

// refund gives back the token of a retry that succeeded, or was not made.
func (c *call) refund() {
	if c.Budget != nil {
		c.Budget.Refund(time.Now())
	}
}

// delay returns how long to wait before a retry; false if there is none. For a
// message that was sent back, its next run is one: it takes no token from others.
func (c *call) delay(r result) (time.Duration, bool) {
	v := r.verdict
	passes := v.Class == classify.ClassTransient && v.MaxAttempts == 0 || v.Class == classify.ClassThrottled && v.RetryAfter > 0
	if c.Retries < 1 || c.returned || !passes || v.Deferred || v.RetryAfter > c.MaxWait || !c.repeatable() {
		return 0, false
	}
	if r.attempt.parent.Err() != nil || !c.retryable(r.ended) {
		return 0, false
	}
	policy := retry.Policy{MaxAttempts: 2, Backoff: retry.Backoff{Base: c.Delay, Cap: c.MaxWait}, MaxRetryAfter: c.MaxWait, FreeThrottles: settings.None}
	d := policy.Decide(retry.FailedRun{Attempt: 1, Now: r.ended, Verdict: v}, rand.Float64())
	return d.Delay, d.Retry
}

// fits reports whether the context of the request has so much time left.
func (c *call) fits(d time.Duration) bool {
	deadline, ok := c.req.Context().Deadline()
	return !ok || time.Until(deadline) > d
}

// wait waits for delay and then begins a retry that takes about as long as ran;
// false if there is to be none.
func (c *call) wait(delay, ran time.Duration) (began time.Time, ok bool) {
	if delay > c.MaxWait || !c.fits(delay+ran) || !c.withdraw() {
		return began, false
	}
	defer func() {
		if !ok {
			c.refund()
		}
	}()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-c.req.Context().Done():
		return began, false
	case <-timer.C:
	}
	if !c.retryable(time.Now()) {
		return began, false
	}
	began, err := c.start()
	return began, err == nil
}
