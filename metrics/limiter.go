package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/retry/flow"
)

// NewLimiter returns a collector that reads l at every scrape. Dependency is what
// l paces, such as "bank", and becomes a label. One Limiter that several Consumers
// share is registered once.
func NewLimiter(dependency string, l *flow.Limiter) prometheus.Collector {
	desc := describer(dependency)
	return &limiterCollector{
		limiter:  l,
		limit:    desc("redrive_limit", "Runs that may go at once; below 1 single runs start redrive_limit_interval_seconds apart."),
		slots:    desc("redrive_limit_slots", "The highest limit: at this value nothing is held back."),
		running:  desc("redrive_limit_running", "Runs that are out."),
		interval: desc("redrive_limit_interval_seconds", "Time between two starts while the limit is below 1; otherwise 0."),
		sampled:  desc("redrive_limit_sampled", "Different messages, or names of TopicConfig.DependencyOf, that ended in the last 2 minutes: the last 64 at most, poison left out."),
		failing:  desc("redrive_limit_failing", "Those of the sampled that failed last; the limit falls when they are more than nine in ten, or when throttled ones are more than one in ten."),
		paused:   desc("redrive_limit_paused", "1 while the limiter is paused by hand, otherwise 0."),
	}
}

type limiterCollector struct {
	limiter                         *flow.Limiter
	limit, slots, running, interval *prometheus.Desc
	sampled, failing, paused        *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *limiterCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.limit, c.slots, c.running, c.interval, c.sampled, c.failing, c.paused} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *limiterCollector) Collect(out chan<- prometheus.Metric) {
	now, s := c.limiter.Adjust(time.Now(), flow.Change{}), sink(out)
	paused := 0.0
	if now.Paused != "" {
		paused = 1
	}
	s.gauge(c.limit, now.Limit)
	s.gauge(c.slots, float64(now.Slots))
	s.gauge(c.running, float64(now.Running))
	s.gauge(c.interval, now.Interval.Seconds())
	s.gauge(c.sampled, float64(now.Sampled))
	s.gauge(c.failing, float64(now.Failing))
	s.gauge(c.paused, paused)
}
