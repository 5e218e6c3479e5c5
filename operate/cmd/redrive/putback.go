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
	"github.com/redrive-go/redrive/operate/store"
)

func newPutBack(d *desk) *cobra.Command {
	return newOrder(d, decision{
		verb: "put back", done: "put back",
		from: discardable(), check: mayGoBack, do: putAllBack,
	}.run, &cobra.Command{
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
	})
}

// mayGoBack names all that keeps letters from going back.
func mayGoBack(c *config.Config, rows []sliceRow) error {
	var faults []error
	said := map[[2]string]bool{}
	for _, p := range rows {
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
func putAllBack(ctx context.Context, o order, f store.Filter, total int64) (put int64, err error) {
	server := o.server(o.cfg, o.store, o.Err)
	defer func() { err = errors.Join(err, closeBrokers(ctx, server.Brokers)) }()
	type place struct{ broker, source string }
	waiting := map[place][]int64{}
	p := term.NewProgress(o.Streams, "letters", int(total), time.Now())
	defer p.Close()
	p.Set(0, time.Now())
	flush := func(to place) error {
		n, err := server.PutBack(ctx, o.actor, to.broker, to.source, waiting[to])
		put += n
		delete(waiting, to)
		p.Set(int(put), time.Now())
		return err
	}
	f.States = discardable()
	for l, err := range allLetters(ctx, o.store, f) {
		if err != nil {
			return put, err
		}
		to := place{l.Broker, l.Source}
		if waiting[to] = append(waiting[to], l.ID); len(waiting[to]) < mostPutBack {
			continue
		}
		if err := flush(to); err != nil {
			return put, err
		}
	}
	for to := range waiting {
		if err := flush(to); err != nil {
			return put, err
		}
	}
	return put, nil
}

// discardable are the states in which nobody but an operator has to do with a
// letter.
func discardable() []store.State {
	return []store.State{store.StateCollected, store.StateUnknown, store.StateReturned, store.StateSkipped}
}
