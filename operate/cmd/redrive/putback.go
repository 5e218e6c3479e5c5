package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

func newPutBack(d *desk) *cobra.Command {
	v, s, a, c := &view{}, &selection{}, &author{}, &consent{}
	cmd := &cobra.Command{
		Use:   "putback [letter...]",
		Short: "Put letters back into the dead-letter topics that they came from",
		Long: `Putback publishes letters as they were to the dead-letter topics that they were
collected from, waits for the broker's confirmation, and then discards them here. So
it ends the custody of the store. It is refused for letters of Kafka, which are in
its log all the time.

After a crash, or an error, a letter may be in both places. Where collecting goes on,
what is put back is collected again: stop that first.

More than one letter needs a reason, --because.`,
		Example: `  redrive dlq putback --topic orders --because 'the old tool handles them' --dry-run
  redrive dlq putback 4711`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := s.chosen(args, time.Now())
			if err != nil {
				return err
			}
			return d.withStore(cmd.Context(), func(cfg *config.Config, st *store.Store) error {
				err := d.putBack(cmd.Context(), v, c, cfg, st, a.of(cmd, args), f)
				if _, partial := errors.AsType[*partialError](err); partial {
					err = d.resume(err, commandLine(cmd, args), "--because="+quoted(a.because))
				}
				return err
			})
		},
	}
	v.register(cmd.Flags())
	s.registerAll(cmd.Flags())
	a.register(cmd.Flags())
	c.register(cmd.Flags())
	s.completeFrom(cmd, d)
	return cmd
}

func (d *desk) putBack(ctx context.Context, v *view, c *consent, cfg *config.Config, s *store.Store, a store.Actor, f store.Filter) (err error) {
	if f.UpTo, err = s.Last(ctx); err != nil {
		return err
	}
	parts, err := s.Breakdown(ctx, f)
	if err != nil {
		return err
	}
	parts = slices.DeleteFunc(parts, func(p store.Slice) bool { return !slices.Contains(discardable(), p.State) })
	if err := mayGoBack(cfg, parts); err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	rows, total := sliceRows(parts, discardable())
	if ok, err := d.mayChange(ctx, v, c, a, f, "put back", rows, total); !ok {
		return err
	}
	server := d.server(cfg, s, d.Err)
	defer func() { err = errors.Join(err, closeBrokers(ctx, server.Brokers)) }()
	n, err := d.putAllBack(ctx, server, a, f, total)
	if err != nil && n > 0 {
		return &partialError{fmt.Errorf("put back %s of %d: %w", count(n, "letter"), total, err)}
	}
	if err != nil {
		return err
	}
	return d.tellDone(v, "put back", n)
}

// mayGoBack names all that keeps letters from going back.
func mayGoBack(c *config.Config, parts []store.Slice) error {
	var faults []error
	said := map[[2]string]bool{}
	for _, p := range parts {
		if said[[2]string{p.Broker, p.Source}] {
			continue
		}
		said[[2]string{p.Broker, p.Source}] = true
		b := c.Brokers[p.Broker]
		switch {
		case b == nil || !slices.ContainsFunc(c.Topics, func(t config.Topic) bool { return t.Broker == p.Broker && slices.Contains(t.Dead, p.Source) }):
			faults = append(faults, fmt.Errorf("letters came from %s on %s, which %s does not name: nothing is sent there", p.Source, p.Broker, c.File()))
		case b.Kind == config.Kafka:
			faults = append(faults, fmt.Errorf("letters of %s are in the log of Kafka all the time: discard them instead", p.Source))
		default:
			faults = append(faults, elsewhere(c, p.Broker))
		}
	}
	return errors.Join(faults...)
}

// mostPutBack is how many letters are published at once.
const mostPutBack = 200

// putAllBack puts letters back, some of one topic at a time.
func (d *desk) putAllBack(ctx context.Context, server *serve.Server, a store.Actor, f store.Filter, total int64) (put int64, err error) {
	type place struct{ broker, source string }
	waiting := map[place][]int64{}
	p := term.NewProgress(d.Streams, "letters", int(total), time.Now())
	defer p.Close()
	p.Set(0, time.Now())
	flush := func(to place) error {
		n, err := server.PutBack(ctx, a, to.broker, to.source, waiting[to])
		put += n
		delete(waiting, to)
		p.Set(int(put), time.Now())
		return err
	}
	f.States = discardable()
	err = allLetters(ctx, server.Store, f, func(l store.Letter) error {
		to := place{l.Broker, l.Source}
		if waiting[to] = append(waiting[to], l.ID); len(waiting[to]) < mostPutBack {
			return nil
		}
		return flush(to)
	})
	for to := range waiting {
		if err == nil {
			err = flush(to)
		}
	}
	return put, err
}

// discardable are the states in which nobody but an operator has to do with a
// letter.
func discardable() []store.State {
	return []store.State{store.StateCollected, store.StateUnknown, store.StateReturned, store.StateSkipped}
}
