package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/sqs"
	"github.com/redrive-go/redrive/retry"
)

const sqsEnv = "REDRIVE_SQS_URL"

// sqsLate is what a retry may come late: SQS counts in whole seconds, and what
// is due has to be polled for.
const sqsLate = time.Second + 100*time.Millisecond

// sqsSession is one run of the command on one server.
type sqsSession struct{ world *sqs.World }

// sqsArea measures the adapter on an ElasticMQ.
func sqsArea(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	endpoint, err := brokerAt(sqsEnv)
	if err != nil {
		return nil, nil, err
	}
	s := &sqsSession{sqs.NewWorld(endpoint)}
	return []figure.Measurement{
		{Name: "throughput", Limit: 25 * time.Minute, Run: s.throughput, Figures: []*figure.Figure{
			figure.AtLeast("sqs_vs_raw", "ratio", 0.9),
			figure.AtLeast("sqs_vs_watermill_default", "ratio", 10),
			figure.AtLeast("sqs_vs_watermill", "ratio", 2.5),
			figure.AtLeast("sqs_fail1", "ratio", 0.9),
			figure.AtLeast("sqs_fail10", "ratio", 0.6),
			figure.AtMost("sqs_calls_per_message", "calls", 0.25),
		}},
		{Name: "defaults", Run: s.defaults, Figures: []*figure.Figure{figure.AtLeast("sqs_default_vs_raw", "ratio", 0.9)}},
		{Name: "calls of retries", Run: s.retries, Figures: []*figure.Figure{figure.AtMost("sqs_calls_per_retry", "calls", 0.35)}},
		{Name: "lateness", Run: punctuality(s.world, sqsStored, "sqs", 3, 1000), Figures: []*figure.Figure{
			figure.AtMost("sqs_late_p99_ms", "ms", milliseconds(sqsLate)),
			figure.AtMost("sqs_early", "retries", 0),
		}},
	}, s.world.Close, nil
}

// sqsConfig is redrive's: ten handlers, room for what 32 polls bring and what
// waits for its deletion, and room to hold the retries of 10 % failures.
var sqsConfig = consumer.Config{Prefetch: 800, MaxHeld: 8000}

// sqsStored has every retry wait at the server, for 2.1 to 5 s.
var sqsStored = consumer.Config{
	Guard: unguarded, Prefetch: sqsConfig.Prefetch, MaxHeld: sqsConfig.MaxHeld,
	Retry: retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: beyondHold}},
}

// throughput lets the contenders consume the same messages, and compares their
// rates within each round.
func (s *sqsSession) throughput(ctx context.Context, samples *figure.Samples) error {
	const (
		rounds  = 5
		backlog = 100_000
		slow    = 20_000 // of Watermill
		slower  = 4_000  // of its default
	)
	entrants := []entrant{
		{"raw-8", backlog, s.world.Raw(8).Time},
		{"redrive", backlog, contender.Redrive(s.world, sqsConfig).Time},
		{"raw-32", backlog, s.world.Raw(32).Time},
		{"fail1", backlog, failing(s.world, sqsConfig, 1)},
		{"raw-16", backlog, s.world.Raw(16).Time},
		{"fail10", backlog, failing(s.world, sqsConfig, 10)},
		{"watermill", slow, s.world.Watermill(10, 8).Time},
		{"watermill-default", slower, s.world.Watermill(1, 1).Time},
	}
	// A server that has just started gets faster for minutes, each contender's
	// requests by themselves, at the cost of who comes first.
	for _, e := range entrants[:3] {
		if _, _, err := s.consume(ctx, "warm-up", e); err != nil {
			return err
		}
	}
	all, err := contest(ctx, rounds, entrants, unprepared, func(round int, e entrant) (float64, error) {
		rate, calls, err := s.consume(ctx, fmt.Sprint(round), e)
		if e.name == "redrive" && err == nil {
			samples.Add("sqs_calls_per_message", calls)
		}
		return rate, err
	})
	raw := all.fastest("raw-8", "raw-16", "raw-32")
	figure.Note("the fastest of the raw ones is %s", raw)
	all.compare(samples, "sqs_vs_raw", "redrive", raw)
	all.compare(samples, "sqs_vs_watermill_default", "redrive", "watermill-default")
	all.compare(samples, "sqs_vs_watermill", "redrive", "watermill")
	all.compare(samples, "sqs_fail1", "fail1", "redrive")
	all.compare(samples, "sqs_fail10", "fail10", "redrive")
	return err
}

// defaults compares redrive on its default Config with a loop of eight polls.
func (s *sqsSession) defaults(ctx context.Context, samples *figure.Samples) error {
	const backlog = 30_000
	all, err := contest(ctx, 5, []entrant{
		{"raw", backlog, s.world.Raw(8).Time},
		{"redrive-default", backlog, contender.Redrive(s.world, consumer.Config{}).Time},
	}, unprepared, func(round int, e entrant) (float64, error) {
		rate, _, err := s.consume(ctx, fmt.Sprint("default-", round), e)
		return rate, err
	})
	all.compare(samples, "sqs_default_vs_raw", "redrive-default", "raw")
	return err
}

// retries counts the calls that a retry takes which waits at the server: those
// of a run in which every message fails once, less those of one without.
func (s *sqsSession) retries(ctx context.Context, samples *figure.Samples) error {
	const messages = 5000 // ElasticMQ sorts all that are left with every retry
	for round := range 3 {
		_, without, err := s.consume(ctx, fmt.Sprint(round), entrant{"plain", messages, failing(s.world, sqsStored, 0)})
		if err != nil {
			return err
		}
		_, with, err := s.consume(ctx, fmt.Sprint(round), entrant{"retried", messages, failing(s.world, sqsStored, 100)})
		if err != nil {
			return err
		}
		samples.Add("sqs_calls_per_retry", with-without)
	}
	return nil
}

// consume fills a queue of its own for e, and deletes it afterwards: the server
// has everything in memory. It returns the calls for each message, too.
func (s *sqsSession) consume(ctx context.Context, tag string, e entrant) (rate, calls float64, err error) {
	queues, err := s.world.Fill(ctx, e.n, e.name+"-"+tag)
	if err != nil {
		return 0, 0, err
	}
	s.world.Calls.Take()
	rate, err = e.rate(ctx, s.world, queues[0])
	calls = float64(s.world.Calls.Take().Total()) / float64(e.n)
	return rate, calls, errors.Join(err, s.world.Delete(ctx, queues[0]))
}
