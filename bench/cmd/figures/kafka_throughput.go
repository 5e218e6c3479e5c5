package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/bench/kafka"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/internal/figure"
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

// throughput lets the contenders consume the same topic, one after the other,
// in an order that turns with every round, and compares their rates within
// each round.
func (s *kafkaSession) throughput(ctx context.Context, withFailures bool) error {
	contenders := []kafkaContender{
		{"raw-reader", kafka.RawReader(1000)},
		{"redrive", kafka.Redrive(consumer.Config{Prefetch: kafkaPrefetch})},
		{"raw-group", kafka.RawGroup(10<<20, 1000)},
	}
	if withFailures {
		contenders = append(contenders, kafkaContender{"fail0", kafkaFailing(0)}, kafkaContender{"fail1", kafkaFailing(1)}, kafkaContender{"fail10", kafkaFailing(10)})
	}
	contenders = append(contenders, kafkaContender{"watermill", kafka.Watermill()})
	topic, err := s.filled(ctx, "throughput", kafkaBacklog)
	if err != nil {
		return err
	}
	rates := map[string][]float64{}
	for round := range rounds {
		for i := range contenders {
			c := contenders[(i+round*2)%len(contenders)]
			rate, err := s.consume(ctx, c, topic)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			rates[c.name] = append(rates[c.name], rate)
			note("%s round %d: %s %.0f messages/s", s.prefix, round+1, c.name, rate)
		}
	}
	raw := "raw-reader"
	if figure.Median(rates["raw-group"]) > figure.Median(rates[raw]) {
		raw = "raw-group"
	}
	note("%s: the faster of the raw ones is %s", s.prefix, raw)
	for _, goal := range []struct {
		name, of, to string
		ratio        float64
	}{
		{"vs_raw", "redrive", raw, 0.9},
		{"vs_watermill", "redrive", "watermill", 5},
		{"fail1", "fail1", "fail0", 0.9},
		{"fail10", "fail10", "fail0", 0.6},
	} {
		if rates[goal.of] == nil {
			continue
		}
		var ratios []float64
		for round, rate := range rates[goal.of] {
			ratios = append(ratios, rate/rates[goal.to][round])
		}
		s.report(figure.Figure{Name: s.prefix + "_" + goal.name, Value: figure.Median(ratios), Unit: "ratio", Goal: goal.ratio, AtLeast: true})
	}
	return nil
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
			return kafka.Work(ctx, w, consumer.Config{Prefetch: kafkaPrefetch, MaxHeld: kafkaHeld, Restraint: unrestrained}, group, topic, h)
		})
	}
}

// spread maps numbers that follow each other to ones that do not.
func spread(n int) uint64 { return uint64(n) * 0x9E3779B97F4A7C15 >> 32 }
