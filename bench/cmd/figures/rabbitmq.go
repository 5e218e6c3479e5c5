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
	"github.com/redrive-go/redrive/bench/rabbitmq"
	"github.com/redrive-go/redrive/integration/harness"
)

const brokerName = "rabbitmq4" // as the harness calls it

// session is one run of the command on one broker.
type session struct {
	report  func(figure.Figure)
	broker  harness.Broker
	world   *rabbitmq.World
	harness bool // the broker is the one that the harness stops and starts
}

// limit bounds one part of the figures, should the broker stop to answer.
const limit = 8 * time.Minute

// rabbitMQ measures the adapter on RabbitMQ 4. A part that fails does not keep
// the others from being measured.
func rabbitMQ(report func(figure.Figure)) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &session{report: report}
	for _, b := range harness.Brokers() {
		if b.Name == brokerName {
			s.broker = b
		}
	}
	address, management := os.Getenv(s.broker.Env), os.Getenv(s.broker.ManagementEnv())
	if address == "" || management == "" {
		return fmt.Errorf("%s and %s are not set: make figures starts a broker and sets them", s.broker.Env, s.broker.ManagementEnv())
	}
	s.harness = address == s.broker.URL()
	var err error
	if s.world, err = rabbitmq.NewWorld(ctx, address, management); err != nil {
		return err
	}
	var errs []error
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"throughput", s.throughput},
		{"lateness", s.lateness},
		{"sustained retries", s.sustained},
		{"recovery", s.recovery},
	} {
		bounded, cancel := context.WithTimeout(ctx, limit)
		if err := part.measure(bounded); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
		}
		cancel()
	}
	return errors.Join(append(errs, s.world.Close(context.WithoutCancel(ctx)))...)
}
