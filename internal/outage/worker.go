package outage

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry/breaker"
)

// worker watches one Consumer.
type worker struct {
	*tally
	breaker *breaker.Breaker // nil if it has none
}

// hire makes a Consumer that calls the dependency.
func (t *tally) hire(broker brokers.Broker) (*consumer.Consumer, error) {
	w, cfg := &worker{tally: t}, t.Config
	if !cfg.Restraint.NoBreaker {
		b, err := breaker.New(t.Breaker)
		if err != nil {
			return nil, err
		}
		w.breaker, cfg.Restraint.Breaker = b, b
	}
	cfg.DeadLetter = dlq.Suffix(".dead")
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg.Observers = append([]consumer.Observer{w}, cfg.Observers...)
	c, err := consumer.New(watched{broker, w}, cfg)
	if err != nil {
		return nil, err
	}
	c.Handle(t.Topic, func(ctx context.Context, m *brokers.Message) error {
		t.ran(m, w.state())
		return t.dependency.call(ctx)
	})
	return c, nil
}

// state is that of the worker's breaker.
func (w *worker) state() breaker.State {
	if w.breaker == nil {
		return breaker.Closed
	}
	return w.breaker.Snapshot(time.Now()).State
}

// spared reports whether the breaker was not closed any more when a run began.
func (w *worker) spared(began time.Time) bool {
	if w.breaker == nil {
		return false
	}
	s := w.breaker.Snapshot(time.Now())
	return s.State != breaker.Closed && s.Since.Before(began)
}

// Observe implements consumer.Observer.
func (w *worker) Observe(_ context.Context, e consumer.Event) {
	switch e.Kind {
	case consumer.EventFailed:
		w.failed(e, w.spared(e.Time.Add(-e.Duration)))
	case consumer.EventAcked:
		w.handled(e.Message)
	case consumer.EventDeadLettered:
		w.buried()
	}
}

// watched is a broker that counts what a worker receives.
type watched struct {
	brokers.Broker
	worker *worker
}

func (b watched) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := b.Broker.Open(ctx, sub)
	if err != nil {
		return nil, err
	}
	b.worker.ready <- struct{}{}
	return watchedSource{source, b.worker}, nil
}

type watchedSource struct {
	brokers.Source
	worker *worker
}

func (s watchedSource) Receive(ctx context.Context, most int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, most)
	s.worker.received(len(ds), s.worker.state())
	return ds, err
}
