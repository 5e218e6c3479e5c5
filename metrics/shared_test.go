package metrics_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := must(budget.New(budget.Queue()))
		c := metrics.NewBudget("bank", b)
		full := b.Snapshot(time.Now())
		expect(t, c, map[string]float64{
			"redrive_budget_tokens{dependency=bank}":              full.Capacity,
			"redrive_budget_capacity{dependency=bank}":            full.Capacity,
			"redrive_budget_limit{dependency=bank}":               full.Limit,
			"redrive_budget_waiting{dependency=bank}":             0,
			"redrive_budget_granted_total{dependency=bank}":       0,
			"redrive_budget_refunded_total{dependency=bank}":      0,
			"redrive_budget_deferred_total{dependency=bank}":      0,
			"redrive_budget_waits_seconds_total{dependency=bank}": 0,
		})
		now := time.Now()
		for range 50 {
			b.Withdraw(now, time.Minute, 0.5)
		}
		b.Refund(now)
		want := b.Snapshot(now)
		if want.Granted == 0 || want.Deferred == 0 || want.Waits == 0 || want.Waiting == 0 {
			t.Fatalf("50 retries at once were not told to wait: %+v", want)
		}
		expect(t, c, map[string]float64{
			"redrive_budget_tokens{dependency=bank}":              want.Tokens,
			"redrive_budget_capacity{dependency=bank}":            want.Capacity,
			"redrive_budget_limit{dependency=bank}":               want.Limit,
			"redrive_budget_waiting{dependency=bank}":             float64(want.Waiting),
			"redrive_budget_granted_total{dependency=bank}":       float64(want.Granted),
			"redrive_budget_refunded_total{dependency=bank}":      1,
			"redrive_budget_deferred_total{dependency=bank}":      float64(want.Deferred),
			"redrive_budget_waits_seconds_total{dependency=bank}": want.Waits,
		})
	})
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := flow.New(10, func() float64 { return 0.5 })
		c := metrics.NewLimiter("bank", l)
		want := map[string]float64{
			"redrive_limit{dependency=bank}":                  5,
			"redrive_limit_slots{dependency=bank}":            10,
			"redrive_limit_running{dependency=bank}":          0,
			"redrive_limit_interval_seconds{dependency=bank}": 0,
			"redrive_limit_sampled{dependency=bank}":          0,
			"redrive_limit_failing{dependency=bank}":          0,
			"redrive_limit_paused{dependency=bank}":           0,
		}
		expect(t, c, want)
		for who := range uint64(20) {
			began := time.Now()
			l.Start(began)
			time.Sleep(2 * time.Second)
			l.Done(time.Now(), flow.End{Began: began, Who: who, Outcome: flow.Overload})
		}
		l.Adjust(time.Now(), flow.Change{Pause: "maintenance"})
		now := l.Adjust(time.Now(), flow.Change{})
		if now.Limit >= 1 || now.Interval == 0 {
			t.Fatalf("20 failures left %+v", now)
		}
		want["redrive_limit{dependency=bank}"] = now.Limit
		want["redrive_limit_interval_seconds{dependency=bank}"] = now.Interval.Seconds()
		want["redrive_limit_sampled{dependency=bank}"] = 20
		want["redrive_limit_failing{dependency=bank}"] = 20
		want["redrive_limit_paused{dependency=bank}"] = 1
		expect(t, c, want)
	})
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Config{Random: func() float64 { return 0.5 }})
		c := metrics.NewBreaker("bank", b)
		state := func(now breaker.State) map[string]float64 {
			want := map[string]float64{}
			for _, s := range []breaker.State{breaker.Closed, breaker.Open, breaker.HalfOpen, breaker.Isolated} {
				want["redrive_breaker_state{dependency=bank,state="+s.String()+"}"] = 0
			}
			want["redrive_breaker_state{dependency=bank,state="+now.String()+"}"] = 1
			return want
		}
		expect(t, c, state(breaker.Closed))
		expect(t, c, map[string]float64{
			"redrive_breaker_next_timestamp_seconds{dependency=bank}": 0,
			"redrive_breaker_limit{dependency=bank}":                  math.Inf(1),
		})

		for range 20 {
			began := time.Now()
			if ok, _ := b.Start(began); ok {
				time.Sleep(time.Millisecond)
				b.Done(time.Now(), began, 0, flow.Overload)
			}
		}
		now := b.Snapshot(time.Now())
		if now.Messages == 0 || now.Limit >= 1 {
			t.Fatalf("failures left %+v", now)
		}
		expect(t, c, state(breaker.Open))
		expect(t, c, map[string]float64{
			"redrive_breaker_next_timestamp_seconds{dependency=bank}": float64(now.Next.UnixNano()) / 1e9,
			"redrive_breaker_limit{dependency=bank}":                  now.Limit,
			"redrive_breaker_window_messages{dependency=bank}":        float64(now.Messages),
			"redrive_breaker_window_failures{dependency=bank}":        float64(now.Failures),
		})

		time.Sleep(time.Until(now.Next))
		expect(t, c, state(breaker.HalfOpen))

		b.Isolate("maintenance")
		expect(t, c, state(breaker.Isolated))
	})
}
