package retries

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/service"
)

// mostPolicies is how many policies are told apart. All others are "other".
const mostPolicies = 100

// taskMetrics counts the tasks in the store.
func (s *Server) taskMetrics(to web.Sink) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	stats, err := s.Store.Stats(ctx)
	s.storeUp.Send(ctx, to, err, s.Store.TryWrite, s.Logger)
	if err != nil {
		return
	}
	to.Gauge("tasks_oldest_seconds", "Age of the oldest task that has not ended; 0 if there is none.", web.Age(stats.Oldest, time.Now()))
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
		to.Gauge("tasks", "Tasks in the store, by policy and state.", float64(n), "policy", labels[0], "state", labels[1])
	}
}
