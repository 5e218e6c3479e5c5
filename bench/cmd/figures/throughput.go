package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/rabbitmq"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

const (
	rounds   = 3       // of which the median counts
	backlog  = 100_000 // messages that each contender consumes in a round
	longer   = 200_000 // that those with failures do: retries come half a second later
	slow     = 3_000   // that the slow one consumes
	prefetch = 200     // of redrive and of Watermill where they are tuned
	most     = 2_000   // messages left in a queue whose acks were dropped
)

// contender is who takes part in a round, and how many messages it consumes.
type contender struct {
	name    string
	n       int
	consume rabbitmq.Contender
}

// redriveConfig leaves room to hold short retries of 10 % failures, so that they
// need no shelf: see docs/explanation/rabbitmq.md.
var redriveConfig = consumer.Config{Prefetch: prefetch, MaxHeld: 8000}

var contenders = []contender{
	{"raw", backlog, rabbitmq.Raw(500, 125)},
	{"redrive", backlog, rabbitmq.Redrive(redriveConfig)},
	{"fail0", longer, failing(0)},
	{"fail1", longer, failing(1)},
	{"fail10", longer, failing(10)},
	{"watermill", backlog, rabbitmq.Watermill(prefetch)},
	{"watermill-default", slow, rabbitmq.Watermill(0)},
}

// throughput lets the contenders consume the same messages, one after the
// other, in an order that turns with every round, and compares their rates
// within each round.
func (s *session) throughput(ctx context.Context) error {
	ratios := map[string][]float64{}
	for round := range 2*rounds - 1 { // they are short, and a machine may vary from one to the next
		rates, err := s.round(ctx, round)
		if err != nil {
			return err
		}
		add := func(name string, value, of float64) { ratios[name] = append(ratios[name], value/of) }
		add("rabbitmq_vs_raw", rates["redrive"], rates["raw"])
		add("rabbitmq_vs_watermill", rates["redrive"], rates["watermill"])
		add("rabbitmq_vs_watermill_default", rates["redrive"], rates["watermill-default"])
		add("rabbitmq_fail1", rates["fail1"], rates["fail0"])
		add("rabbitmq_fail10", rates["fail10"], rates["fail0"])
	}
	for _, goal := range []struct {
		name  string
		ratio float64
	}{
		{"rabbitmq_vs_raw", 0.9},
		{"rabbitmq_vs_watermill", 1.6},
		{"rabbitmq_vs_watermill_default", 8},
		{"rabbitmq_fail1", 0.9},
		{"rabbitmq_fail10", 0.6},
	} {
		s.report(figure.Figure{Name: goal.name, Value: figure.Median(ratios[goal.name]), Unit: "ratio", Goal: goal.ratio, AtLeast: true})
	}
	return nil
}

// round returns how many messages a second each contender consumed.
func (s *session) round(ctx context.Context, number int) (map[string]float64, error) {
	byLoad := map[int][]string{}
	var queues []string
	for _, c := range contenders {
		queue := fmt.Sprintf("%s-%d", c.name, number)
		queues = append(queues, queue)
		byLoad[c.n] = append(byLoad[c.n], queue)
	}
	began := time.Now()
	if err := s.world.Declare(ctx, queues...); err != nil {
		return nil, err
	}
	for n, queues := range byLoad {
		if err := s.world.Fill(ctx, n, queues...); err != nil {
			return nil, fmt.Errorf("fill the queues: %w", err)
		}
	}
	note("round %d: queues filled in %v", number+1, time.Since(began))
	// The broker goes on writing for a while, at the cost of who comes first.
	if err := pause(ctx, 5*time.Second, nil); err != nil {
		return nil, err
	}
	rates := map[string]float64{}
	for i := range contenders {
		at := (i + number*2) % len(contenders)
		c := contenders[at]
		took, err := c.consume(ctx, s.world, queues[at], c.n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		// A broker that is busy may drop the last acks of a connection that is closed.
		left, err := s.world.Left(queues[at])
		if err != nil || left > most {
			return nil, fmt.Errorf("%s: %d messages are left in queue %q: %w", c.name, left, queues[at], err)
		}
		rates[c.name] = float64(c.n) / took.Seconds()
		note("round %d: %s %.0f messages/s, %d left", number+1, c.name, rates[c.name], left)
	}
	return rates, nil
}

// failing is redrive with a handler that fails percent of the messages.
func failing(percent uint32) rabbitmq.Contender {
	return func(ctx context.Context, w *rabbitmq.World, queue string, n int) (time.Duration, error) {
		fails := func(m *brokers.Message) bool { return share(m.ID) < percent }
		return failOnce(ctx, n, fails, func(ctx context.Context, h consumer.Handler) error {
			return rabbitmq.Work(ctx, w, redriveConfig, queue, h)
		})
	}
}

// share maps IDs evenly to 0 to 99.
func share(id string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id))
	return h.Sum32() % 100
}
