// Package metrics watches redrive with Prometheus.
//
//   - Nothing is global: [New], [NewLimiter], [NewBudget] and [NewBreaker] return
//     collectors, and the caller registers them where it likes.
//   - The number of series is bounded by the topics that the caller names, at
//     most [MaxTopics]. Labels are topics, names that the caller gave, and words
//     of closed sets; what is in none of them is "other". Message IDs, keys and
//     error texts never become labels, and neither do topics that a message
//     brings along.
//   - Every run of a handler that starts is counted once in
//     retry_attempts_total, when it ends, whatever becomes of it.
//   - Observing allocates nothing, and all events of a message that succeeds at
//     once take less than 150 ns together.
//
// A [Metrics] is a [consumer.Observer]. Limiters, budgets and breakers are read
// when Prometheus scrapes:
//
//	watch, err := metrics.New(metrics.Topic{Name: "orders"})
//	...
//	registry := prometheus.NewRegistry()
//	registry.MustRegister(watch,
//		metrics.NewLimiter("bank", bankLimiter),
//		metrics.NewBudget("bank", bankBudget))
//
// Not promised: the gauges of a scrape are read one after another, so that they
// may differ by what happened in between.
package metrics
