package retries

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/operate/service"
)

// taskMetrics count the tasks in the store.
type taskMetrics struct {
	store              *service.Store
	tasks, oldest, out *prometheus.Desc
}

func newTaskMetrics(s *service.Store) *taskMetrics {
	return &taskMetrics{
		store:  s,
		tasks:  prometheus.NewDesc("redrive_tasks", "Tasks in the store, by policy and state.", []string{"policy", "state"}, nil),
		oldest: prometheus.NewDesc("redrive_tasks_oldest_seconds", "Age of the oldest task that has not ended; 0 if there is none.", nil, nil),
		out:    prometheus.NewDesc("redrive_store_up", "Whether the store answers.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *taskMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.tasks
	out <- m.oldest
	out <- m.out
}

// mostPolicies is how many policies are told apart. All others are "other".
const mostPolicies = 100

// Collect implements prometheus.Collector.
func (m *taskMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	stats, err := m.store.Stats(ctx)
	if err != nil {
		out <- prometheus.MustNewConstMetric(m.out, prometheus.GaugeValue, 0)
		return
	}
	out <- prometheus.MustNewConstMetric(m.out, prometheus.GaugeValue, 1)
	age := 0.0
	if !stats.Oldest.IsZero() {
		age = time.Since(stats.Oldest).Seconds()
	}
	out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, age)
	counts := map[[2]string]int64{}
	policies := map[string]bool{}
	for _, p := range stats.Policies {
		name := p.PolicyID
		if !policies[name] && len(policies) == mostPolicies {
			name = "other"
		}
		policies[name] = true
		for state, n := range map[service.Status]int64{
			service.Pending: p.Pending, service.InFlight: p.InFlight, service.Succeeded: p.Succeeded, service.Exhausted: p.Exhausted, service.Cancelled: p.Cancelled,
		} {
			counts[[2]string{name, string(state)}] += n
		}
	}
	for labels, n := range counts {
		out <- prometheus.MustNewConstMetric(m.tasks, prometheus.GaugeValue, float64(n), labels[0], labels[1])
	}
}
