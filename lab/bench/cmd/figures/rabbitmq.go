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

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/rabbitmq"
	"github.com/redrive-go/redrive/retry"
)

const rabbitEnv = "REDRIVE_RABBITMQ4_URL" // RabbitMQ 4

// rabbitSession is one run of the command on RabbitMQ 4.
type rabbitSession struct {
	world  *rabbitmq.World
	broker harness.Broker
	ours   bool // the harness can stop and start it
}

func rabbitMQ(context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	address, err := brokerAt(rabbitEnv)
	if err != nil {
		return nil, nil, err
	}
	all := harness.Brokers()
	broker := all[slices.IndexFunc(all, func(b harness.Broker) bool { return b.Env == rabbitEnv })]
	world := rabbitmq.NewWorld(address)
	s := &rabbitSession{world, broker, address == broker.URL()}
	// Retries wait for 2.1 to 5 s, at the broker.
	late := consumer.Config{Guard: unguarded, Retry: retry.Policy{Backoff: retry.Backoff{Base: 5 * time.Second, Floor: beyondHold}}}
	return []figure.Measurement{
		{Name: "throughput", Limit: 25 * time.Minute, Run: s.throughput, Figures: []*figure.Figure{
			figure.AtLeast("rabbitmq_vs_raw", "ratio", 0.9),
			figure.AtLeast("rabbitmq_vs_watermill", "ratio", 1.6),
			figure.AtLeast("rabbitmq_vs_watermill_default", "ratio", 8),
			figure.AtLeast("rabbitmq_fail1", "ratio", 0.9),
			figure.AtLeast("rabbitmq_fail10", "ratio", 0.6),
		}},
		{Name: "classic queues", Run: s.classic, Figures: []*figure.Figure{figure.AtLeast("rabbitmq_classic_vs_raw", "ratio", 0.9)}},
		{Name: "defaults", Run: s.defaults, Figures: []*figure.Figure{figure.AtLeast("rabbitmq_default_vs_raw", "ratio", 0.9)}},
		{Name: "lateness", Run: punctuality(world, late, "rabbitmq", 3, 400), Figures: []*figure.Figure{
			figure.AtMost("rabbitmq_late_p99_ms", "ms", 10),
			figure.AtMost("rabbitmq_early", "retries", 0),
		}},
		{Name: "retries", Run: s.retries, Figures: []*figure.Figure{figure.AtLeast("rabbitmq_retries_vs_raw", "ratio", 0.8)}},
		{Name: "delay queues", Run: s.delayQueues, Figures: []*figure.Figure{figure.AtMost("rabbitmq_delay_queues_15m", "queues", 32)}},
		{Name: "recovery", Run: s.recovery, Figures: []*figure.Figure{figure.AtMost("rabbitmq_recovery_s", "s", 5)}},
	}, world.Close, nil
}

// throughput lets the contenders consume the same messages, and compares their
// rates within each round.
func (s *rabbitSession) throughput(ctx context.Context, samples *figure.Samples) error {
	const (
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
	all, err := s.contest(ctx, s.world.Fill, entrants)
	all.compare(samples, "rabbitmq_vs_raw", "redrive", "raw")
	all.compare(samples, "rabbitmq_vs_watermill", "redrive", "watermill")
	all.compare(samples, "rabbitmq_vs_watermill_default", "redrive", "watermill-default")
	all.compare(samples, "rabbitmq_fail1", "fail1", "fail0")
	all.compare(samples, "rabbitmq_fail10", "fail10", "fail0")
	return err
}

// defaults compares redrive on its default Config with the loop of the throughput.
func (s *rabbitSession) defaults(ctx context.Context, samples *figure.Samples) error {
	const backlog = 100_000
	all, err := s.contest(ctx, s.world.Fill, []entrant{
		{"raw", backlog, s.world.Raw(500, 125).Time},
		{"redrive-default", backlog, contender.Redrive(s.world, consumer.Config{}).Time},
	})
	all.compare(samples, "rabbitmq_default_vs_raw", "redrive-default", "raw")
	return err
}

// classic lets a worker take a classic queue as it is.
func (s *rabbitSession) classic(ctx context.Context, samples *figure.Samples) error {
	const backlog = 100_000
	all, err := s.contest(ctx, s.world.FillClassic, []entrant{
		{"raw-classic", backlog, s.world.Raw(equalPrefetch, 125).Time},
		{"redrive-classic", backlog, contender.Redrive(s.world, consumer.Config{Prefetch: equalPrefetch, MaxHeld: 8000}).Time},
	})
	all.compare(samples, "rabbitmq_classic_vs_raw", "redrive-classic", "raw-classic")
	return err
}

// equalPrefetch is that of both contenders.
const equalPrefetch = 500

// retries lets every message fail once, and wait at the broker for as long with
// redrive as with a retry written by hand.
func (s *rabbitSession) retries(ctx context.Context, samples *figure.Samples) error {
	const (
		messages = 30_000
		delay    = 3 * time.Second
		handlers = 10 // the default
	)
	cfg := consumer.Config{
		Guard: unguarded, Prefetch: equalPrefetch, MaxHeld: 8000, Concurrency: handlers,
		Retry: retry.Policy{Backoff: retry.Backoff{Base: delay, Cap: delay, Jitter: retry.NoJitter}},
	}
	// Messages run twice, and the time between counts for nobody.
	twice := func(c contender.Contender) func(context.Context, string, int) (time.Duration, error) {
		return func(ctx context.Context, queue string, n int) (time.Duration, error) {
			took, err := c.Time(ctx, queue, 2*n)
			return took - delay, err
		}
	}
	all, err := s.contest(ctx, s.world.Fill, []entrant{
		{"raw-retries", messages, twice(s.world.RawRetries(equalPrefetch, 125, handlers, delay))},
		{"redrive-retries", messages, twice(retrying(s.world, cfg))},
	})
	all.compare(samples, "rabbitmq_retries_vs_raw", "redrive-retries", "raw-retries")
	return err
}

// delayQueues counts what the adapter declares for a longest delay of 15 minutes.
func (s *rabbitSession) delayQueues(_ context.Context, samples *figure.Samples) error {
	const longest = 15 * time.Minute
	_, delay, _ := retry.Policy{Backoff: retry.Backoff{Cap: longest}, MaxRetryAfter: longest}.Limits()
	n, err := s.world.DelayQueues(delay)
	if err == nil {
		samples.Add("rabbitmq_delay_queues_15m", float64(n))
	}
	return err
}

// contest lets the entrants consume queues of their own, filled anew in each round.
// On a slow machine all have fewer messages, in proportion: so many that the first
// one takes ten seconds.
func (s *rabbitSession) contest(ctx context.Context, fill func(context.Context, int, ...string) ([]string, error), entrants []entrant) (rates, error) {
	const rounds, long, trial = 5, 10, 20
	first := entrants[0]
	first.n /= trial
	queues, err := fill(ctx, first.n, first.name+"-trial")
	if err != nil {
		return nil, fmt.Errorf("fill a queue: %w", err)
	}
	rate, err := first.rate(ctx, s.world, queues[0])
	if err != nil {
		return nil, fmt.Errorf("%s, at first: %w", first.name, err)
	}
	if share := long * rate / float64(entrants[0].n); share < 1 {
		figure.Note("this machine is slow: each round has %.0f %% of the messages", 100*share)
		for i := range entrants {
			entrants[i].n = int(share * float64(entrants[i].n))
		}
	}
	own := map[string]string{} // queues of this round, by entrant
	prepare := func(round int) error {
		bySize := map[int][]string{}
		for _, e := range entrants {
			bySize[e.n] = append(bySize[e.n], e.name)
		}
		for n, entrants := range bySize {
			var tagged []string
			for _, e := range entrants {
				tagged = append(tagged, fmt.Sprintf("%s-%d", e, round))
			}
			names, err := fill(ctx, n, tagged...)
			if err != nil {
				return fmt.Errorf("fill the queues: %w", err)
			}
			for i, e := range entrants {
				own[e] = names[i]
			}
		}
		// The broker goes on writing for a while, at the cost of who comes first.
		return pause(ctx, 5*time.Second)
	}
	return contest(ctx, rounds, entrants, prepare, func(_ int, e entrant) (float64, error) {
		return e.rate(ctx, s.world, own[e.name])
	})
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
	ctx, stop := startWorker(ctx, s.world, consumer.Config{}, queues[0], func(context.Context, *brokers.Message) error {
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
