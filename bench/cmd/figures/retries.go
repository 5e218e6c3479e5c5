package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/rabbitmq"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// beyondHold is a delay that no worker waits for in process by default.
const beyondHold = 2100 * time.Millisecond

// waits observes when retries were due and when they ran. The due time is the
// failure plus the decided delay, and not what the message carried.
type waits struct {
	mu     sync.Mutex
	due    map[string]time.Time
	stored int             // retries that went to the broker
	late   []time.Duration // negative for those that ran early
}

func newWaits() *waits { return &waits{due: map[string]time.Time{}} }

// Observe implements consumer.Observer.
func (w *waits) Observe(_ context.Context, e consumer.Event) {
	switch e.Kind {
	case consumer.EventFailed, consumer.EventRetried, consumer.EventStarted:
	default:
		return
	}
	e.Time = e.Time.Round(0) // by the clock that due times are of, which may be adjusted meanwhile
	w.mu.Lock()
	defer w.mu.Unlock()
	switch id := e.Message.ID; e.Kind {
	case consumer.EventFailed:
		w.due[id] = e.Time.Add(e.Decision.Delay)
	case consumer.EventRetried:
		w.stored++
	case consumer.EventStarted:
		if due, ok := w.due[id]; ok {
			w.late = append(w.late, e.Time.Sub(due))
			delete(w.due, id)
		}
	}
}

// take returns what was observed since the last call.
func (w *waits) take() (late []time.Duration, stored int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late, stored = w.late, w.stored
	w.late, w.stored = nil, 0
	return late, stored
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func early(late []time.Duration) (n int) {
	for _, d := range late {
		if d < 0 {
			n++
		}
	}
	return n
}

// lateness measures how late retries run that the broker stores, while it has
// next to nothing else to do, and how many run early.
func (s *session) lateness(ctx context.Context) error {
	const messages = 400
	var p99 []float64
	tooEarly := 0
	for round := range rounds {
		queue := fmt.Sprintf("late-%d", round)
		late, err := s.failOnce(ctx, queue, messages)
		if err != nil {
			return err
		}
		p99 = append(p99, milliseconds(figure.Quantile(late, 0.99)))
		tooEarly += early(late)
		note("lateness p50 %v, p99 %v", figure.Median(late), figure.Quantile(late, 0.99))
	}
	s.report(figure.Figure{Name: "rabbitmq_late_p99_ms", Value: figure.Median(p99), Unit: "ms", Goal: 10})
	s.report(figure.Figure{Name: "rabbitmq_early", Value: float64(tooEarly), Unit: "retries", Goal: 0})
	return nil
}

// failOnce lets n messages fail once and come back after 2.1 to 5 s.
func (s *session) failOnce(ctx context.Context, queue string, n int) ([]time.Duration, error) {
	if err := errors.Join(s.world.Declare(ctx, queue), s.world.Fill(ctx, n, queue)); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWaits()
	var mu sync.Mutex
	done := 0
	cfg := consumer.Config{
		Guard:     unguarded,
		Retry:     retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: beyondHold}},
		Observers: []consumer.Observer{w},
	}
	err := rabbitmq.Work(ctx, s.world, cfg, queue, func(ctx context.Context, _ *brokers.Message) error {
		if consumer.MetaFrom(ctx).Attempt == 1 {
			return errBusy
		}
		mu.Lock()
		defer mu.Unlock()
		if done++; done == n {
			stop()
		}
		return nil
	})
	late, stored := w.take()
	if err == nil && (len(late) < n || stored < n) {
		err = fmt.Errorf("%d retries ran and %d were stored, of %d: %w", len(late), stored, n, context.Cause(ctx))
	}
	return late, err
}

// sustained lets messages go round between worker and broker: each run fails,
// and each retry is stored for 2.1 to 4 s. More and more messages do so, until
// the retries come late.
func (s *session) sustained(ctx context.Context) error {
	const (
		first     = 4500 // retries per second in the first window
		step      = 100  // that each window adds
		most      = 6000
		settling  = 5 * time.Second
		window    = 4 * time.Second
		tolerated = 100 * time.Millisecond
	)
	const queue = "sustained"
	if err := s.world.Declare(ctx, queue); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWaits()
	policy := retry.Policy{MaxAttempts: 1000, Backoff: retry.Backoff{Base: 4 * time.Second, Cap: 4 * time.Second, Floor: beyondHold}}
	rules := consumer.Config{Guard: unguarded, Prefetch: prefetch, MaxHeld: 4000, Retry: policy, Observers: []consumer.Observer{w}}
	busy := classify.Transient(errBusy) // an error of no known class ends after six attempts
	worker := make(chan error, 1)
	go func() {
		worker <- rabbitmq.Work(ctx, s.world, rules, queue, func(context.Context, *brokers.Message) error { return busy })
	}()
	cycle := (beyondHold + 4*time.Second) / 2
	best, bestLate, tooEarly := 0.0, 0.0, 0
	before := 0
	for load, late := first, 0; load <= most && late < 4; load += step {
		if err := s.world.Fill(ctx, int(float64(load-before)*cycle.Seconds()), queue); err != nil {
			return err
		}
		before = load
		if err := pause(ctx, settling, worker); err != nil {
			return err
		}
		w.take()
		began := time.Now()
		if err := pause(ctx, window, worker); err != nil {
			return err
		}
		delays, _ := w.take()
		rate := float64(len(delays)) / time.Since(began).Seconds()
		p99 := figure.Quantile(append(delays, 0), 0.99)
		tooEarly += early(delays)
		least := slices.Min(append(delays, 0))
		note("%d retries/s offered: %.0f/s, lateness p50 %v, p99 %v, least %v", load, rate, figure.Median(append(delays, 0)), p99, least)
		if p99 > tolerated {
			late++
			continue
		}
		late = 0
		best, bestLate = rate, milliseconds(p99)
	}
	stop()
	s.report(figure.Figure{Name: "rabbitmq_retries_per_s", Value: best, Unit: "retries/s", Goal: 5000, AtLeast: true})
	s.report(figure.Figure{Name: "rabbitmq_retries_late_p99_ms", Value: bestLate, Unit: "ms", Goal: milliseconds(tolerated)})
	if err := <-worker; err != nil {
		return err
	}
	if tooEarly > 0 {
		return fmt.Errorf("%d retries ran early", tooEarly)
	}
	return nil
}

// pause waits, unless ctx or the worker ends before.
func pause(ctx context.Context, d time.Duration, worker <-chan error) error {
	select {
	case <-time.After(d):
		return nil
	case err := <-worker:
		return fmt.Errorf("the worker ended: %w", err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
