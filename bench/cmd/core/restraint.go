package main

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/redisbudget"
)

// restraint measures what guards cost. What they are worth is in package
// gallery.
func restraint(report func(figure.Figure)) error {
	if err := withdrawal(report); err != nil {
		return err
	}
	if err := permission(report); err != nil {
		return err
	}
	if err := observation(report); err != nil {
		return err
	}
	if err := roundTrips(report); err != nil {
		return fmt.Errorf("a budget on Redis: %w", err)
	}
	return nil
}

// withdrawal measures the token of a retry that succeeds, for a busy dependency.
func withdrawal(report func(figure.Figure)) error {
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
	report(figure.Figure{Name: "budget_ns", Value: result.nanos, Unit: "ns/retry", Goal: 100})
	report(figure.Figure{Name: "budget_allocs", Value: result.allocs, Unit: "allocs/retry", Goal: 0})
	return nil
}

// permission measures what a guard costs a run that succeeds: the leave to start
// by both of its breakers, and the reports of how it ended.
func permission(report func(figure.Figure)) error {
	health, err := breaker.New(breaker.Config{})
	if err != nil {
		return err
	}
	poison, err := breaker.New(breaker.Config{Window: 100, Ratio: 0.95, Streak: 60})
	if err != nil {
		return err
	}
	now, of := time.Now(), uint64(0)
	run := func(o breaker.Outcome) {
		of++
		first, _ := health.Start(now)
		second, _ := poison.Start(now)
		health.Done(now, first, of, o, 0.5)
		poison.Done(now, second, of, o, 0.5)
	}
	check := benchmark(func() { run(breaker.Success) })
	report(figure.Figure{Name: "guard_ns", Value: check.nanos, Unit: "ns/run", Goal: 50})
	report(figure.Figure{Name: "guard_allocs", Value: check.allocs, Unit: "allocs/run", Goal: 0})
	mixed := benchmark(func() {
		if of%20 == 0 {
			run(breaker.Failure)
			return
		}
		run(breaker.Success)
	})
	note("where one run in 20 fails, a run costs the guard %.0f ns", mixed.nanos)
	return nil
}

// observation measures all events of a message that succeeds at once.
func observation(report func(figure.Figure)) error {
	m, err := metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "refunds"})
	if err != nil {
		return err
	}
	var observer consumer.Observer = m
	event := consumer.Event{Time: time.Now(), Topic: "orders", Message: &brokers.Message{ID: "4711", Topic: "orders"}, Attempt: 1}
	kinds := []consumer.EventKind{consumer.EventReceived, consumer.EventStarted, consumer.EventSucceeded, consumer.EventAcked}
	ctx := context.Background()
	result := benchmark(func() {
		for _, kind := range kinds {
			event.Kind, event.Duration = kind, 12*time.Millisecond
			observer.Observe(ctx, event)
		}
	})
	report(figure.Figure{Name: "metrics_ns", Value: result.nanos, Unit: "ns/message", Goal: 150})
	report(figure.Figure{Name: "metrics_allocs", Value: result.allocs, Unit: "allocs/message", Goal: 0})
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

// roundTrips has a fleet at load share a budget in Redis.
func roundTrips(report func(figure.Figure)) error {
	const settling, measured = 30 * time.Second, 20 * time.Second
	url := os.Getenv(redisEnv)
	if url == "" {
		return fmt.Errorf("%s is not set: start a redis-server, and set it to redis://host:port", redisEnv)
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	fleet, err := newFleet(client, 20)
	if err != nil {
		return err
	}
	fleet.load(settling)
	for i, b := range fleet {
		if s := b.Status(time.Now()); !s.Fleet {
			return fmt.Errorf("worker %d does not use the pool after %v: %w", i, settling, s.Err)
		}
	}
	retriesBefore, tripsBefore := fleet.count()
	fleet.load(measured)
	retries, trips := fleet.count()
	report(figure.Figure{
		Name: "fleet_round_trips_per_retry", Value: float64(trips-tripsBefore) / float64(retries-retriesBefore),
		Unit: "round trips/retry", Goal: 0.01,
	})
	return nil
}

// fleet is workers that share a budget.
type fleet []*redisbudget.Budget

func newFleet(client redis.UniversalClient, workers int) (f fleet, err error) {
	config := redisbudget.Config{Name: fmt.Sprintf("figures-%d", time.Now().UnixNano()), Budget: budget.Queue(), Workers: workers}
	f = make(fleet, workers)
	for i := range f {
		if f[i], err = redisbudget.New(client, config); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// load gives each worker 1000 deliveries and 100 retries a second.
func (f fleet) load(d time.Duration) {
	const step = 50 * time.Millisecond
	const deliveries, retries = 50, 5 // in a step
	tick := time.NewTicker(step)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		for _, b := range f {
			now := time.Now()
			b.Deposit(now, deliveries)
			for range retries {
				if _, ok := b.Withdraw(now, time.Minute, 0.5); ok {
					b.Refund(now)
				}
			}
		}
	}
}

func (f fleet) count() (retries, trips uint64) {
	for _, b := range f {
		now := time.Now()
		retries, trips = retries+b.Snapshot(now).Granted, trips+b.Status(now).RoundTrips
	}
	return retries, trips
}
