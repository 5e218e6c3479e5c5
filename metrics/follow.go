package metrics

import (
	"time"

	"github.com/redrive-go/redrive/health"
)

// stalledAfter is for how long a partition gets no further before it counts.
const stalledAfter = 3 * time.Minute

// followed is a worker whose status is read at each scrape.
type followed struct{ worker health.Worker }

// Follow adds what the status of w says, a *consumer.Consumer: on Kafka the partitions
// that have stalled. It may be called at any time; the last worker counts. Labels are
// those of New: what is of other topics is counted under "other".
func (m *Metrics) Follow(w health.Worker) { m.followed.Store(&followed{w}) }

// label is the label of a topic.
func (m *Metrics) label(topic string) string {
	if m.topics[topic] != nil {
		return topic
	}
	return other
}

// collectStatus collects what the worker knows that m follows.
func (m *Metrics) collectStatus(to sink) {
	f := m.followed.Load()
	if f == nil {
		return
	}
	status := f.worker.Status()
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
