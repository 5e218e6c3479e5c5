package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

func newDiscard(d *desk) *cobra.Command {
	return newOrder(d, decision{
		verb: "discard", done: "discarded",
		from: discardable(),
		do: func(ctx context.Context, o order, f store.Filter, _ int64) (int64, error) {
			return o.store.Discard(ctx, time.Now(), o.actor, f)
		},
	}.run, &cobra.Command{
		Use:   "discard [letter...]",
		Short: "Take letters out of the way, for which nobody will do anything",
		Long: `Discard takes letters out of the way. They stay in the store until their retention
ends, and redrive dlq restore brings them back until then. Letters that a job has
queued or sent, and those that are confirmed, are left alone.

More than one letter needs a reason, --because.`,
		Example: `  redrive dlq discard 4711
  redrive dlq discard --error 3 --because 'orders of the load test'
  redrive dlq discard --topic orders --until 30d --dry-run`,
	})
}

func newRestore(d *desk) *cobra.Command {
	return newOrder(d, decision{
		verb: "restore", done: "restored",
		from: []store.State{store.StateDiscarded},
		do: func(ctx context.Context, o order, f store.Filter, _ int64) (int64, error) {
			return o.store.Restore(ctx, time.Now(), o.actor, f)
		},
	}.run, &cobra.Command{
		Use:   "restore [letter...]",
		Short: "Bring discarded letters back",
		Long: `Restore brings discarded letters back to the state that they had before. Those that
were put back into their dead-letter topic are there, too, and come back here as
others when they are collected.

More than one letter needs a reason, --because.`,
		Example: `  redrive dlq restore 4711
  redrive dlq restore --error 3 --because 'they were not of the load test'`,
	})
}

// decision is what can be decided about letters without sending any.
type decision struct {
	verb, done string
	from       []store.State                          // in which letters can be
	check      func(*config.Config, []sliceRow) error // nil allows all letters
	do         func(ctx context.Context, o order, f store.Filter, total int64) (done int64, err error)
}

func (what decision) run(ctx context.Context, o order, f store.Filter) (err error) {
	if f.UpTo, err = o.store.Last(ctx); err != nil {
		return err
	}
	parts, err := o.store.Breakdown(ctx, f)
	if err != nil {
		return err
	}
	rows, total := sliceRows(parts, what.from)
	if what.check != nil {
		if err := what.check(o.cfg, rows); err != nil {
			return fmt.Errorf("nothing was done: %w", err)
		}
	}
	if ok, err := o.mayChange(ctx, f, what.verb, rows, total); !ok {
		return err
	}
	n, err := what.do(ctx, o, f, total)
	if err != nil && n > 0 {
		return o.resume(&partialError{fmt.Errorf("%s %s of %d: %w", what.done, count(n, "letter"), total, err)}, o.again, "--because="+quoted(o.actor.Reason))
	}
	if err != nil {
		return err
	}
	return showOne(o.Streams, o.v, doneRow{what.done, n}, func(r doneRow) string { return r.Done + " " + count(r.Letters, "letter") })
}

// mayChange reports whether letters may be changed: not in a dry run, which shows
// them, not without a reason if there are several, and unless they were named one
// by one not without consent.
func (o order) mayChange(ctx context.Context, f store.Filter, verb string, rows []sliceRow, total int64) (bool, error) {
	letters := count(total, "letter")
	switch {
	case o.c.dryRun:
		fmt.Fprintf(o.Err, "This would %s %s:\n", verb, letters)
		return false, show(o.Streams, o.v, sliceTable, all(rows))
	case total == 0:
		return false, fmt.Errorf("nothing was done: there is no letter to %s: see redrive dlq ls --state all", verb)
	case total > 1 && o.actor.Reason == "":
		return false, usage(fmt.Errorf("nothing was done: %s need a reason: add --because", letters))
	case byNumber(f):
		return true, nil
	}
	err := o.c.ask(ctx, o.Streams, fmt.Sprintf("About to %s %s", verb, letters), int(total))
	return err == nil, err
}

// doneRow is what a command has done to letters.
type doneRow struct {
	// Done is what: `discarded`, `restored` or `put back`.
	Done string `json:"done"`

	// Letters is to how many.
	Letters int64 `json:"letters"`
}

// sliceRow is letters that a command would change.
type sliceRow struct {
	// Letters is how many there are.
	Letters int64 `json:"letters"`

	origin

	// State is that of the letters now.
	State string `json:"state"`
}

// sliceRows are the letters in some states, by what they have in common.
func sliceRows(parts []store.Slice, states []store.State) (rows []sliceRow, total int64) {
	at := map[sliceRow]int{}
	for _, s := range parts {
		if !slices.Contains(states, s.State) {
			continue
		}
		total += s.Letters
		row := sliceRow{origin: origin{s.Broker, s.Source, s.Topic, s.Group, s.Reason}, State: string(s.State)}
		i, ok := at[row]
		if !ok {
			i = len(rows)
			at[row] = i
			rows = append(rows, row)
		}
		rows[i].Letters += s.Letters
	}
	return rows, total
}

var sliceTable = table[sliceRow]{"letters topic group reason state", func(r sliceRow) []any {
	return []any{r.Letters, r.Topic, r.Group, r.Reason, r.State}
}}
