package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/letters"
	"github.com/redrive-go/redrive/lab/bench/internal/suite"
	"github.com/redrive-go/redrive/lab/bench/rabbitmq"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

// letterSession is one run of the command on dead letters.
type letterSession struct {
	world *rabbitmq.World
	suite *suite.Suite
	dir   string
}

// lettersArea measures what handles dead letters: on RabbitMQ, in a store of a
// million of them, and in tests that say how it went.
func lettersArea(ctx context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	address, err := brokerAt(rabbitEnv)
	if err != nil {
		return nil, nil, err
	}
	tests, err := suiteOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "figures-letters-")
	if err != nil {
		return nil, nil, err
	}
	s := &letterSession{rabbitmq.NewWorld(address), tests, dir}
	return []figure.Measurement{
		{Name: "collecting", Run: s.collecting, Figures: []*figure.Figure{
			figure.AtLeast("collect_vs_consume", "ratio", 0.5),
			figure.AtLeast("collect_vs_consume_postgres", "ratio", 0.3),
		}},
		{Name: "a million letters", Run: s.million, Limit: time.Hour, Figures: []*figure.Figure{
			figure.AtMost("list_ms", "ms", 30),
			figure.AtMost("groups_ms", "ms", 30),
			figure.AtMost("cli_start_ms", "ms", 50),
			figure.AtMost("serve_rss_mib", "MiB", 64),
		}},
		{Name: "poison", Run: s.poison, Figures: []*figure.Figure{
			figure.AtMost("letters_run_before_stop", "letters", 1),
			figure.AtMost("letters_run_before_stop_10", "letters", 31),
			figure.AtMost("pauses_caused", "pauses", 0),
		}},
		{Name: "kills", Run: s.kills, Figures: []*figure.Figure{figure.AtMost("double_sends_per_kill", "batches", 1)}},
	}, s.close, nil
}

func (s *letterSession) close(ctx context.Context) error {
	return errors.Join(s.world.Close(ctx), os.RemoveAll(s.dir))
}

// collecting compares the rates of collectors with that of a loop that receives and
// acks, within each round.
func (s *letterSession) collecting(ctx context.Context, samples *figure.Samples) error {
	const rounds, backlog = 5, 20_000
	server, err := postgrestest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	stores := map[string]string{"sqlite": filepath.Join(s.dir, "collected.db"), "postgres": server.URL}
	entrants := []entrant{{name: "consume"}, {name: "sqlite"}, {name: "postgres"}}
	queues := map[string]string{}
	fill := func(round int) error {
		for _, e := range entrants {
			names, err := s.world.Fill(ctx, 0, fmt.Sprintf("%s-%d", e.name, round))
			if err != nil {
				return err
			}
			queues[e.name] = names[0]
			if err := s.bury(ctx, names[0], round*backlog, backlog); err != nil {
				return err
			}
		}
		return pause(ctx, 5*time.Second) // the broker goes on writing for a while
	}
	all, err := contest(ctx, rounds, entrants, fill, func(_ int, e entrant) (float64, error) {
		rate, err := s.rate(ctx, queues[e.name], stores[e.name], backlog)
		figure.Note("%s: %.0f letters/s", queues[e.name], rate)
		return rate, err
	})
	all.compare(samples, "collect_vs_consume", "sqlite", "consume")
	all.compare(samples, "collect_vs_consume_postgres", "postgres", "consume")
	return err
}

// bury publishes n letters to a queue.
func (s *letterSession) bury(ctx context.Context, queue string, from, n int) error {
	const batch = 500
	b, err := s.world.Broker()
	if err != nil {
		return err
	}
	for done := 0; done < n && err == nil; done += batch {
		msgs := make([]brokers.Message, batch)
		for i := range msgs {
			msgs[i] = letters.Letter(from + done + i)
		}
		err = b.Publish(ctx, queue, msgs...)
	}
	return errors.Join(err, b.Close(ctx))
}

// rate is how many letters of a queue a second are collected into a store; without
// one, received and acked.
func (s *letterSession) rate(ctx context.Context, queue, into string, n int) (rate float64, err error) {
	b, err := s.world.Broker()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	source, err := b.Open(ctx, collect.Subscription("", queue))
	if err != nil {
		return 0, err
	}
	if into == "" {
		return letters.Consume(ctx, source, n)
	}
	kept, err := store.Open(ctx, into)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	return letters.Collect(ctx, source, kept, n)
}

// million measures a store of a million letters, and the command with it.
func (s *letterSession) million(ctx context.Context, samples *figure.Samples) error {
	const n = 1_000_000
	path := filepath.Join(s.dir, "million.db")
	kept, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := letters.Fill(ctx, kept, n); err != nil {
		return errors.Join(err, kept.Close())
	}
	figure.Note("%d letters were stored in %v", n, time.Since(began).Round(time.Second))
	err = errors.Join(reads(ctx, kept, samples), kept.Close())
	if err != nil {
		return err
	}
	return s.command(ctx, path, n, samples)
}

// reads measures the pages of lists and of groups: of the slowest kind of each,
// that which 99 of 100 are faster than.
func reads(ctx context.Context, kept *store.Store, samples *figure.Samples) error {
	var errs []error
	lists := map[string]time.Duration{}
	for name, f := range letters.Filters() {
		took, err := p99(func() error { _, err := kept.Letters(ctx, f, store.Page{}); return err })
		lists[name], errs = took, append(errs, err)
	}
	groups := map[string]time.Duration{}
	for _, by := range []store.Order{store.ByLastDeath, store.ByOpen} {
		for _, topic := range []string{"", "topic-7"} {
			took, err := p99(func() error {
				_, err := kept.Clusters(ctx, store.Filter{Topic: topic}, by, store.Page{})
				return err
			})
			groups[fmt.Sprintf("order %d of topic %q", by, topic)], errs = took, append(errs, err)
		}
	}
	samples.Add("list_ms", worst("list_ms", lists))
	samples.Add("groups_ms", worst("groups_ms", groups))
	return errors.Join(errs...)
}

func worst(name string, kinds map[string]time.Duration) float64 {
	slowest := time.Duration(0)
	for kind, took := range kinds {
		figure.Note("%s: %.1f by %s", name, milliseconds(took), kind)
		slowest = max(slowest, took)
	}
	return milliseconds(slowest)
}

func p99(f func() error) (time.Duration, error) {
	var took []time.Duration
	for range 200 {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	return figure.Quantile(took, 0.99), nil
}

// poison runs the tests of jobs whose letters are still poison, or partly.
func (s *letterSession) poison(ctx context.Context, samples *figure.Samples) error {
	said, err := s.suite.Said(ctx, "go", "test", "-json", "-count=1", "./operate/job")
	for _, name := range []string{"letters_run_before_stop", "letters_run_before_stop_10", "pauses_caused"} {
		if n, ok := said[name]; ok {
			samples.Add(name, n)
		}
	}
	return err
}

// kills kills the command on the broker.
func (s *letterSession) kills(ctx context.Context, samples *figure.Samples) error {
	said, err := s.suite.Said(ctx, "go", "test", "-json", "-count=1", "-timeout=20m", "./operate/proof", "-run=^TestLetters$", "-kills=40")
	if n, ok := said["double_sends_per_kill"]; ok {
		samples.Add("double_sends_per_kill", n)
	}
	return err
}
