package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/rabbitmq"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/harness"
)

// recovery kills the broker under a worker, starts it again, and measures how
// long after the port is open the worker handles messages again.
func (s *session) recovery(ctx context.Context) error {
	if !s.harness {
		return fmt.Errorf("%s names a broker that this command cannot kill and start", s.broker.Env)
	}
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	const queue = "recovery"
	if err := errors.Join(s.world.Declare(ctx, queue), s.world.Fill(ctx, 50_000, queue)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	handled := make(chan time.Time, 1)
	worker := make(chan error, 1)
	go func() {
		worker <- rabbitmq.Work(ctx, s.world, consumer.Config{}, queue, func(context.Context, *brokers.Message) error {
			select {
			case handled <- time.Now():
			default:
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		})
	}()
	var took []float64
	for range rounds {
		t, err := s.restart(ctx, h, handled)
		if err != nil {
			return err
		}
		note("consuming %v after the port was open", t)
		took = append(took, t.Seconds())
	}
	stop()
	s.report(figure.Figure{Name: "rabbitmq_recovery_s", Value: figure.Median(took), Unit: "s", Goal: 5})
	return <-worker
}

// restart returns how long after the port is open a message is handled.
func (s *session) restart(ctx context.Context, h *harness.Harness, handled <-chan time.Time) (time.Duration, error) {
	if _, err := after(ctx, handled, time.Now()); err != nil {
		return 0, err
	}
	if err := h.Kill(ctx, s.broker.Name); err != nil {
		return 0, err
	}
	started := make(chan error, 1)
	go func() { started <- h.Start(ctx, s.broker.Name) }()
	open, err := opening(ctx, s.broker.Address())
	if err != nil {
		return 0, errors.Join(err, <-started)
	}
	first, err := after(ctx, handled, open)
	return first.Sub(open), errors.Join(err, <-started)
}

// after returns the first of times that is after t.
func after(ctx context.Context, times <-chan time.Time, t time.Time) (time.Time, error) {
	for {
		select {
		case at := <-times:
			if at.After(t) {
				return at, nil
			}
		case <-ctx.Done():
			return t, fmt.Errorf("no message is handled: %w", context.Cause(ctx))
		}
	}
}

// opening waits until a server answers at address, and returns when it did.
func opening(ctx context.Context, address string) (time.Time, error) {
	for {
		if answers(address) {
			return time.Now(), nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s stays closed: %w", address, context.Cause(ctx))
		}
	}
}

// answers reports whether a connection is accepted and not closed at once, as
// a port that is forwarded to a container would.
func answers(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	_, err = conn.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}
