package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/retry/budget"
)

// Budget is what [NewBudget] reads. A *budget.Budget is one.
type Budget interface {
	Snapshot(now time.Time) budget.Snapshot
}

// NewBudget returns a collector that reads b at every scrape. Dependency is
// what the retries go to, such as "bank", and becomes a label. One budget that
// several Consumers share is registered once.
func NewBudget(dependency string, b Budget) prometheus.Collector {
	desc := describer(dependency)
	return &budgetCollector{
		budget:  b,
		limit:   desc("redrive_budget_limit", "Retries that the window of the budget may hold now."),
		used:    desc("redrive_budget_reserved", "Retries that are reserved in the coming window."),
		left:    desc("redrive_budget_left", "Retries that the coming window has room for; 0 means that new ones are delayed."),
		backlog: desc("redrive_budget_backlog_seconds", "How far ahead the latest reserved retry is."),
		moved:   desc("redrive_budget_moved_total", "Retries that the budget moved to a later time."),
		added:   desc("redrive_budget_added_delay_seconds_total", "Delay that the budget added to retries."),
		unpaced: desc("redrive_budget_unpaced_total", "Retries that found no room as far ahead as the budget looks."),
	}
}

type budgetCollector struct {
	budget                                            Budget
	limit, used, left, backlog, moved, added, unpaced *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *budgetCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.limit, c.used, c.left, c.backlog, c.moved, c.added, c.unpaced} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *budgetCollector) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	snapshot, s := c.budget.Snapshot(now), sink(out)
	backlog := 0.0
	if !snapshot.Furthest.IsZero() {
		backlog = max(0, snapshot.Furthest.Sub(now).Seconds())
	}
	s.gauge(c.limit, float64(snapshot.Limit))
	s.gauge(c.used, float64(snapshot.Used))
	s.gauge(c.left, float64(max(0, snapshot.Limit-snapshot.Used)))
	s.gauge(c.backlog, backlog)
	s.counter(c.moved, snapshot.Moved)
	s.total(c.added, snapshot.Added)
	s.counter(c.unpaced, snapshot.Unpaced)
}

// describer returns a maker of descriptions of the metrics of a dependency.
func describer(dependency string) func(name, help string, labels ...string) *prometheus.Desc {
	constant := prometheus.Labels{"dependency": dependency}
	return func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, constant)
	}
}
