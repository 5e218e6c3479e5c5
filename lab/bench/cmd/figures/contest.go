package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/lateness"
)

// entrant is who takes part in a contest, with so many messages in each round.
type entrant struct {
	name string
	n    int
	time func(ctx context.Context, queue string, n int) (time.Duration, error)
}

// turn says who of n is the one at a place in a round: who comes first changes,
// and every other round goes backwards, so that nobody always follows the same.
func turn(place, round, n int) int {
	if round%2 == 1 {
		place = n - 1 - place
	}
	return (place + 2*round) % n
}

// rate returns how many messages of queue a second e handles, if it leaves but a
// few: a broker that is busy may drop the last acks of a connection that is closed.
func (e entrant) rate(ctx context.Context, w contender.World, queue string) (float64, error) {
	const limit = 3 * time.Minute // an entrant that stands still is not to cost the others their turn
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	took, err := e.time(bounded, queue, e.n)
	if err != nil {
		return 0, err
	}
	left, err := w.Left(ctx, queue)
	if err == nil && left > e.n/50 {
		err = fmt.Errorf("%d of %d messages are left", left, e.n)
	}
	rate := float64(e.n) / took.Seconds()
	figure.Note("%s: %.0f messages/s, %d left", queue, rate, left)
	return rate, err
}

// rates are those of a contest's entrants, in each round.
type rates []map[string]float64

// contest has the entrants work one after the other, in rounds for each of which
// something may be prepared. What fails does not keep the others from it. There
// are as many rounds as there is time for.
func contest(ctx context.Context, rounds int, entrants []entrant, prepare func(round int) error, rate func(round int, e entrant) (float64, error)) (rates, error) {
	all := make(rates, rounds)
	var errs []error
	for round := range figure.Rounds(ctx, rounds) {
		all[round] = map[string]float64{}
		errs = append(errs, prepare(round))
		for place := range entrants {
			if ctx.Err() != nil {
				return all, errors.Join(append(errs, context.Cause(ctx))...)
			}
			e := entrants[turn(place, round, len(entrants))]
			r, err := rate(round, e)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s in round %d: %w", e.name, round+1, err))
				continue
			}
			all[round][e.name] = r
		}
	}
	return all, errors.Join(errs...)
}

func unprepared(int) error { return nil }

// fastest returns the entrant of names with the best median.
func (rs rates) fastest(names ...string) string {
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(rs.median(a), rs.median(b)) })
}

func (rs rates) median(name string) float64 {
	var all []float64
	for _, round := range rs {
		if round[name] > 0 {
			all = append(all, round[name])
		}
	}
	return figure.Median(all)
}

// compare adds a sample for each round in which both were measured.
func (rs rates) compare(s *figure.Samples, name, of, to string) {
	for _, round := range rs {
		if round[of] > 0 && round[to] > 0 {
			s.Add(name, round[of]/round[to])
		}
	}
}

var errBusy = errors.New("the service is busy")

// unguarded is for figures in which every message fails at first: a guard takes
// that for an outage, rightly, and these are about the cost of retries.
var unguarded = consumer.Guard{Off: true}

// beyondHold is a delay that no worker waits for in process by default.
const beyondHold = 2100 * time.Millisecond

// failing is redrive with a handler that fails percent of the messages when it
// sees them first. As long as there are new messages, those that are done count:
// the time it takes is extrapolated to all. What is left then is waited for, and
// not timed. There is no guard: with the usual budget the retries of 10 % failures
// begin at one a second when there are no new messages.
func failing(w contender.World, cfg consumer.Config, percent uint64) func(context.Context, string, int) (time.Duration, error) {
	return func(ctx context.Context, queue string, n int) (took time.Duration, err error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		cfg := cfg
		cfg.Guard = unguarded
		var firsts, done, start atomic.Int64
		begin := time.Now()
		err = contender.Work(ctx, w, cfg, func(ctx context.Context, m *brokers.Message) error {
			fails := spread(contender.Number(m.Body))%100 < percent
			if !fails || consumer.MetaFrom(ctx).Attempt == 1 {
				switch firsts.Add(1) {
				case 1:
					start.Store(int64(time.Since(begin)))
				case int64(n):
					elapsed := time.Since(begin) - time.Duration(start.Load())
					took = time.Duration(float64(elapsed) * float64(n) / float64(max(done.Load(), 1)))
				}
				if fails {
					return errBusy
				}
			}
			if done.Add(1) == int64(n) {
				stop()
			}
			return nil
		}, queue)
		if left := int64(n) - done.Load(); left > 0 {
			err = errors.Join(fmt.Errorf("%d of %d messages were not handled", left, n), err, context.Cause(ctx))
		}
		return took, err
	}
}

// retrying is redrive with a handler that fails all messages when it sees them
// first.
func retrying(w contender.World, cfg consumer.Config) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		return contender.Work(ctx, w, cfg, func(ctx context.Context, _ *brokers.Message) error {
			handle()
			if consumer.MetaFrom(ctx).Attempt == 1 {
				return errBusy
			}
			return nil
		}, queue)
	}
}

// startWorker starts a worker. The context ends when it does; stop ends it, and
// returns its error.
func startWorker(ctx context.Context, w contender.World, cfg consumer.Config, queue string, h consumer.Handler) (_ context.Context, stop func() error) {
	return startWatched(ctx, w, cfg, func(*consumer.Consumer) {}, h, queue)
}

// startWatched is startWorker, and calls watch with the consumer before that runs.
func startWatched(ctx context.Context, w contender.World, cfg consumer.Config, watch func(*consumer.Consumer), h consumer.Handler, queue string) (_ context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := contender.Watched(ctx, w, cfg, watch, h, queue)
		cancel(fmt.Errorf("the worker ended: %w", err))
		ended <- err
	}()
	return ctx, func() error {
		cancel(nil)
		return <-ended
	}
}

// spread maps numbers that follow each other to ones that do not.
func spread(n int) uint64 { return uint64(n) * 0x9E3779B97F4A7C15 >> 32 }

// punctuality has n messages fail once in each round, and samples how late the
// retries run that the broker stores, and how many run early, for the figures
// prefix_late_p99_ms and prefix_early.
func punctuality(w contender.World, cfg consumer.Config, prefix string, rounds, n int) func(context.Context, *figure.Samples) error {
	return func(ctx context.Context, s *figure.Samples) error {
		early := 0
		for round := range rounds {
			queues, err := w.Fill(ctx, n, fmt.Sprint("late-", round))
			if err != nil {
				return err
			}
			o := lateness.NewObserver()
			cfg.Observers = []consumer.Observer{o}
			if _, err := failing(w, cfg, 100)(ctx, queues[0], n); err != nil {
				return err
			}
			retries := o.Take()
			if stored := len(retries.Stored()); len(retries) < n || stored < n {
				return fmt.Errorf("%d retries ran and %d were stored, of %d", len(retries), stored, n)
			}
			late := retries.Late()
			p99 := figure.Quantile(late, 0.99)
			early += retries.Early()
			s.Add(prefix+"_late_p99_ms", milliseconds(p99))
			s.Set(prefix+"_early", float64(early))
			figure.Note("lateness p50 %v, p99 %v, with up to %d outstanding", figure.Median(late), p99, o.Most())
		}
		return nil
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
