package metrics

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/health"
)

// Metrics counts the events of one Consumer. Make one with [New], put it into
// consumer.Config.Observers, and register it. For several Consumers in a
// process, make one each, and tell them apart with
// prometheus.WrapRegistererWith.
type Metrics struct {
	// Exemplar, unless it is nil, returns the labels that lead from the duration of
	// a run to its trace, by the context of the handler; nil for none. Prometheus
	// allows 128 characters. tracing.Exemplar of package tracing is one. Set it
	// before the Consumer runs.
	Exemplar func(ctx context.Context) map[string]string

	topics map[string]*series     // never changed
	other  atomic.Pointer[series] // of topics that nobody named; nil until one comes

	dependencies  map[string]*dependency // never changed
	strange       dependency             // all that nobody named
	receiveErrors atomic.Uint64
	receiptErrors atomic.Uint64
	receiptsLost  atomic.Uint64
	followed      atomic.Pointer[followed] // nil until Follow
	byHand        [len(ends)]atomic.Int64

	descs      descs
	histograms histograms
}

// New returns a Metrics for the topics that the Consumer has handlers for.
// Events of all others are counted under the topic "other", and pauses of what no
// topic depends on under the dependency "other". The error names every fault at
// once, each a *settings.Error.
func New(topics ...Topic) (*Metrics, error) {
	if err := faults(topics); err != nil {
		return nil, err
	}
	m := &Metrics{topics: map[string]*series{}, dependencies: map[string]*dependency{}, descs: newDescs(), histograms: newHistograms()}
	for _, t := range topics {
		m.topics[t.Name] = m.newSeries(t.Name, t.policy())
		m.dependencies[cmp.Or(t.Dependency, t.Name)] = &dependency{}
	}
	return m, nil
}

// Observe implements consumer.Observer.
func (m *Metrics) Observe(ctx context.Context, e consumer.Event) {
	if e.Message != nil {
		m.series(e.Topic).observe(ctx, &e)
		return
	}
	switch e.Kind {
	case consumer.EventPaused:
		m.pauses(&e, 1)
	case consumer.EventResumed:
		m.pauses(&e, -1)
	case consumer.EventByHand:
		m.pausedByHand(e.ByHand)
	case consumer.EventReceiptDropped:
		m.receiptsLost.Add(1)
	case consumer.EventError:
		switch e.Operation {
		case "receive":
			m.receiveErrors.Add(1)
			if e.Topic != "" {
				m.series(e.Topic).topicErrors.Add(1)
			}
		case "receipt":
			m.receiptErrors.Add(1)
		}
	}
}

// dependency is what there is to count of what topics depend on.
type dependency struct {
	paused atomic.Int64 // how many of its name are
	pauses atomic.Uint64
}

// pauses counts that a dependency has paused, 1, or resumed, -1.
func (m *Metrics) pauses(e *consumer.Event, change int64) {
	d := m.dependencies[e.Dependency]
	if d == nil {
		d = &m.strange
	}
	if d.paused.Add(change); change > 0 {
		d.pauses.Add(1)
	}
}

// pausedByHand takes in what is paused now.
func (m *Metrics) pausedByHand(pauses []health.ByHand) {
	withEnd := 0
	for _, p := range pauses {
		if !p.Until.IsZero() {
			withEnd++
		}
	}
	m.byHand[timed].Store(int64(withEnd))
	m.byHand[endless].Store(int64(len(pauses) - withEnd))
}

func (m *Metrics) series(topic string) *series {
	if s := m.topics[topic]; s != nil {
		return s
	}
	if s := m.other.Load(); s != nil {
		return s
	}
	m.other.CompareAndSwap(nil, m.strays())
	return m.other.Load()
}

func (m *Metrics) strays() *series {
	if s := m.topics[other]; s != nil {
		return s
	}
	return m.newSeries(other, other)
}

// series is what there is to count of one topic.
type series struct {
	metrics       *Metrics
	topic, policy string

	fresh, repeated atomic.Uint64
	attempts        [len(outcomes)][len(classes)]atomic.Uint64
	settled         [len(settlements)]atomic.Uint64
	leasesLost      atomic.Uint64
	deadLetters     [len(reasons)]atomic.Uint64
	discarded       [len(reasons)]atomic.Uint64
	settleErrors    [len(settlements)]atomic.Uint64
	letterErrors    atomic.Uint64
	deadlineErrors  atomic.Uint64
	lettersRefused  atomic.Uint64
	topicErrors     atomic.Uint64
	extensions      atomic.Uint64
	extensionErrors atomic.Uint64
	putOff          [len(deferrals)]atomic.Uint64
	returned        [len(results)]atomic.Uint64
	lastSuccess     atomic.Int64 // Unix time in nanoseconds; 0 if there was none
	states          states

	succeeded, failed, lateness, age, ageAtEnd prometheus.Observer
}

func (s *series) observe(ctx context.Context, e *consumer.Event) {
	switch e.Kind {
	case consumer.EventReceived:
		s.received(e)
	case consumer.EventStarted:
		s.started(e)
	case consumer.EventSucceeded:
		s.ends(e)
		s.attempts[succeeded][noClass].Add(1)
		s.took(ctx, s.succeeded, e)
		s.ran(e, success)
		s.lastSuccess.Store(e.Time.UnixNano())
	case consumer.EventFailed:
		s.fails(ctx, e)
	case consumer.EventSettled:
		s.ended(e)
	default:
		s.observeRare(e)
	}
}

// observeRare is observe for what does not happen to messages that succeed.
func (s *series) observeRare(e *consumer.Event) {
	switch e.Kind {
	case consumer.EventHeld:
		s.states.set(e, held)
	case consumer.EventDeferred:
		s.putOff[index(deferrals[:], e.Decision.Reason)].Add(1)
	case consumer.EventDeadLetterRefused:
		s.lettersRefused.Add(1)
	case consumer.EventLeaseLost:
		s.leasesLost.Add(1)
		s.leave(e, lost, classify.ClassLost)
	case consumer.EventDeadLettered:
		dead := &s.deadLetters
		if e.DeadLetterTopic == dlq.Discard {
			dead = &s.discarded
		}
		dead[reasonOf(e.DeadLetter)].Add(1)
		s.ends(e)
	case consumer.EventStuck:
		s.states.set(e, stuck)
	case consumer.EventUnstuck:
		s.states.set(e, running)
	case consumer.EventError:
		s.errs(e.Operation)
	case consumer.EventExtended:
		s.extensions.Add(1)
	}
}

// ended counts how deliveries end.
func (s *series) ended(e *consumer.Event) {
	switch e.Action {
	case brokers.Ack:
		s.settled[acked].Add(1)
	case brokers.Retry:
		s.settled[retried].Add(1)
		s.leave(e, released, classify.ClassShutdown)
	case brokers.Release:
		s.settled[givenBack].Add(1)
		s.leave(e, released, classify.ClassShutdown)
	case brokers.Reject:
		s.settled[rejected].Add(1)
		s.states.forget(e)
	}
}

// errs counts what the broker failed.
func (s *series) errs(op string) {
	switch op {
	case "ack":
		s.settleErrors[acked].Add(1)
	case "retry":
		s.settleErrors[retried].Add(1)
	case "release":
		s.settleErrors[givenBack].Add(1)
	case "reject":
		s.settleErrors[rejected].Add(1)
	case "extend":
		s.extensionErrors.Add(1)
	case "dead-letter":
		s.letterErrors.Add(1)
	case "deadline":
		s.deadlineErrors.Add(1)
	}
}

func (s *series) received(e *consumer.Event) {
	if e.Meta.FirstFailedAt.IsZero() && e.Meta.DueAt.IsZero() {
		s.fresh.Add(1)
		return
	}
	s.repeated.Add(1)
}

func (s *series) started(e *consumer.Event) {
	s.states.set(e, running)
	if !e.Meta.DueAt.IsZero() {
		s.lateness.Observe(max(0, e.Lateness.Seconds()))
	}
	if !e.Meta.FirstFailedAt.IsZero() {
		s.age.Observe(max(0, e.Time.Sub(e.Meta.FirstFailedAt).Seconds()))
	}
}

func (s *series) fails(ctx context.Context, e *consumer.Event) {
	outcome := lost
	switch {
	case e.Decision.Retry:
		if outcome = rescheduled; e.Verdict.Deferred {
			outcome = deferred
		}
	case e.Decision.DeadLetter:
		outcome = buried
	case e.Verdict.Class == classify.ClassSkipped:
		outcome = skipped
	case e.Verdict.Class == classify.ClassShutdown:
		outcome = released
	}
	s.attempts[outcome][classOf(e.Verdict.Class)].Add(1)
	if outcome == skipped {
		s.ends(e)
	} else {
		s.states.forget(e)
	}
	s.took(ctx, s.failed, e)
	s.ran(e, failure)
}

// took observes how long the run of e took.
func (s *series) took(ctx context.Context, to prometheus.Observer, e *consumer.Event) {
	seconds := e.Duration.Seconds()
	if s.metrics.Exemplar != nil {
		if labels := s.metrics.Exemplar(ctx); labels != nil {
			to.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, labels)
			return
		}
	}
	to.Observe(seconds)
}

// ran counts a run of a message that was sent back.
func (s *series) ran(e *consumer.Event, result int) {
	if e.Meta.RedriveCount > 0 {
		s.returned[result].Add(1)
	}
}

// ends observes the age of e's message, which has ended.
func (s *series) ends(e *consumer.Event) {
	_, since := s.states.forget(e)
	s.ageAtEnd.Observe(max(0, float64(e.Time.UnixNano()-since)/1e9))
}

// leave ends what e's message was doing in this process. If its handler was
// running, nothing else will say how that ended.
func (s *series) leave(e *consumer.Event, outcome int, class string) {
	if was, _ := s.states.forget(e); was == running || was == stuck {
		s.attempts[outcome][classOf(class)].Add(1)
	}
}
