package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// collectRow is what was collected from a broker.
type collectRow struct {
	// Broker is the name of the broker in the configuration.
	Broker string `json:"broker"`

	// Received is how many letters came, those that came again among them.
	Received int64 `json:"received"`

	// New is how many of them the store did not have.
	New int64 `json:"new"`

	// Known is how many of them it had already.
	Known int64 `json:"known"`

	// Refused is how many the store refused: they stay in the broker.
	Refused int64 `json:"refused"`

	// Unacked is how many come again, though the store has them.
	Unacked int64 `json:"unacked"`
}

var collectTable = table[collectRow]{"broker received new known refused", func(r collectRow) []any {
	return []any{r.Broker, r.Received, r.New, r.Known, r.Refused}
}}

func newCollect(d *desk) *cobra.Command {
	v := &view{}
	var everything, follow, dryRun bool
	cmd := &cobra.Command{
		Use:   "collect [topic...]",
		Short: "Take dead letters out of the brokers into the store",
		Long: `Collect takes the dead letters of topics into the store, until there are none left.
A letter is acked when the store has it durably, and not before; so it is in the
broker or in the store, and after a crash perhaps in both. On Kafka letters stay in
the log, too.

Only topics are collected whose configuration says collect: true. From then on an
alarm on the depth of their dead-letter queue sees nothing: move it to the metrics of
redrive serve, or leave letters where they are and look at them with redrive dlq peek.`,
		Example: `  redrive dlq collect orders
  redrive dlq collect --all --follow`,
		ValidArgsFunction: d.completion(topicNames),
		Args: func(_ *cobra.Command, args []string) error {
			if everything == (len(args) > 0) {
				return errors.New("collect what? name topics, or use --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.withConfig(func(c *config.Config) error {
				topics, err := collectable(c, args)
				if err != nil {
					return err
				}
				if dryRun {
					return d.tellSources(topics)
				}
				return withStore(cmd.Context(), c, func(s *store.Store) error {
					err := d.collect(cmd.Context(), v, c, s, topics, follow)
					if _, partial := errors.AsType[*partialError](err); partial {
						err = d.resume(err, commandLine(cmd, args))
					}
					return err
				})
			})
		},
	}
	v.register(cmd.Flags())
	cmd.Flags().BoolVar(&everything, "all", false, "collect all topics that are opted in")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on until Ctrl-C")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be collected, and collect nothing")
	return cmd
}

// collectable returns the topics of the configuration with these names, or all that
// are opted in.
func collectable(c *config.Config, names []string) (topics []config.Topic, err error) {
	var faults []error
	for _, name := range names {
		found, err := topicsNamed(c, name)
		faults = append(faults, err)
		for _, t := range found {
			if !t.Collect {
				faults = append(faults, fmt.Errorf("%s is not collected: set collect: true for it in %s, after you have moved its alarm", name, c.File()))
			}
		}
		topics = append(topics, found...)
	}
	if len(names) == 0 {
		if topics = serve.Collected(c); len(topics) == 0 {
			faults = append(faults, fmt.Errorf("no topic is collected: set collect: true for some in %s", c.File()))
		}
	}
	for _, t := range topics {
		faults = append(faults, elsewhere(c, t.Broker))
	}
	return topics, errors.Join(faults...)
}

// topicsNamed returns the topics with a name, of which each broker may have one.
func topicsNamed(c *config.Config, name string) (topics []config.Topic, err error) {
	for _, t := range c.Topics {
		if t.Name == name {
			topics = append(topics, t)
		}
	}
	if topics == nil {
		return nil, fmt.Errorf("%s has no topic %q", c.File(), name)
	}
	return topics, nil
}

// elsewhere is an error for a broker that only the process knows which it lives in.
func elsewhere(c *config.Config, broker string) error {
	if b := c.Brokers[broker]; b != nil && b.Kind == config.Memory {
		return fmt.Errorf("the broker %s lives in the process of redrive serve, and only there can it be reached", broker)
	}
	return nil
}

func (d *desk) tellSources(topics []config.Topic) error {
	for _, t := range topics {
		fmt.Fprintf(d.Err, "This would collect %s from %s\n", term.Safe(strings.Join(t.Dead, ", ")), t.Broker)
	}
	return nil
}

// server is a Server for a command, which logs warnings to w.
func (d *desk) server(c *config.Config, s *store.Store, w io.Writer) *serve.Server {
	return &serve.Server{
		Config: c, Store: s, Owner: whoami(), Logger: warnings(w),
		Brokers: serve.NewBrokers(func(ctx context.Context, name string) (brokers.Broker, error) { return d.open(ctx, c, name) }),
	}
}

// warnings is a logger for people who look at what a command does.
func warnings(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func closeBrokers(ctx context.Context, b *serve.Brokers) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serve.Closing)
	defer cancel()
	return b.Close(ctx)
}

func (d *desk) collect(ctx context.Context, v *view, c *config.Config, s *store.Store, topics []config.Topic, follow bool) (err error) {
	p := term.NewProgress(d.Streams, "letters", 0, time.Now())
	server := d.server(c, s, p)
	defer func() { err = errors.Join(err, closeBrokers(ctx, server.Brokers)) }()
	err = d.progress(p, func() int {
		var n int64
		for _, status := range server.Statuses() {
			n += status.Received
		}
		return int(n)
	}, func() error {
		if follow {
			server.Follow(ctx, topics, nil)
			return nil
		}
		return server.Collect(ctx, topics)
	})
	rows := collectRows(server.Statuses())
	if len(rows) > 0 {
		if err := show(d.Streams, v, collectTable, all(rows)); err != nil {
			return err
		}
	}
	if err == nil && ctx.Err() != nil && !follow {
		return &partialError{fmt.Errorf("%w: the rest of the letters is in the broker", context.Cause(ctx))}
	}
	got := slices.ContainsFunc(rows, func(r collectRow) bool { return r.Received > 0 })
	if err != nil && (got || errors.Is(err, collect.ErrLimit)) {
		return &partialError{err}
	}
	return err
}

// progress shows how far work has come while it is done.
func (d *desk) progress(p *term.Progress, done func() int, work func() error) error {
	p.Set(0, time.Now())
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	defer p.Close()
	for {
		select {
		case now := <-tick.C:
			p.Set(done(), now)
		case err := <-ended:
			return err
		}
	}
}

func collectRows(statuses map[string]serve.Status) (rows []collectRow) {
	for _, broker := range slices.Sorted(maps.Keys(statuses)) {
		s := statuses[broker]
		if s.Received == 0 && !slices.Contains(slices.Collect(maps.Values(s.Paused)), nil) {
			continue // no topic of the broker could be read
		}
		rows = append(rows, collectRow{broker, s.Received, s.Added, s.Known, s.Refused, s.Unacked})
	}
	return rows
}
