package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/sqs"
)

const sqsEnv = "REDRIVE_SQS_URL"

// sqsLimit bounds one part: a server of SQS's protocol is slow to fill, too.
const sqsLimit = 15 * time.Minute

// sqsSession is one run of the command on one server.
type sqsSession struct {
	report func(figure.Figure)
	world  *sqs.World
}

// sqsArea measures the adapter on an ElasticMQ. A part that fails does not keep
// the others from being measured.
func sqsArea(report func(figure.Figure)) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	endpoint := os.Getenv(sqsEnv)
	if endpoint == "" {
		return fmt.Errorf("%s is not set: make figures starts a server and sets it", sqsEnv)
	}
	s := &sqsSession{report: report, world: sqs.NewWorld(endpoint)}
	var errs []error
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"throughput", s.throughput},
		{"calls of retries", s.retries},
		{"lateness", s.lateness},
	} {
		bounded, cancel := context.WithTimeout(ctx, sqsLimit)
		if err := part.measure(bounded); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
		}
		cancel()
	}
	errs = append(errs, s.world.Close(context.WithoutCancel(ctx)))
	return errors.Join(errs...)
}

// run is what a contender did with its messages.
type run struct {
	rate  float64 // messages a second
	calls float64 // to the server
}

// consume fills a queue of its own with n messages, has them consumed, and
// deletes the queue: the server has everything in memory.
func (s *sqsSession) consume(ctx context.Context, name string, n int, consume sqs.Contender) (run, error) {
	queue, err := s.world.Declare(ctx, name)
	if err != nil {
		return run{}, err
	}
	if err := s.world.Fill(ctx, queue, n); err != nil {
		return run{}, err
	}
	s.world.Calls.Take()
	took, err := consume(ctx, s.world, queue, n)
	if err != nil {
		return run{}, fmt.Errorf("%s: %w", name, err)
	}
	by, calls := s.world.Calls.Take()
	left, err := s.world.Left(ctx, queue)
	if err != nil || left > n/100 {
		return run{}, fmt.Errorf("%s: %d of %d messages are left: %w", name, left, n, err)
	}
	r := run{rate: float64(n) / took.Seconds(), calls: float64(calls)}
	note("%s: %.0f messages/s, %d left, calls %v", name, r.rate, left, by)
	return r, s.world.Delete(ctx, queue)
}
