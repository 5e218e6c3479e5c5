package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// tolerated is how often a broker outside the process may deliver a message
// again that was acked, since an Ack may get lost on its way.
const tolerated = 2

// trial is one run of one clause.
type trial struct {
	Harness
	t        testing.TB
	ctx      context.Context
	cancel   context.CancelFunc
	patience time.Duration // the longest wait for something that must happen
	broker   brokers.Broker
	ended    bool // the broker is closed
	workers  []*worker
	calls    sync.WaitGroup
	when     string // what has happened so far, for a failure
	controls int    // messages that expectSoon has published

	mu    sync.Mutex
	fates map[string]fate // by body
}

func newTrial(t testing.TB, h Harness) *trial {
	h.Unit = cmp.Or(h.Unit, time.Second)
	h.Slack = cmp.Or(h.Slack, h.Unit/2)
	h.Topic = remembered(h.Topic)
	ctx, cancel := context.WithCancel(t.Context())
	return &trial{
		Harness: h, t: t, ctx: ctx, cancel: cancel,
		patience: 30*h.Unit + 10*h.Slack,
		broker:   h.Open(t),
		fates:    make(map[string]fate),
	}
}

// remembered makes the topic names of one clause: the same for the same name.
func remembered(topic func(string) string) func(string) string {
	names := make(map[string]string)
	return func(name string) string {
		if topic == nil {
			return name
		}
		if _, ok := names[name]; !ok {
			names[name] = topic(name)
		}
		return names[name]
	}
}

// close ends what the clause left open, and waits for the calls under way.
func (tr *trial) close() {
	for _, w := range tr.workers {
		if err := w.end(); err != nil {
			tr.t.Logf("while cleaning up: %v", err)
		}
	}
	if err := tr.closeBroker(); err != nil {
		tr.t.Logf("while cleaning up: %v", err)
	}
	tr.cancel()
	idle := make(chan struct{})
	go func() {
		tr.calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(tr.patience):
		tr.t.Log("while cleaning up: calls are blocked although their contexts ended and everything is closed")
	}
}

// failure ends a clause from any depth, as t.FailNow ends a test.
type failure struct{ error }

// caught runs f and returns the failure that ended it.
func caught(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.error
		default:
			panic(v)
		}
	}()
	f()
	return nil
}

func (tr *trial) fail(err error) { panic(failure{err}) }

// failf fails, and tells what happened before.
func (tr *trial) failf(format string, args ...any) { tr.must(fmt.Errorf(format, args...)) }

// must fails if err is not nil.
func (tr *trial) must(err error) {
	if err != nil && tr.when != "" {
		err = fmt.Errorf("%s: %w", tr.when, err)
	}
	if err != nil {
		tr.fail(err)
	}
}

// note says what has happened, for failures that follow.
func (tr *trial) note(format string, args ...any) { tr.when = fmt.Sprintf(format, args...) }

// skip ends a clause that says nothing about this broker.
func (tr *trial) skip(format string, args ...any) { tr.fail(skip(fmt.Sprintf(format, args...))) }

// together runs fs at the same time, and fails if one of them has.
func (tr *trial) together(fs ...func()) {
	errs := make([]error, len(fs))
	var running sync.WaitGroup
	for i, f := range fs {
		running.Go(func() { errs[i] = caught(f) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		tr.fail(err)
	}
}

func (tr *trial) closeBroker() error {
	if tr.ended {
		return nil
	}
	tr.ended = true
	return tr.try("broker.Close", tr.broker.Close)
}

// call runs f, a call of the broker, and stops waiting for it when it outlives
// its context, whose length is limit.
func call[T any](tr *trial, what string, limit time.Duration, f func(context.Context) T) (T, error) {
	ctx, cancel := context.WithTimeout(tr.ctx, limit)
	out := make(chan T, 1)
	tr.calls.Go(func() {
		defer cancel()
		out <- f(ctx)
	})
	select {
	case v := <-out:
		return v, nil
	case <-time.After(limit + tr.Slack):
		var none T
		return none, fmt.Errorf("%s has not returned %v after its context ended", what, tr.Slack)
	}
}

// deadline is d from now.
func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

// try is call for the methods that return an error.
func (tr *trial) try(what string, f func(context.Context) error) error {
	err, hung := call(tr, what, tr.patience, f)
	if hung != nil {
		return hung
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// pause waits for d.
func (tr *trial) pause(d time.Duration) {
	select {
	case <-tr.ctx.Done():
	case <-time.After(d):
	}
}

// affordable skips a clause that would have to wait for d of real time.
func (tr *trial) affordable(d time.Duration, what string) {
	if !tr.affords(d) {
		tr.skip("%s takes %v, which is more than 30 units: too long to wait for", what, d)
	}
}

func (tr *trial) affords(d time.Duration) bool { return tr.Virtual || d <= tr.patience }

// subscription is what a worker with these topics asks for.
func (tr *trial) subscription(topics ...string) brokers.Subscription {
	return brokers.Subscription{
		Topics:      topics,
		Group:       tr.group(topics[0]),
		InFlight:    32,
		Lease:       5 * tr.Unit,
		MaxDelay:    10 * tr.Unit,
		MaxAge:      time.Hour + tr.patience,
		MaxAttempts: 10,
	}
}

// group is that of the workers that open topic first.
func (tr *trial) group(topic string) string { return topic + "-workers" }

// open starts a worker on topics, which the caller passed through tr.Topic.
func (tr *trial) open(topics ...string) *worker {
	return tr.subscribe(tr.subscription(topics...))
}

func (tr *trial) subscribe(sub brokers.Subscription) *worker {
	return tr.subscribeWith(tr.ctx, sub)
}

func (tr *trial) subscribeWith(ctx context.Context, sub brokers.Subscription) *worker {
	type opened struct {
		src brokers.Source
		err error
	}
	what := fmt.Sprintf("broker.Open of %q", sub.Topics)
	limit := tr.patience
	if !tr.Virtual { // a busy broker takes its time for all that a long delay needs
		limit += time.Minute
	}
	o, hung := call(tr, what, limit, func(context.Context) opened {
		src, err := tr.broker.Open(ctx, sub)
		return opened{src, err}
	})
	tr.must(hung)
	if o.err != nil {
		tr.failf("%s: %w", what, o.err)
	}
	if o.src == nil {
		tr.failf("%s returned neither a source nor an error", what)
	}
	w := &worker{tr: tr, src: o.src, sub: sub, caps: o.src.Capabilities(), max: 10, losses: make(map[string]bool)}
	tr.workers = append(tr.workers, w)
	return w
}

// text returns a message for every body.
func text(bodies ...string) []brokers.Message {
	msgs := make([]brokers.Message, len(bodies))
	for i, body := range bodies {
		msgs[i].Body = []byte(body)
	}
	return msgs
}

// publish stores msgs, whose bodies tell them apart.
func (tr *trial) publish(topic string, msgs ...brokers.Message) {
	tr.announce(msgs...)
	what := fmt.Sprintf("broker.Publish of %d messages to %q", len(msgs), topic)
	tr.must(tr.try(what, func(ctx context.Context) error { return tr.broker.Publish(ctx, topic, msgs...) }))
}

// announce makes the bodies of msgs known.
func (tr *trial) announce(msgs ...brokers.Message) {
	for _, m := range msgs {
		tr.fateOf(string(m.Body), func(f *fate) { f.published = true })
	}
}

// fate is what has happened to the messages with one body.
type fate struct {
	published bool
	mayCopy   bool // a late Retry may have left a copy
	acks      int
}

// fateOf returns the fate of a body, after a change unless that is nil.
func (tr *trial) fateOf(body string, change func(*fate)) fate {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f := tr.fates[body]
	if change != nil {
		change(&f)
		tr.fates[body] = f
	}
	return f
}

// countAck notes that a was acked.
func (tr *trial) countAck(a *arrival) { tr.fateOf(a.body(), func(f *fate) { f.acks++ }) }

func (tr *trial) mayCopy(a *arrival) bool { return tr.fateOf(a.body(), nil).mayCopy }

// empty opens a worker on an empty topic.
func (tr *trial) empty() (*worker, string) {
	topic := tr.Topic("orders")
	return tr.open(topic), topic
}

// stocked opens a worker on a topic where a message for every body is waiting.
func (tr *trial) stocked(bodies ...string) *worker {
	w, topic := tr.empty()
	tr.publish(topic, text(bodies...)...)
	return w
}

// without is bodies less that of a.
func without(bodies []string, a *arrival) []string {
	return slices.DeleteFunc(bodies, func(body string) bool { return body == a.body() })
}

// deliver opens a worker on one topic, publishes a message for every body and
// receives them all.
func (tr *trial) deliver(bodies ...string) (*worker, []*arrival) {
	msgs := text(bodies...)
	return tr.deliverMessages(msgs[0], msgs[1:]...)
}

func (tr *trial) deliverMessages(first brokers.Message, more ...brokers.Message) (*worker, []*arrival) {
	msgs := append([]brokers.Message{first}, more...)
	w, topic := tr.empty()
	tr.publish(topic, msgs...)
	bodies := make([]string, len(msgs))
	for i, m := range msgs {
		bodies[i] = string(m.Body)
	}
	return w, w.expect(tr.patience, bodies...)
}
