package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/retry/breaker"
)

// NewBreaker returns a collector that reads b at every scrape. Dependency is
// what b guards, such as "bank", and becomes a label. One breaker that several
// Consumers share is registered once.
func NewBreaker(dependency string, b *breaker.Breaker) prometheus.Collector {
	desc := describer(dependency)
	return &breakerCollector{
		breaker:  b,
		state:    desc("redrive_breaker_state", "1 for the state that the breaker is in, 0 for the others.", "state"),
		openings: desc("redrive_breaker_openings", "How often the breaker has opened in a row; a new row begins once it stayed closed for MinOpen."),
		next:     desc("redrive_breaker_next_timestamp_seconds", "When the breaker lets something through again by itself; 0 if it does now, or only after Restore."),
		probes:   desc("redrive_breaker_probes", "Probes that are out."),
		messages: desc("redrive_breaker_window_messages", "Different messages in the window, which stands still while the breaker is not closed."),
		failures: desc("redrive_breaker_window_failures", "Those of the messages that failed last."),
		streak:   desc("redrive_breaker_streak", "Failed runs since the last success, timeouts and rejected credentials counted twice; stands still while the breaker is not closed."),
	}
}

type breakerCollector struct {
	breaker                    *breaker.Breaker
	state, openings, next      *prometheus.Desc
	probes                     *prometheus.Desc
	messages, failures, streak *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *breakerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.openings, c.next, c.probes, c.messages, c.failures, c.streak} {
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
	s.gauge(c.openings, float64(snapshot.Openings))
	s.gauge(c.next, next)
	s.gauge(c.probes, float64(snapshot.Probes))
	s.gauge(c.messages, float64(snapshot.Messages))
	s.gauge(c.failures, float64(snapshot.Failures))
	s.gauge(c.streak, float64(snapshot.Streak))
}
