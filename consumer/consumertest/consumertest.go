// Package consumertest runs one message through a handler, in a unit test, as
// a worker would: through the whole pipeline with its decoding, timeout, panic
// recovery, classification and decision, but without a broker and without
// waiting for a retry.
package consumertest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// Result is what the pipeline made of one delivery.
type Result struct {
	// Err is what the handler returned, or its panic as a
	// *classify.PanicError.
	Err error

	// Verdict is how Err was classified, zero if it is nil.
	Verdict classify.Verdict

	// Decision is what happens to a message that fails, or is not run; zero
	// after a success. Delay is drawn at random, as in production.
	Decision retry.Decision

	// Settlement is what the broker was told: an Ack after a success or a
	// dead letter, a Retry with the Meta of the next run, or a Release.
	Settlement brokers.Settlement

	// DeadLetter is what was written to the dead-letter topic, nil if
	// nothing was.
	DeadLetter *dlq.Entry
}

// Run gives m to h as its first delivery. The zero Config will do: dead
// letters then go to topic + "-dead". Guards of cfg have no effect: each failure
// counts, as it does beside other messages that succeed. Faults of cfg
// fail the test at once.
func Run(t testing.TB, h consumer.Handler, m brokers.Message, cfg consumer.Config) Result {
	t.Helper()
	return Deliver(t, h, brokers.Delivery{Message: m}, cfg)
}

// Deliver gives a delivery to h, which may carry the Meta of your choice, such as
// that of a last attempt. A Session that ends takes the delivery away, and a
// Meta.DueAt ahead keeps it from being run.
func Deliver(t testing.TB, h consumer.Handler, d brokers.Delivery, cfg consumer.Config) Result {
	t.Helper()
	return DeliverWith(t, h, d, cfg, consumer.TopicConfig{})
}

// DeliverWith is Deliver with settings of the topic, as Consumer.HandleWith has
// them. Faults of these fail the test as well.
func DeliverWith(t testing.TB, h consumer.Handler, d brokers.Delivery, cfg consumer.Config, settings consumer.TopicConfig) Result {
	t.Helper()
	if d.Message.Topic == "" {
		d.Message.Topic = "test"
	}
	if d.Message.ID == "" {
		d.Message.ID = "message-1"
	}
	if cfg.DeadLetter == "" {
		cfg.DeadLetter = "*-dead"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.HoldLimit, cfg.Receipts = -1, ""
	cfg.Guard, cfg.Guards = consumer.Guard{Off: true}, nil
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	bench := &bench{delivery: &d, finished: stop}
	cfg.Observers = append(append([]consumer.Observer{}, cfg.Observers...), bench)
	c, err := consumer.New(bench, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.HandleWith(d.Message.Topic, h, settings)
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return bench.result
}

// bench is a broker with one delivery, and the observer of what becomes of it.
type bench struct {
	delivery *brokers.Delivery
	finished func()

	mu     sync.Mutex
	given  bool
	result Result
}

// Observe implements consumer.Observer.
func (b *bench) Observe(_ context.Context, e consumer.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e.Kind {
	case consumer.EventSucceeded:
		b.result.Decision = retry.Decision{}
	case consumer.EventFailed:
		b.result.Err, b.result.Verdict, b.result.Decision = e.Err, e.Verdict, e.Decision
	case consumer.EventDeadLettered:
		if b.result.Decision == (retry.Decision{}) { // it was not run
			b.result.Decision = retry.Decision{DeadLetter: true, Reason: e.DeadLetter.Reason}
		}
	case consumer.EventLeaseLost:
		b.result.Decision = retry.Decision{Reason: "lost"}
		b.finished()
	}
}

// Open implements brokers.Broker.
func (b *bench) Open(context.Context, brokers.Subscription) (brokers.Source, error) {
	return (*source)(b), nil
}

// Publish implements brokers.Broker. The only thing published is a dead letter.
func (b *bench) Publish(_ context.Context, _ string, msgs ...brokers.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		entry, err := dlq.Decode(m)
		if err != nil {
			return err
		}
		b.result.DeadLetter = &entry
	}
	return nil
}

// Return implements brokers.Broker. No worker calls it.
func (b *bench) SendBack(context.Context, string, string, ...brokers.Item) error {
	return errors.ErrUnsupported
}

// Close implements brokers.Broker.
func (b *bench) Close(context.Context) error { return nil }

// source is bench as a brokers.Source.
type source bench

func (s *source) Pause(...string) {}

func (s *source) Capabilities() brokers.Capabilities { return brokers.Capabilities{} }

func (s *source) Receive(ctx context.Context, _ int) ([]*brokers.Delivery, error) {
	s.mu.Lock()
	first := !s.given
	s.given = true
	s.mu.Unlock()
	if first {
		s.delivery.ReceivedAt = time.Now()
		return []*brokers.Delivery{s.delivery}, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (s *source) Settle(_ context.Context, batch []brokers.Settlement) []error {
	s.mu.Lock()
	s.result.Settlement = batch[0]
	s.mu.Unlock()
	s.finished()
	return nil
}

func (s *source) Extend(context.Context, time.Duration, []*brokers.Delivery) []error { return nil }

func (s *source) Backlogs(context.Context) ([]brokers.Backlog, error) {
	return nil, errors.ErrUnsupported
}

func (s *source) Close(context.Context) error { return nil }
