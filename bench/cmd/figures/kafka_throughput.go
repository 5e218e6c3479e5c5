package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/kafka"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

const (
	kafkaBacklog  = 1_000_000 // messages that each contender consumes in a round
	kafkaPrefetch = 5000      // of redrive
	kafkaHeld     = 50_000    // likewise: what fails in a second at most
)

type kafkaContender struct {
	name    string
	consume kafka.Contender
}

// failingRounds are more than rounds: what 1 % of failures cost is less than by
// how much two rounds differ.
const failingRounds = 7

// throughput compares redrive with its peers.
func (s *kafkaSession) throughput(ctx context.Context) error {
	rates, err := s.compete(ctx, "throughput", rounds, []kafkaContender{
		{"raw-reader", kafka.RawReader(1000)},
		{"redrive", kafka.Redrive(consumer.Config{Prefetch: kafkaPrefetch})},
		{"raw-group", kafka.RawGroup(10<<20, 1000)},
		{"watermill", kafka.Watermill()},
	})
	if err != nil {
		return err
	}
	raw := "raw-reader"
	if figure.Median(rates["raw-group"]) > figure.Median(rates[raw]) {
		raw = "raw-group"
	}
	note("%s: the faster of the raw ones is %s", s.prefix, raw)
	s.ratio("vs_raw", rates["redrive"], rates[raw], 0.9)
	s.ratio("vs_watermill", rates["redrive"], rates["watermill"], 5)
	return nil
}

// failures compares redrive with itself when nothing fails.
func (s *kafkaSession) failures(ctx context.Context) error {
	rates, err := s.compete(ctx, "failures", failingRounds, []kafkaContender{
		{"fail0", kafkaFailing(0)},
		{"fail1", kafkaFailing(1)},
		{"fail10", kafkaFailing(10)},
	})
	if err != nil {
		return err
	}
	s.ratio("fail1", rates["fail1"], rates["fail0"], 0.9)
	s.ratio("fail10", rates["fail10"], rates["fail0"], 0.6)
	return nil
}

// compete lets the contenders consume one topic, one after the other, in an
// order that turns around with every round, and returns their rates.
func (s *kafkaSession) compete(ctx context.Context, topic string, rounds int, contenders []kafkaContender) (map[string][]float64, error) {
	topic, err := s.filled(ctx, topic, kafkaBacklog)
	if err != nil {
		return nil, err
	}
	rates := map[string][]float64{}
	for round := range rounds {
		for _, c := range contenders {
			rate, err := s.consume(ctx, c, topic)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			rates[c.name] = append(rates[c.name], rate)
			note("%s round %d: %s %.0f messages/s", s.prefix, round+1, c.name, rate)
		}
		slices.Reverse(contenders)
	}
	return rates, nil
}

// ratio reports the median of the ratios within the rounds.
func (s *kafkaSession) ratio(name string, of, to []float64, goal float64) {
	ratios := make([]float64, len(of))
	for round := range of {
		ratios[round] = of[round] / to[round]
	}
	s.report(figure.Figure{Name: s.prefix + "_" + name, Value: figure.Median(ratios), Unit: "ratio", Goal: goal, AtLeast: true})
}

// filled makes a topic of n messages.
func (s *kafkaSession) filled(ctx context.Context, topic string, n int) (string, error) {
	topic, err := s.world.Declare(ctx, topic)
	if err != nil {
		return "", err
	}
	return topic, s.world.Fill(ctx, topic, n)
}

// consume returns how many messages a second a contender handles the second
// time. While it does so first, for a second or two, its heap grows, and every
// page of that costs as much as some messages: a worker has that once.
func (s *kafkaSession) consume(ctx context.Context, c kafkaContender, topic string) (float64, error) {
	if _, err := s.consumeOnce(ctx, c, topic); err != nil {
		return 0, err
	}
	return s.consumeOnce(ctx, c, topic)
}

// consumeOnce returns how many messages a second a contender handles, whose
// group has committed them all in the end but a few.
func (s *kafkaSession) consumeOnce(ctx context.Context, c kafkaContender, topic string) (float64, error) {
	group := s.world.Group()
	took, err := c.consume(ctx, s.world, group, topic, kafkaBacklog)
	if err != nil {
		return 0, err
	}
	committed, err := s.world.Committed(ctx, group, topic)
	if err != nil || committed < kafkaBacklog*99/100 {
		return 0, fmt.Errorf("%d of %d messages are committed: %w", committed, kafkaBacklog, err)
	}
	return kafkaBacklog / took.Seconds(), nil
}

// kafkaFailing is redrive with a handler that fails percent of the messages,
// for which it looks at each.
func kafkaFailing(percent uint64) kafka.Contender {
	return func(ctx context.Context, w *kafka.World, group, topic string, n int) (time.Duration, error) {
		fails := func(m *brokers.Message) bool { return spread(kafka.Number(m.Body))%100 < percent }
		return failOnce(ctx, n, fails, func(ctx context.Context, h consumer.Handler) error {
			return kafka.Work(ctx, w, consumer.Config{Prefetch: kafkaPrefetch, MaxHeld: kafkaHeld}, group, topic, h)
		})
	}
}

// spread maps numbers that follow each other to ones that do not.
func spread(n int) uint64 { return uint64(n) * 0x9E3779B97F4A7C15 >> 32 }
