package metrics_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := must(budget.New(budget.Queue()))
		c := metrics.NewBudget("bank", b)
		limit := float64(b.Snapshot(time.Now()).Limit)
		expect(t, c, map[string]float64{
			"redrive_budget_limit{dependency=bank}":                     limit,
			"redrive_budget_reserved{dependency=bank}":                  0,
			"redrive_budget_left{dependency=bank}":                      limit,
			"redrive_budget_moved_total{dependency=bank}":               0,
			"redrive_budget_backlog_seconds{dependency=bank}":           0,
			"redrive_budget_added_delay_seconds_total{dependency=bank}": 0,
		})
		now := time.Now()
		var last time.Time
		for range 50 {
			last = b.Reserve(now, now)
		}
		want := b.Snapshot(now)
		if !last.After(now) || want.Moved == 0 || want.Added == 0 {
			t.Fatalf("50 retries at once were not spread: %+v", want)
		}
		expect(t, c, map[string]float64{
			"redrive_budget_reserved{dependency=bank}":                  float64(want.Used),
			"redrive_budget_left{dependency=bank}":                      max(0, float64(want.Limit-want.Used)),
			"redrive_budget_moved_total{dependency=bank}":               float64(want.Moved),
			"redrive_budget_added_delay_seconds_total{dependency=bank}": want.Added,
			"redrive_budget_backlog_seconds{dependency=bank}":           want.Furthest.Sub(now).Seconds(),
			"redrive_budget_unpaced_total{dependency=bank}":             0,
		})
	})
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := must(breaker.New(breaker.Config{MinOpen: 10 * time.Second}))
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
		expect(t, c, map[string]float64{"redrive_breaker_next_timestamp_seconds{dependency=bank}": 0})

		for range 20 {
			p, _ := b.Start(time.Now())
			b.Done(time.Now(), p, 0, breaker.Failure, 0)
		}
		expect(t, c, state(breaker.Open))
		expect(t, c, map[string]float64{
			"redrive_breaker_next_timestamp_seconds{dependency=bank}": float64(time.Now().Add(10 * time.Second).Unix()),
			"redrive_breaker_openings{dependency=bank}":               1,
			"redrive_breaker_window_messages{dependency=bank}":        20,
			"redrive_breaker_window_failures{dependency=bank}":        20,
			"redrive_breaker_streak{dependency=bank}":                 20,
		})

		time.Sleep(10 * time.Second)
		b.Start(time.Now())
		expect(t, c, state(breaker.HalfOpen))
		expect(t, c, map[string]float64{"redrive_breaker_probes{dependency=bank}": 1})

		b.Isolate(time.Now(), "maintenance")
		expect(t, c, state(breaker.Isolated))
	})
}
