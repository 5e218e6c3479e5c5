package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/sqs"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

const (
	sqsBacklog = 100_000 // messages that each contender consumes in a round
	sqsSlow    = 20_000  // that the slow one consumes
	sqsSlower  = 4_000   // that the slowest one consumes
)

// sqsConfig is redrive's: ten handlers, room for what 32 polls bring and what
// waits for its deletion, and room to hold the retries of 10 % failures.
var sqsConfig = consumer.Config{Prefetch: 800, MaxHeld: 8000}

type sqsContender struct {
	name    string
	n       int
	consume sqs.Contender
}

// throughput lets the contenders consume the same messages, one after the
// other, in an order that changes with every round, and compares their rates
// within each round.
func (s *sqsSession) throughput(ctx context.Context) error {
	contenders := []sqsContender{
		{"raw-8", sqsBacklog, sqs.Raw(8)},
		{"redrive", sqsBacklog, sqs.Redrive(sqsConfig)},
		{"raw-32", sqsBacklog, sqs.Raw(32)},
		{"fail1", sqsBacklog, sqsFailing(sqsConfig, 1)},
		{"raw-16", sqsBacklog, sqs.Raw(16)},
		{"fail10", sqsBacklog, sqsFailing(sqsConfig, 10)},
		{"watermill", sqsSlow, sqs.Watermill(10, 8)},
		{"watermill-default", sqsSlower, sqs.Watermill(0, 0)},
	}
	// A server that has just started gets faster for minutes, each contender's
	// requests by themselves, at the cost of who comes first.
	for _, c := range contenders[:3] {
		if _, err := s.consume(ctx, "warm-up-"+c.name, sqsBacklog, c.consume); err != nil {
			return err
		}
	}
	rates := map[string][]float64{}
	var calls []float64
	for round := range 2*rounds - 1 {
		for i := range contenders {
			c := contenders[turn(i, round, len(contenders))]
			r, err := s.consume(ctx, fmt.Sprintf("%s-%d", c.name, round), c.n, c.consume)
			if err != nil {
				return err
			}
			rates[c.name] = append(rates[c.name], r.rate)
			if c.name == "redrive" {
				calls = append(calls, r.calls/sqsBacklog)
			}
		}
	}
	raw := "raw-8"
	for _, other := range []string{"raw-16", "raw-32"} {
		if figure.Median(rates[other]) > figure.Median(rates[raw]) {
			raw = other
		}
	}
	note("the fastest of the raw ones is %s", raw)
	for _, goal := range []struct {
		name, of, to string
		ratio        float64
	}{
		{"sqs_vs_raw", "redrive", raw, 0.9},
		{"sqs_vs_watermill_default", "redrive", "watermill-default", 10},
		{"sqs_vs_watermill", "redrive", "watermill", 2.5},
		{"sqs_fail1", "fail1", "redrive", 0.9},
		{"sqs_fail10", "fail10", "redrive", 0.6},
	} {
		var ratios []float64
		for round, rate := range rates[goal.of] {
			ratios = append(ratios, rate/rates[goal.to][round])
		}
		s.report(figure.Figure{Name: goal.name, Value: figure.Median(ratios), Unit: "ratio", Goal: goal.ratio, AtLeast: true})
	}
	s.report(figure.Figure{Name: "sqs_calls_per_message", Value: figure.Median(calls), Unit: "calls", Goal: 0.25})
	return nil
}

// turn says who of n is the one at a place in a round: who comes first changes,
// and every other round goes backwards, so that nobody always follows the same.
func turn(place, round, n int) int {
	if round%2 == 1 {
		place = n - 1 - place
	}
	return (place + 2*round) % n
}

// sqsFailing is redrive with a handler that fails percent of the messages when
// it sees them first.
func sqsFailing(cfg consumer.Config, percent uint64) sqs.Contender {
	return func(ctx context.Context, w *sqs.World, queue string, n int) (time.Duration, error) {
		fails := func(m *brokers.Message) bool { return spread(sqs.Number(m.Body))%100 < percent }
		return failOnce(ctx, n, fails, func(ctx context.Context, h consumer.Handler) error {
			return sqs.Work(ctx, w, cfg, queue, h)
		})
	}
}
