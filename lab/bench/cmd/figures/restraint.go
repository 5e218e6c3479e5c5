package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/redisbudget"
	"github.com/redrive-go/redrive/retry/flow"
)

// restraint measures what guards cost. What they are worth is in package
// gallery.
func restraint(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	return []figure.Measurement{
		{Name: "budget", Run: withdrawal, Figures: []*figure.Figure{
			figure.AtMost("budget_ns", "ns/retry", 100),
			figure.AtMost("budget_allocs", "allocs/retry", 0),
		}},
		{Name: "guard", Run: permission, Figures: []*figure.Figure{
			figure.AtMost("guard_ns", "ns/run", 50),
			figure.AtMost("guard_allocs", "allocs/run", 0),
		}},
		{Name: "metrics", Run: observation, Figures: []*figure.Figure{
			figure.AtMost("metrics_ns", "ns/message", 150),
			figure.AtMost("metrics_allocs", "allocs/message", 0),
		}},
		{Name: "a budget on Redis", Run: roundTrips, Figures: []*figure.Figure{
			figure.AtMost("fleet_round_trips_per_retry", "round trips/retry", 0.01),
		}},
	}, nil, nil
}

// withdrawal measures the token of a retry that succeeds, for a busy dependency.
func withdrawal(_ context.Context, s *figure.Samples) error {
	b, err := budget.New(budget.Queue())
	if err != nil {
		return err
	}
	now := time.Now()
	n := 0
	result := benchmark(func() {
		now = now.Add(time.Millisecond)
		if n++; n%100 == 0 {
			b.Deposit(now, 2000) // 20 a millisecond
		}
		if _, ok := b.Withdraw(now, time.Minute, 0.5); ok {
			b.Refund(now)
		}
	})
	s.Add("budget_ns", result.nanos)
	s.Add("budget_allocs", result.allocs)
	return nil
}

// permission measures what a guard costs a run that succeeds: the question whether
// it may start, and the report of how it ended.
func permission(_ context.Context, s *figure.Samples) error {
	limiter := flow.New(10, func() float64 { return 0.5 })
	now, who := time.Now(), uint64(0)
	run := func(o flow.Outcome) {
		who++
		now = now.Add(time.Millisecond)
		limiter.Start(now)
		limiter.Done(now, flow.End{Began: now.Add(-time.Millisecond), Who: who, Outcome: o})
	}
	check := benchmark(func() { run(flow.Success) })
	s.Add("guard_ns", check.nanos)
	s.Add("guard_allocs", check.allocs)
	mixed := benchmark(func() {
		if who%20 == 0 {
			run(flow.Overload)
			return
		}
		run(flow.Success)
	})
	figure.Note("where one run in 20 fails, a run costs the guard %.0f ns", mixed.nanos)
	return nil
}

// observation measures all events of a message that succeeds at once.
func observation(_ context.Context, s *figure.Samples) error {
	m, err := metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "refunds"})
	if err != nil {
		return err
	}
	var observer consumer.Observer = m
	event := consumer.Event{Time: time.Now(), Topic: "orders", Message: &brokers.Message{ID: "4711", Topic: "orders"}, Attempt: 1}
	kinds := []string{consumer.EventReceived, consumer.EventStarted, consumer.EventSucceeded, consumer.EventSettled}
	ctx := context.Background()
	result := benchmark(func() {
		for _, kind := range kinds {
			event.Kind, event.Duration = kind, 12*time.Millisecond
			observer.Observe(ctx, event)
		}
	})
	s.Add("metrics_ns", result.nanos)
	s.Add("metrics_allocs", result.allocs)
	return nil
}

// benchmark returns what one call of work costs in the best tenth of many short
// rounds: whatever else the machine does makes others longer.
func benchmark(work func()) cost {
	const rounds, calls = 300, 10_000
	var nanos []float64
	for range rounds {
		start := time.Now()
		for range calls {
			work()
		}
		nanos = append(nanos, float64(time.Since(start).Nanoseconds())/calls)
	}
	return cost{figure.Quantile(nanos, 0.1), testing.AllocsPerRun(calls, work)}
}

const redisEnv = "REDRIVE_REDIS_URL"

// onRedis returns a client, which has not called.
func onRedis() (*redis.Client, error) {
	url, err := brokerAt(redisEnv)
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.ContextTimeoutEnabled = true
	return redis.NewClient(options), nil
}

// roundTrips has a fleet at load share a budget in Redis.
func roundTrips(ctx context.Context, s *figure.Samples) error {
	const (
		workers  = 20
		settling = 30 * time.Second
		measured = 20 * time.Second
	)
	client, err := onRedis()
	if err != nil {
		return err
	}
	defer client.Close()
	config := redisbudget.Config{Name: fmt.Sprintf("figures-%d", time.Now().UnixNano()), Budget: budget.Queue(), Workers: workers}
	fleet := make([]*redisbudget.Budget, workers)
	for i := range fleet {
		if fleet[i], err = redisbudget.New(client, config); err != nil {
			return err
		}
	}
	if err := load(ctx, fleet, settling); err != nil {
		return err
	}
	for i, b := range fleet {
		if status := b.Status(time.Now()); !status.Fleet {
			return fmt.Errorf("worker %d does not use the pool after %v: %w", i, settling, status.Err)
		}
	}
	retriesBefore, tripsBefore := count(fleet)
	if err := load(ctx, fleet, measured); err != nil {
		return err
	}
	retries, trips := count(fleet)
	s.Add("fleet_round_trips_per_retry", float64(trips-tripsBefore)/float64(retries-retriesBefore))
	return nil
}

// load gives each worker 1000 deliveries and 100 retries a second.
func load(ctx context.Context, fleet []*redisbudget.Budget, d time.Duration) error {
	const step = 50 * time.Millisecond
	const deliveries, retries = 50, 5 // in a step
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := pause(ctx, step); err != nil {
			return err
		}
		for _, b := range fleet {
			now := time.Now()
			b.Deposit(now, deliveries)
			for range retries {
				if _, ok := b.Withdraw(now, time.Minute, 0.5); ok {
					b.Refund(now)
				}
			}
		}
	}
	return nil
}

func count(fleet []*redisbudget.Budget) (retries, trips uint64) {
	for _, b := range fleet {
		now := time.Now()
		retries, trips = retries+b.Snapshot(now).Granted, trips+b.Status(now).RoundTrips
	}
	return retries, trips
}
