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
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/health"
)

// source is a member of a consumer group. It has a reader for each partition that it
// owns, over generations of the group. What was received from one can be settled while
// its reader goes on.
type source struct {
	broker *Broker
	sub    brokers.Subscription
	plan   plan
	topics map[string]bool // that messages may be of
	member *member

	findings     []inspect.Finding
	decompressed int // bytes that a batch may become

	// These belong to the goroutine that joins, and to that of a generation.
	layout  map[string]topicState // as last seen
	missed  map[string]time.Time  // missing topics, with the time of the last report
	kept    map[partition]kept
	misfits string // of the group, of which Receive has told

	joined chan error // how the first attempt to take part ended, nil if well

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	woken  adapter.Waker
	link   adapter.Link // changed by join
	work   sync.WaitGroup

	fetches    *fetches
	foreign    sync.Map      // topics of retries that were passed on in this generation, as keys
	kick       chan struct{} // commit now
	idle       chan struct{} // signalled when nothing of a partition is handed out any more
	broken     chan struct{} // signalled when a reader has ended by itself
	committing chan struct{} // has one value while a commit is on its way

	mu         sync.Mutex
	generation *generation    // the last one, nil before there was one
	readers    []*reader      // of what this member owns; a new slice with each change
	alone      *reader        // of a suspect
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
	s := &source{broker: b, sub: sub, plan: p, layout: layout, missed: make(map[string]time.Time), kept: make(map[partition]kept), topics: make(map[string]bool), paused: make(map[string]int), joined: make(chan error, 1), woken: adapter.NewWaker(),
		kick: make(chan struct{}, 1), idle: make(chan struct{}, 1), broken: make(chan struct{}, 1), committing: make(chan struct{}, 1)}
	for _, topic := range p.topics {
		s.topics[topic] = true
	}
	s.decompressed = b.options.decompressed(p.largest)
	s.member = &member{client: b.client, group: p.group, options: b.options}
	s.link.Down(nil) // until it has joined
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.fetches = newFetches(s.ctx, b.client)
	s.work.Go(s.join)
	return s
}

func heartbeatPace(o Options) time.Duration { return min(3*time.Second, o.SessionTimeout/5) }

// Capabilities are those of a log: a delivery is held as long as this member owns its
// partition, and delays are exact.
func (s *source) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{Group: s.sub.Group, MessageLimit: s.broker.options.MessageLimit, Findings: s.findings}
}

// Connection implements health.Connected. Partitions of delay topics are left out: they
// have what is not due yet.
func (s *source) Connection() health.Connection {
	c := s.link.Connection()
	s.mu.Lock()
	readers := s.readers
	s.mu.Unlock()
	for _, r := range readers {
		if r.delayed == nil {
			c.Partitions = append(c.Partitions, r.status())
		}
	}
	return c
}

// join takes part in one generation after the other, and leaves in the end. That a
// group changes while it forms is no error.
func (s *source) join() {
	var work, heart sync.WaitGroup
	ctx, stop := context.WithCancel(s.ctx)
	work.Go(func() { s.commitAlways(ctx) })
	work.Go(func() { // apart, as commits must not wait for a topic that takes no records
		for adapter.Rest(ctx, donePace) {
			s.writeDone(ctx, s.all())
		}
	})
	beating, still := context.WithCancel(context.Background())
	heart.Go(func() { s.beat(beating) }) // also while partitions are revoked
	defer func() {
		stop()
		work.Wait()
		s.revoke(s.all())
		still()
		heart.Wait()
		s.member.leave(context.WithoutCancel(s.ctx)) // or the group misses it after a session
	}()
	failed := 0 // times in a row
	for s.ctx.Err() == nil {
		c := s.leave()
		a, err := s.member.join(s.ctx, c)
		if isRegrouping(err) {
			s.rename(a)
		}
		failed++
		switch {
		case err == nil:
			failed = 0
			s.link.Up()
			if errors.Is(s.serve(a, c.owned), brokers.ErrLeaseLost) {
				adapter.Rest(s.ctx, rejoinPause) // what cost it the last one may cost it the next
			}
			continue
		case s.ctx.Err() != nil:
			return
		case errors.Is(err, kafka.FencedInstanceID):
			s.lose(s.current(), anyPartition)
			s.member.id = "" // it is another's
			err = fmt.Errorf("%w: another worker of the group %q came later with the Options.InstanceID %q, and has the partitions now: give each worker an ID of its own: %w",
				brokers.ErrMisconfigured, s.plan.group, s.broker.options.InstanceID, err)
			s.link.Down(err)
			s.attempted(err)
			s.alarm(err)
			return
		case errors.Is(err, kafka.UnknownMemberId):
			s.link.Down(err)
			s.lose(s.current(), anyPartition)
		case isRegrouping(err) || isUncoordinated(err) && failed <= coordinating:
		default:
			err = explain(err, "join group %q", s.plan.group)
			s.link.Down(err)
			s.attempted(err)
			s.fail(err)
		}
		adapter.Rest(s.ctx, rejoinPause)
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
			s.pauseTopic(topic, true)
		}
		s.paused[topic] = s.pauses
	}
	for topic, last := range s.paused {
		if last != s.pauses {
			delete(s.paused, topic)
			s.pauseTopic(topic, false)
		}
	}
}

// pauseTopic pauses a topic, or resumes it. The lock is held.
func (s *source) pauseTopic(topic string, paused bool) {
	for _, r := range s.readers {
		r.pause(topic, paused)
	}
	if s.alone != nil { // perhaps it is of that topic, and keeps the others
		s.commitSoon()
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
	readers := s.readers
	var ds []*brokers.Delivery
	ready := func(i int) int { return readers[i].ready(s.alone != nil) }
	s.turn.Take(most, len(readers), ready, func(i, share int) int {
		before, here := len(ds), ready(i)
		if before == 0 {
			ds = make([]*brokers.Delivery, 0, min(most, here+len(readers)))
		}
		ds = readers[i].hand(ds, min(share, here))
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
		s.fetches.work.Wait()
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
