package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/retry/breaker"
)

// NewBreaker returns a collector that reads b at every scrape. Dependency is
// what b guards, such as "bank", and becomes a label. One breaker that several
// Transports share is registered once.
func NewBreaker(dependency string, b *breaker.Breaker) prometheus.Collector {
	desc := describer(dependency)
	return &breakerCollector{
		breaker:  b,
		state:    desc("redrive_breaker_state", "1 for the state that the breaker is in, 0 for the others.", "state"),
		limit:    desc("redrive_breaker_limit", "Calls that may go at once; below 1, single calls at a distance; +Inf while the breaker is closed."),
		next:     desc("redrive_breaker_next_timestamp_seconds", "When the breaker lets a call through though no other ends; 0 if it does now, or only after Restore."),
		messages: desc("redrive_breaker_window_messages", "Different messages that the breaker knows, poison left out: the last 64 at most, of the last 2 minutes."),
		failures: desc("redrive_breaker_window_failures", "Those of the messages that failed last."),
	}
}

type breakerCollector struct {
	breaker                                *breaker.Breaker
	state, limit, next, messages, failures *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *breakerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.limit, c.next, c.messages, c.failures} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *breakerCollector) Collect(out chan<- prometheus.Metric) {
	snapshot, s := c.breaker.Snapshot(time.Now()), sink(out)
	for state := breaker.Closed; state <= breaker.Isolated; state++ {
		in := 0.0
		if state == snapshot.State {
			in = 1
		}
		s.gauge(c.state, in, state.String())
	}
	next := 0.0
	if !snapshot.Next.IsZero() {
		next = float64(snapshot.Next.UnixNano()) / 1e9
	}
	s.gauge(c.limit, snapshot.Limit)
	s.gauge(c.next, next)
	s.gauge(c.messages, float64(snapshot.Messages))
	s.gauge(c.failures, float64(snapshot.Failures))
}
