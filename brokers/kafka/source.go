package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// source is a member of a consumer group. Each generation has its own readers, and
// what was received in it can be settled in it only.
type source struct {
	broker *Broker
	sub    brokers.Subscription
	plan   plan
	topics map[string]bool // that messages may be of
	member *member

	findings     []brokers.Finding
	decompressed int // bytes that a batch may become

	// What one generation leaves to the next.
	layout  map[string]topicState // as last seen
	missed  map[string]time.Time  // missing topics, with the time of the last report
	kept    map[partition]kept
	misfits string // of the group, of which Receive has told

	joined chan error // how the first attempt to take part ended, nil if well

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	woken  adapter.Waker
	work   sync.WaitGroup

	mu         sync.Mutex
	generation *generation    // nil between two
	turn       adapter.Turn   // of the readers
	paused     map[string]int // the topics that are, with the last Pause that said so
	pauses     int

	closed   atomic.Bool
	failures failures
}

// failures are errors that no Receive has reported yet.
type failures struct {
	mu     sync.Mutex
	queued []error
}

// add keeps err. Of what happens again only a few wait, and every alarm does.
func (f *failures) add(err error, isAlarm bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isAlarm || len(f.queued) < mostFailures {
		f.queued = append(f.queued, err)
	}
}

// take returns all of them as one error: there may be an alarm for each
// partition, and callers of Receive back off after each error.
func (f *failures) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.Join(f.queued...)
	f.queued = nil
	return err
}

var _ brokers.Source = (*source)(nil)

const (
	// rejoinPause is the wait after a failed attempt to join.
	rejoinPause = 500 * time.Millisecond

	// coordinating is how often in a row there may be no coordinator before
	// that is an error: a fresh cluster makes the topic of offsets for its first
	// group, and a coordinator that died is replaced.
	coordinating = 20

	// mostFailures is how many errors that are no alarms wait for a Receive.
	mostFailures = 4
)

func newSource(b *Broker, sub brokers.Subscription, p plan, layout map[string]topicState) *source {
	s := &source{broker: b, sub: sub, plan: p, layout: layout, missed: make(map[string]time.Time), kept: make(map[partition]kept), topics: make(map[string]bool), paused: make(map[string]int), joined: make(chan error, 1), woken: adapter.NewWaker()}
	for _, topic := range p.topics {
		s.topics[topic] = true
	}
	s.decompressed = b.options.decompressed(p.largest)
	s.member = &member{client: b.client, group: p.group, options: b.options}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.work.Go(s.join)
	return s
}

func heartbeatPace(o Options) time.Duration { return min(3*time.Second, o.SessionTimeout/5) }

// Capabilities are those of a log: a delivery is held as long as the generation
// lives, and delays are exact.
func (s *source) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{Group: s.sub.Group, MessageLimit: s.broker.options.MessageLimit, Findings: s.findings}
}

// join takes part in one generation after the other, and leaves in the end. That a
// group changes while it forms is no error.
func (s *source) join() {
	defer func() { s.member.leave(context.WithoutCancel(s.ctx)) }() // or the group misses it after a session
	failed := 0                                                     // times in a row
	for s.ctx.Err() == nil {
		a, err := s.member.join(s.ctx, s.plan.consumed())
		failed++
		switch {
		case s.ctx.Err() != nil:
			return
		case err == nil:
			failed = 0
			s.serve(s.ctx, a)
			continue
		case errors.Is(err, kafka.FencedInstanceID):
			s.member.id = "" // it is another's
			err = fmt.Errorf("%w: another worker of the group %q came later with the Options.InstanceID %q, and has the partitions now: give each worker an ID of its own: %w",
				brokers.ErrMisconfigured, s.plan.group, s.broker.options.InstanceID, err)
			s.attempted(err)
			s.alarm(err)
			return
		case isRegrouping(err) || isUncoordinated(err) && failed <= coordinating:
		default:
			err = explain(err, "join group %q", s.plan.group)
			s.attempted(err)
			s.fail(err)
		}
		rest(s.ctx, rejoinPause)
	}
}

// attempted notes how an attempt to take part ended, for await.
func (s *source) attempted(err error) {
	select {
	case s.joined <- err:
	default: // not the first
	}
}

// await returns when there is a generation, or why there is none.
func (s *source) await(ctx context.Context) error {
	select {
	case err := <-s.joined:
		return err
	case <-s.ctx.Done():
		return brokers.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("join group %q: %w", s.plan.group, context.Cause(ctx))
	}
}

// fail lets the next Receive return err. A topic that is missing may come back:
// that is no reason to give up the others, as brokers.ErrMisconfigured would be.
func (s *source) fail(err error) { s.report(err, false) }

// alarm is fail for what tells of a loss, or of another log: it is not dropped.
func (s *source) alarm(err error) { s.report(err, true) }

func (s *source) report(err error, isAlarm bool) {
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		err = errors.New(err.Error())
	}
	s.failures.add(err, isAlarm)
	s.woken.Wake()
}

func (s *source) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("kafka: receive at most %d messages: the least is 1", max)
	}
	for {
		if ctx.Err() != nil && !s.closed.Load() {
			return nil, context.Cause(ctx)
		}
		ds, err := s.take(max)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		s.woken.Wait(ctx, time.Time{})
	}
}

// Pause has readers of the topics stop after the fetch that is on its way. It
// costs next to nothing where nothing changes.
func (s *source) Pause(topics ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses++
	for _, topic := range topics {
		if !s.topics[topic] {
			continue
		}
		if _, already := s.paused[topic]; !already {
			s.generation.pauseTopic(topic, true)
		}
		s.paused[topic] = s.pauses
	}
	for topic, last := range s.paused {
		if last != s.pauses {
			delete(s.paused, topic)
			s.generation.pauseTopic(topic, false)
		}
	}
}

// take returns what is ready, from the readers in turn.
func (s *source) take(most int) ([]*brokers.Delivery, error) {
	if s.closed.Load() {
		return nil, brokers.ErrClosed
	}
	if err := s.failures.take(); err != nil {
		return nil, fmt.Errorf("kafka: receive from %q: %w", s.sub.Topics, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.generation
	if g == nil {
		return nil, nil
	}
	readers := g.allowed()
	var ds []*brokers.Delivery
	ready := func(i int) int { return readers[i].ready() }
	s.turn.Take(most, len(readers), ready, func(i, most int) int {
		before := len(ds)
		if before == 0 {
			ds = make([]*brokers.Delivery, 0, min(most, ready(i)))
		}
		ds = readers[i].hand(ds, most)
		return len(ds) - before
	})
	return ds, nil
}

// Extend has nothing to do: there are no leases.
func (s *source) Extend(_ context.Context, _ time.Duration, ds []*brokers.Delivery) []error {
	failures := adapter.Failures{Broker: "kafka", Entries: len(ds)}
	for i, d := range ds {
		_, err := s.check(d)
		failures.Add(i, "extend", d, err)
	}
	return failures.List
}

// Close commits what is settled and leaves the group. What is unsettled goes to
// the next owner of its partition.
func (s *source) Close(ctx context.Context) error {
	s.closed.Store(true)
	s.cancel(brokers.ErrClosed)
	s.woken.Wake()
	left := make(chan struct{})
	go func() {
		s.work.Wait()
		close(left)
	}()
	defer s.broker.sources.Remove(s)
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kafka: leave group %q: %w", s.plan.group, context.Cause(ctx))
	}
}
