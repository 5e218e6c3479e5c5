package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/sqs"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// sqsStored has every retry wait at the server, for 2.1 to 5 s.
var sqsStored = retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: beyondHold}}

// retries counts the calls that a retry takes which waits at the server: those
// of a run in which every message fails once, less those of one without.
func (s *sqsSession) retries(ctx context.Context) error {
	const messages = 5000 // ElasticMQ sorts all that are left with every retry
	cfg := sqsConfig
	cfg.Guard = unguarded
	cfg.Retry = sqsStored
	var perRetry []float64
	for round := range rounds {
		without, err := s.consume(ctx, fmt.Sprintf("plain-%d", round), messages, sqsFailing(cfg, 0))
		if err != nil {
			return err
		}
		with, err := s.consume(ctx, fmt.Sprintf("retried-%d", round), messages, failOnceAll(cfg))
		if err != nil {
			return err
		}
		perRetry = append(perRetry, (with.calls-without.calls)/messages)
	}
	s.report(figure.Figure{Name: "sqs_calls_per_retry", Value: figure.Median(perRetry), Unit: "calls", Goal: 0.35})
	return nil
}

// sqsLate is what a retry may come late: SQS counts in whole seconds, and what
// is due has to be polled for.
const sqsLate = time.Second + 100*time.Millisecond

// lateness measures how late retries run that wait at the server, while it has
// next to nothing else to do, and how many run early.
func (s *sqsSession) lateness(ctx context.Context) error {
	const messages = 1000
	var p99 []float64
	tooEarly := 0
	for round := range rounds {
		w := newWaits()
		cfg := consumer.Config{Guard: unguarded, Retry: sqsStored, Observers: []consumer.Observer{w}}
		if _, err := s.consume(ctx, fmt.Sprintf("late-%d", round), messages, failOnceAll(cfg)); err != nil {
			return err
		}
		late, stored := w.take()
		if len(late) < messages || stored < messages {
			return fmt.Errorf("%d retries ran and %d were stored, of %d", len(late), stored, messages)
		}
		p99 = append(p99, milliseconds(figure.Quantile(late, 0.99)))
		tooEarly += early(late)
		note("lateness p50 %v, p99 %v", figure.Median(late), figure.Quantile(late, 0.99))
	}
	s.report(figure.Figure{Name: "sqs_late_p99_ms", Value: figure.Median(p99), Unit: "ms", Goal: milliseconds(sqsLate)})
	s.report(figure.Figure{Name: "sqs_early", Value: float64(tooEarly), Unit: "retries", Goal: 0})
	return nil
}

// failOnceAll is redrive with a handler that fails every message once.
func failOnceAll(cfg consumer.Config) sqs.Contender {
	return func(ctx context.Context, w *sqs.World, queue string, n int) (time.Duration, error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var done atomic.Int64
		begin := time.Now()
		err := sqs.Work(ctx, w, cfg, queue, func(ctx context.Context, _ *brokers.Message) error {
			if consumer.MetaFrom(ctx).Attempt == 1 {
				return errBusy
			}
			if done.Add(1) == int64(n) {
				stop()
			}
			return nil
		})
		return time.Since(begin), err
	}
}
