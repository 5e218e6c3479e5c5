package gallery

import (
	"io"
	"log/slog"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/budget"
)

// config is the default one, with what the incident itself names.
func (i Incident) config() consumer.Config {
	return consumer.Config{
		DeadLetter:     "*.dead",
		HandlerTimeout: i.Timeout,
		Concurrency:    i.Handlers,
		OrderByKey:     i.Ordered,
		Logger:         slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// settings are those of the incident's topics.
func (i Incident) settings() consumer.TopicConfig {
	settings := consumer.TopicConfig{BatchSize: i.Batch}
	if i.Bulkhead {
		settings.DependencyOf = func(m *brokers.Message) string { return m.Key }
	}
	return settings
}

// shared is a budget of several workers, as redisbudget has it.
type shared struct {
	budget.Pacer
	workers int
}

// Workers implements budget.Fleet.
func (s shared) Workers() int { return s.workers }
