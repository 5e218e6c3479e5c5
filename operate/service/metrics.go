package service

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// mostPolicies is how many policies metrics tell apart. All others are "other".
const mostPolicies = 100

// Metrics are what a [Service] counts, as a prometheus.Collector.
type Metrics struct {
	attempts *prometheus.CounterVec
	age      *prometheus.HistogramVec
	lateness prometheus.Histogram

	mu       sync.Mutex
	policies map[string]bool
}

// NewMetrics returns metrics for [Config.Metrics], to be registered with a registry.
func NewMetrics() *Metrics {
	return &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "retry_attempts_total",
			Help: "Attempts of tasks that have ended: success, retry, dead_letter, lost if another worker has the task by now, and defer, which is none: the target was down or full.",
		}, []string{"outcome", "policy"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "retry_task_age_seconds", Help: "How long after its creation, or its return, a task was called.",
			Buckets: []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600},
		}, []string{"policy"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "redrive_task_lateness_seconds", Help: "How long after its due time a task was called.",
			Buckets: []float64{.001, .0025, .005, .01, .05, .1, .5, 1, 5, 15, 60, 300},
		}),
		policies: map[string]bool{},
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.attempts.Describe(out)
	m.age.Describe(out)
	m.lateness.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.attempts.Collect(out)
	m.age.Collect(out)
	m.lateness.Collect(out)
}

// label is the name of a policy as far as there is room for it.
func (m *Metrics) label(policy string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.policies[policy] {
		if len(m.policies) >= mostPolicies {
			return "other"
		}
		m.policies[policy] = true
	}
	return policy
}

// called notes that the call of a task begins.
func (m *Metrics) called(t Task, now time.Time) {
	if m != nil {
		m.age.WithLabelValues(m.label(t.PolicyID)).Observe(max(0, now.Sub(t.BudgetSince).Seconds()))
		m.lateness.Observe(max(0, now.Sub(t.NextAttemptAt).Seconds()))
	}
}

// settled counts what became of a task.
func (m *Metrics) settled(o Outcome, lost bool) {
	if m == nil {
		return
	}
	outcome := "success"
	switch {
	case lost:
		outcome = "lost"
	case o.Task.Status == Exhausted:
		outcome = "dead_letter"
	case o.Attempt == nil:
		outcome = "defer"
	case o.Task.Status == Pending:
		outcome = "retry"
	}
	m.attempts.WithLabelValues(outcome, m.label(o.Task.PolicyID)).Inc()
}
