package metrics

import (
	"context"
	"errors"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/health"
)

const (
	// stalledAfter is for how long a partition gets no further before it counts.
	stalledAfter = 3 * time.Minute

	// The broker is asked by a scrape, in the background, and not more often than
	// askEvery. The next scrapes have the answer, until a later ask fails or takes
	// longer than askFor, or until it is as old as oldAnswer because nobody scraped.
	askEvery  = 30 * time.Second
	askFor    = 10 * time.Second
	oldAnswer = 5 * time.Minute
)

// Follow adds what w, a *consumer.Consumer, knows of itself and of its broker: the
// partitions of Kafka that have stalled, and how many messages and dead letters wait in
// the broker. For that a scrape has the worker ask the broker, at most every 30 s and
// in the background. It never waits: the next scrape shows the answer, and nothing if
// there was none.
//
// Follow may be called at any time; the last worker counts. Labels are those of New:
// what is of other topics is counted under "other". So is what waits in dead-letter
// topics beyond the first MaxTopics.
func (m *Metrics) Follow(w health.Worker) { m.followed.Store(&followed{worker: w}) }

// followed is a worker, and what its broker answered last.
type followed struct {
	worker health.Worker

	mu        sync.Mutex
	begun     time.Time // when the broker was last asked
	busy      bool      // that call has not returned
	open      bool      // it is not known yet how it ends
	at        time.Time // when the last one ended
	answer    []brokers.Backlog
	succeeded uint64
	failed    uint64
}

// counting is a worker that asks its broker.
type counting interface {
	Backlogs(ctx context.Context) ([]brokers.Backlog, error)
}

// collectFollowed collects what the worker knows that m follows.
func (m *Metrics) collectFollowed(to sink) {
	f := m.followed.Load()
	if f == nil {
		return
	}
	status := f.worker.Status()
	m.collectStalled(to, status)
	if w, ok := f.worker.(counting); ok {
		answer, succeeded, failed := f.ask(w, status.State == health.Running, time.Now())
		m.collectBacklogs(to, answer, time.Now())
		to.counter(m.descs.asks, succeeded, results[success])
		to.counter(m.descs.asks, failed, results[failure])
	}
}

func (m *Metrics) collectStalled(to sink, status health.Status) {
	stalled := map[string]int{}
	for _, p := range status.Broker.Partitions {
		n := 0
		if !p.StalledSince.IsZero() && status.At.Sub(p.StalledSince) >= stalledAfter {
			n = 1
		}
		stalled[m.label(p.Topic)] += n
	}
	for topic, n := range stalled {
		to.gauge(m.descs.stalled, float64(n), topic)
	}
}

// ask begins to ask the broker if it is time for that, and returns what it answered
// last.
func (f *followed) ask(w counting, runs bool, now time.Time) (answer []brokers.Backlog, succeeded, failed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if runs && !f.busy && now.Sub(f.begun) >= askEvery {
		f.begun, f.busy, f.open = now, true, true
		go f.call(w)
	}
	if runs && now.Sub(f.at) < oldAnswer {
		answer = f.answer
	}
	return answer, f.succeeded, f.failed
}

// call asks the broker once. A call that ignores the end of its context has failed, and
// is waited for before the next.
func (f *followed) call(w counting) {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	defer context.AfterFunc(ctx, func() { f.end(nil, context.Cause(ctx)) })()
	answer, err := w.Backlogs(ctx)
	f.end(answer, err)
	f.mu.Lock()
	f.busy = false
	f.mu.Unlock()
}

// end takes in how an ask has ended, the first time that it is told.
func (f *followed) end(answer []brokers.Backlog, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open {
		return
	}
	f.open, f.answer, f.at = false, answer, time.Now()
	switch {
	case err == nil:
		f.succeeded++
	case !errors.Is(err, errors.ErrUnsupported):
		f.failed++
	}
}

// label is the label of a topic.
func (m *Metrics) label(topic string) string {
	if m.topics[topic] != nil {
		return topic
	}
	return other
}

// waiting is what is known of the topics with one label.
type waiting struct {
	messages [len(backlogStates)]*int64
	oldest   time.Time
}

// add adds what is known of one more.
func (w *waiting) add(b *brokers.Backlog) {
	for i, n := range [...]*int64{b.Ready, b.Taken, b.Delayed} {
		if n == nil {
			continue
		}
		if w.messages[i] == nil {
			w.messages[i] = new(int64)
		}
		*w.messages[i] += *n
	}
	if !b.Oldest.IsZero() && (w.oldest.IsZero() || b.Oldest.Before(w.oldest)) {
		w.oldest = b.Oldest
	}
}

// collectBacklogs collects an answer. What is not known has no series.
func (m *Metrics) collectBacklogs(to sink, answer []brokers.Backlog, now time.Time) {
	topics, letters := map[string]*waiting{}, map[string]*waiting{}
	for i := range answer {
		b, at, label := &answer[i], topics, m.label(answer[i].Topic)
		if b.DeadLetters {
			if at, label = letters, b.Topic; at[label] == nil && len(at) >= MaxTopics || !utf8.ValidString(label) {
				label = other
			}
		}
		if at[label] == nil {
			at[label] = new(waiting)
		}
		at[label].add(b)
	}
	for topic, w := range topics {
		for i, n := range w.messages {
			if n != nil {
				to.gauge(m.descs.backlog, float64(*n), topic, backlogStates[i])
			}
		}
		to.age(m.descs.backlogOldest, w.oldest, now, topic)
	}
	for topic, w := range letters {
		if n := w.messages[0]; n != nil {
			to.gauge(m.descs.letters, float64(*n), topic)
		}
		to.age(m.descs.lettersOldest, w.oldest, now, topic)
	}
}
