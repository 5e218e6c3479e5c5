package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/retry/budget"
)

// NewBudget returns a collector that reads b at every scrape. Dependency is
// what the retries go to, such as "bank", and becomes a label. One budget that
// several Consumers share is registered once.
func NewBudget(dependency string, b budget.Pacer) prometheus.Collector {
	desc := describer(dependency)
	return &budgetCollector{
		budget:   b,
		tokens:   desc("redrive_budget_tokens", "Tokens that are saved up; below 1 means that retries wait."),
		capacity: desc("redrive_budget_capacity", "Tokens that are saved up at most."),
		limit:    desc("redrive_budget_limit", "Retries that may start in a second, whatever the tokens."),
		waiting:  desc("redrive_budget_waiting", "Retries that wait for a token."),
		granted:  desc("redrive_budget_granted_total", "Retries that got their token."),
		refunded: desc("redrive_budget_refunded_total", "Tokens given back, by retries that succeeded or did not run."),
		deferred: desc("redrive_budget_deferred_total", "Times that a retry was told to wait for a token."),
		waits:    desc("redrive_budget_waits_seconds_total", "Delay that the budget added to retries."),
	}
}

type budgetCollector struct {
	budget                             budget.Pacer
	tokens, capacity, limit, waiting   *prometheus.Desc
	granted, refunded, deferred, waits *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *budgetCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.tokens, c.capacity, c.limit, c.waiting, c.granted, c.refunded, c.deferred, c.waits} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *budgetCollector) Collect(out chan<- prometheus.Metric) {
	snapshot, s := c.budget.Snapshot(time.Now()), sink(out)
	s.gauge(c.tokens, snapshot.Tokens)
	s.gauge(c.capacity, snapshot.Capacity)
	s.gauge(c.limit, snapshot.Limit)
	s.gauge(c.waiting, float64(snapshot.Waiting))
	s.counter(c.granted, snapshot.Granted)
	s.counter(c.refunded, snapshot.Refunded)
	s.counter(c.deferred, snapshot.Deferred)
	s.total(c.waits, snapshot.Waits)
}

// describer returns a maker of descriptions of the metrics of a dependency.
func describer(dependency string) func(name, help string, labels ...string) *prometheus.Desc {
	constant := prometheus.Labels{"dependency": dependency}
	return func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, constant)
	}
}
