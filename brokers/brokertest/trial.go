package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
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
	fail     func(brokers.Broker) (heal func()) // the hook of Harness that the clause is about
	ended    bool                               // the broker is closed
	workers  []*worker
	calls    sync.WaitGroup
	controls int // messages that expectSoon has published

	mu     sync.Mutex
	bodies []string        // in the order in which they were published
	fates  map[string]fate // by body
	owed   time.Time       // when the last delivery is due
	trail  []string        // what was done last, for a failure
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
		if _, ok := names[name]; !ok && topic != nil {
			names[name] = topic(name)
		}
		return cmp.Or(names[name], name)
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

// must fails if err is not nil.
func (tr *trial) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func (tr *trial) failf(format string, args ...any) { tr.must(fmt.Errorf(format, args...)) }

// skip ends a clause that says nothing about this broker.
func (tr *trial) skip(format string, args ...any) { tr.must(skip(fmt.Sprintf(format, args...))) }

// did remembers the last calls and deliveries, for a failure that follows.
func (tr *trial) did(format string, args ...any) {
	const most = 8
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.trail = append(tr.trail, fmt.Sprintf(format, args...))
	tr.trail = tr.trail[max(0, len(tr.trail)-most):]
}

// told adds to a failure what happened before it.
func (tr *trial) told(err error) error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if _, skipped := errors.AsType[skip](err); err == nil || skipped || len(tr.trail) == 0 {
		return err
	}
	return fmt.Errorf("%w\nafter:    %s", err, strings.Join(tr.trail, "\n          "))
}

// together runs fs at the same time, and fails if one of them has.
func (tr *trial) together(fs ...func()) {
	errs := make([]error, len(fs))
	var running sync.WaitGroup
	for i, f := range fs {
		running.Go(func() { errs[i] = caught(f) })
	}
	running.Wait()
	tr.must(errors.Join(errs...))
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
	tr.did("%s", what)
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
	return tr.tryFor(tr.patience, what, f)
}

func (tr *trial) tryFor(limit time.Duration, what string, f func(context.Context) error) error {
	err, hung := call(tr, what, limit, f)
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

// by picks what depends on whether waiting costs nothing.
func by[T any](tr *trial, virtual, real T) T {
	if tr.Virtual {
		return virtual
	}
	return real
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

// open starts a worker on the topics of these names.
func (tr *trial) open(names ...string) *worker {
	return tr.subscribe(tr.subscription(tr.topics(names)...))
}

func (tr *trial) topics(names []string) (topics []string) {
	for _, name := range names {
		topics = append(topics, tr.Topic(name))
	}
	return topics
}

func (tr *trial) subscribe(sub brokers.Subscription) *worker {
	return tr.subscribeWith(tr.ctx, sub)
}

func (tr *trial) subscribeWith(ctx context.Context, sub brokers.Subscription) *worker {
	what := fmt.Sprintf("broker.Open of %q", sub.Topics)
	limit := tr.patience
	if !tr.Virtual { // a busy broker takes its time for all that a long delay needs
		limit += time.Minute
	}
	var src brokers.Source
	tr.must(tr.tryFor(limit, what, func(context.Context) (err error) {
		src, err = tr.broker.Open(ctx, sub)
		return err
	}))
	if src == nil {
		tr.failf("%s returned neither a source nor an error", what)
	}
	w := &worker{tr: tr, src: src, sub: sub, caps: src.Capabilities(), max: 10, held: make(map[string]*arrival), losses: make(map[string]bool)}
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

func numbered(what string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s %d", what, i)
	}
	return out
}

// publish stores msgs, whose bodies tell them apart.
func (tr *trial) publish(topic string, msgs ...brokers.Message) {
	tr.announce(topic, msgs...)
	what := fmt.Sprintf("broker.Publish of %d messages to %q, the first %.20q", len(msgs), topic, msgs[0].Body)
	tr.must(tr.try(what, func(ctx context.Context) error { return tr.broker.Publish(ctx, topic, msgs...) }))
}

// announce makes msgs known, and what they must be when they come.
func (tr *trial) announce(topic string, msgs ...brokers.Message) {
	for _, m := range msgs {
		m.Topic = topic
		tr.fateOf(string(m.Body), func(f *fate) {
			if !f.published {
				tr.bodies = append(tr.bodies, string(m.Body))
			}
			f.published, f.sent = true, m
		})
	}
}

// fate is what has happened to the messages with one body.
type fate struct {
	published bool
	sent      brokers.Message
	meta      brokers.Meta // of the last Retry or SendBack, or else of the first delivery
	known     bool         // what meta is
	due       time.Time    // the end of the last delay
	mayCopy   bool         // a late Retry may have left a copy
	acks      int
}

// arrived learns from the first delivery what the others must be.
func (f *fate) arrived(a *arrival) {
	f.sent.ID = cmp.Or(f.sent.ID, a.Message.ID)
	if !f.known {
		f.meta, f.known = a.Meta(), true
	}
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

// rest returns the bodies that are published and not acked.
func (tr *trial) rest() (bodies []string) {
	for _, body := range tr.bodies {
		if tr.fateOf(body, nil).acks == 0 {
			bodies = append(bodies, body)
		}
	}
	return bodies
}

// owes says that the broker has d more for what it must deliver.
func (tr *trial) owes(d time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if due := deadline(d); due.After(tr.owed) {
		tr.owed = due
	}
}

// within is how long what the broker owes may take.
func (tr *trial) within() time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return max(0, time.Until(tr.owed)) + tr.patience
}

// deliver opens a worker on one topic, publishes messages and receives them all.
func (tr *trial) deliver(msgs ...brokers.Message) (*worker, []*arrival) {
	w := tr.open("orders")
	tr.publish(w.topic(), msgs...)
	return w, w.expect(tr.rest()...)
}

func (tr *trial) delivered(bodies ...string) (*worker, []*arrival) {
	return tr.deliver(text(bodies...)...)
}
