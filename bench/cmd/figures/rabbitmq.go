package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/redrive-go/redrive/bench/contender"
	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/internal/lateness"
	"github.com/redrive-go/redrive/bench/rabbitmq"
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/retry"
)

// rabbitSession is one run of the command on RabbitMQ 4.
type rabbitSession struct {
	world  *rabbitmq.World
	broker harness.Broker
	ours   bool // the harness can stop and start it
}

func rabbitMQ(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	all := harness.Brokers()
	broker := all[slices.IndexFunc(all, func(b harness.Broker) bool { return b.Name == "rabbitmq4" })]
	address := os.Getenv(broker.Env)
	if address == "" {
		return nil, nil, fmt.Errorf("%s is not set: make figures starts a broker and sets it", broker.Env)
	}
	world := rabbitmq.NewWorld(address)
	s := &rabbitSession{world, broker, address == broker.URL()}
	// Retries wait for 2.1 to 5 s, at the broker.
	late := consumer.Config{Guard: unguarded, Retry: retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: beyondHold}}}
	return []figure.Measurement{
		{Name: "throughput", Run: s.throughput, Figures: []*figure.Figure{
			figure.AtLeast("rabbitmq_vs_raw", "ratio", 0.9),
			figure.AtLeast("rabbitmq_vs_watermill", "ratio", 1.6),
			figure.AtLeast("rabbitmq_vs_watermill_default", "ratio", 8),
			figure.AtLeast("rabbitmq_fail1", "ratio", 0.9),
			figure.AtLeast("rabbitmq_fail10", "ratio", 0.6),
		}},
		{Name: "lateness", Run: punctuality(world, late, "rabbitmq", 3, 400), Figures: []*figure.Figure{
			figure.AtMost("rabbitmq_late_p99_ms", "ms", 10),
			figure.AtMost("rabbitmq_early", "retries", 0),
		}},
		{Name: "sustained retries", Run: s.sustained, Figures: []*figure.Figure{
			figure.AtLeast("rabbitmq_retries_per_s", "retries/s", 5000),
			figure.AtMost("rabbitmq_retries_late_p99_ms", "ms", milliseconds(tolerated)),
		}},
		{Name: "recovery", Run: s.recovery, Figures: []*figure.Figure{figure.AtMost("rabbitmq_recovery_s", "s", 5)}},
	}, world.Close, nil
}

// throughput lets the contenders consume the same messages, and compares their
// rates within each round.
func (s *rabbitSession) throughput(ctx context.Context, samples *figure.Samples) error {
	const (
		rounds   = 5
		backlog  = 100_000
		longer   = 200_000 // of those with failures: retries come half a second later
		slow     = 3_000   // of Watermill's default
		prefetch = 200
	)
	// It leaves room to hold short retries of 10 % failures, so that they need
	// no shelf: see docs/explanation/rabbitmq.md.
	cfg := consumer.Config{Prefetch: prefetch, MaxHeld: 8000}
	entrants := []entrant{
		{"raw", backlog, s.world.Raw(500, 125).Time},
		{"redrive", backlog, contender.Redrive(s.world, cfg).Time},
		{"fail0", longer, failing(s.world, cfg, 0)},
		{"fail1", longer, failing(s.world, cfg, 1)},
		{"fail10", longer, failing(s.world, cfg, 10)},
		{"watermill", backlog, s.world.Watermill(prefetch).Time},
		{"watermill-default", slow, s.world.Watermill(0).Time},
	}
	queues := map[string]string{} // of this round, by entrant
	fill := func(round int) error {
		bySize := map[int][]string{}
		for _, e := range entrants {
			bySize[e.n] = append(bySize[e.n], e.name)
		}
		for n, entrants := range bySize {
			var tagged []string
			for _, e := range entrants {
				tagged = append(tagged, fmt.Sprintf("%s-%d", e, round))
			}
			names, err := s.world.Fill(ctx, n, tagged...)
			if err != nil {
				return fmt.Errorf("fill the queues: %w", err)
			}
			for i, e := range entrants {
				queues[e] = names[i]
			}
		}
		// The broker goes on writing for a while, at the cost of who comes first.
		return pause(ctx, 5*time.Second)
	}
	all, err := contest(ctx, rounds, entrants, fill, func(_ int, e entrant) (float64, error) {
		return e.rate(ctx, s.world, queues[e.name])
	})
	all.compare(samples, "rabbitmq_vs_raw", "redrive", "raw")
	all.compare(samples, "rabbitmq_vs_watermill", "redrive", "watermill")
	all.compare(samples, "rabbitmq_vs_watermill_default", "redrive", "watermill-default")
	all.compare(samples, "rabbitmq_fail1", "fail1", "fail0")
	all.compare(samples, "rabbitmq_fail10", "fail10", "fail0")
	return err
}

const tolerated = 100 * time.Millisecond

// sustained lets messages go round between worker and broker: each run fails,
// and each retry is stored for 2.1 to 4 s. More and more messages do so, until
// the retries come late.
func (s *rabbitSession) sustained(ctx context.Context, samples *figure.Samples) error {
	const (
		first    = 4500 // retries per second in the first window
		step     = 100  // that each window adds
		most     = 6000
		settling = 5 * time.Second
		window   = 4 * time.Second
		cycle    = (beyondHold + 4*time.Second) / 2
	)
	queues, err := s.world.Fill(ctx, 0, "sustained")
	if err != nil {
		return err
	}
	o := lateness.NewObserver()
	cfg := consumer.Config{
		Guard: unguarded, Prefetch: 200, MaxHeld: 4000, Observers: []consumer.Observer{o},
		Retry: retry.Policy{MaxAttempts: 1000, Backoff: retry.Backoff{Base: 4 * time.Second, Cap: 4 * time.Second, Floor: beyondHold}},
	}
	busy := classify.Transient(errBusy) // an error of no known class ends after six attempts
	ctx, stop := s.work(ctx, cfg, queues[0], func(context.Context, *brokers.Message) error { return busy })
	samples.Set("rabbitmq_retries_per_s", 0)
	samples.Set("rabbitmq_retries_late_p99_ms", 0)
	early, before := 0, 0
	for load, late := first, 0; load <= most && late < 4; load += step {
		err := s.world.Publish(ctx, int(float64(load-before)*cycle.Seconds()), queues...)
		if err := errors.Join(err, pause(ctx, settling)); err != nil {
			return errors.Join(err, stop())
		}
		before = load
		o.Take()
		began := time.Now()
		if err := pause(ctx, window); err != nil {
			return errors.Join(err, stop())
		}
		retries := o.Take()
		rate := float64(len(retries)) / time.Since(began).Seconds()
		p99 := figure.Quantile(retries.Late(), 0.99)
		early += retries.Early()
		figure.Note("%d retries/s offered: %.0f/s, lateness p50 %v, p99 %v, %d early", load, rate, figure.Median(retries.Late()), p99, retries.Early())
		if p99 > tolerated {
			late++
			continue
		}
		late = 0
		samples.Set("rabbitmq_retries_per_s", rate)
		samples.Set("rabbitmq_retries_late_p99_ms", milliseconds(p99))
	}
	err = stop()
	if early > 0 {
		err = errors.Join(err, fmt.Errorf("%d retries ran early", early))
	}
	return err
}

// work starts a worker. The context ends when it does; stop ends it, and returns
// its error.
func (s *rabbitSession) work(ctx context.Context, cfg consumer.Config, queue string, h consumer.Handler) (_ context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := contender.Work(ctx, s.world, cfg, h, queue)
		cancel(fmt.Errorf("the worker ended: %w", err))
		ended <- err
	}()
	return ctx, func() error {
		cancel(nil)
		return <-ended
	}
}

// recovery kills the broker under a worker, starts it again, and measures how
// long after the port is open the worker handles messages again.
func (s *rabbitSession) recovery(ctx context.Context, samples *figure.Samples) error {
	if !s.ours {
		return fmt.Errorf("%s names a broker that this command cannot kill and start", s.broker.Env)
	}
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	queues, err := s.world.Fill(ctx, 50_000, "recovery")
	if err != nil {
		return err
	}
	handled := make(chan time.Time, 1)
	ctx, stop := s.work(ctx, consumer.Config{}, queues[0], func(context.Context, *brokers.Message) error {
		select {
		case handled <- time.Now():
		default:
		}
		time.Sleep(10 * time.Millisecond)
		return nil
	})
	for range 3 {
		took, err := s.restart(ctx, h, handled)
		if err != nil {
			return errors.Join(err, stop())
		}
		figure.Note("consuming %v after the port was open", took)
		samples.Add("rabbitmq_recovery_s", took.Seconds())
	}
	return stop()
}

// restart returns how long after the port is open a message is handled.
func (s *rabbitSession) restart(ctx context.Context, h *harness.Harness, handled <-chan time.Time) (time.Duration, error) {
	if _, err := after(ctx, handled, time.Now()); err != nil {
		return 0, err
	}
	if err := h.Kill(ctx, s.broker.Name); err != nil {
		return 0, err
	}
	started := make(chan error, 1)
	go func() { started <- h.Start(ctx, s.broker.Name) }()
	var err error
	for err == nil && !answers(s.broker.Address()) {
		err = pause(ctx, 5*time.Millisecond)
	}
	open := time.Now()
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
