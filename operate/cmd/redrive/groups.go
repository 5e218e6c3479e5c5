package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

// groupRow is the letters that failed alike.
type groupRow struct {
	// ID is the number of the group, for `--error`.
	ID int64 `json:"id"`

	// Letters is how many there are in the states of `--state`.
	Letters int64 `json:"letters"`

	fault

	// First is the first death among those that the group has seen.
	First instant `json:"first"`

	// Last is the last death among them.
	Last instant `json:"last"`

	// Since is when the first of them was collected.
	Since instant `json:"since"`

	// Bytes is the size of all their messages.
	Bytes int64 `json:"bytes"`

	// States is how many there are by state, whatever `--state` says.
	States map[string]int64 `json:"states"`
}

func newGroups(d *desk) *cobra.Command {
	v, s, p := &view{}, &selection{}, &paging{}
	by := choice{"last", []string{"last", "count"}}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List what failed alike: how many letters, of which topic, with which error",
		Long: `Groups lists the letters in the store by what failed: those of one topic and
consumer group with the same reason, class and fingerprint of their error. The
numbers are for --error of the other commands.

Without --state it counts the letters that still need somebody: all but those that
are confirmed, returned or discarded.`,
		Example: `  redrive dlq groups
  redrive dlq groups --topic orders --since 3h
  redrive dlq groups --sort count -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			f, err := s.letters(args, time.Now())
			if err != nil {
				return err
			}
			return d.withStore(cmd.Context(), func(_ *config.Config, st *store.Store) error {
				return listGroups(cmd.Context(), d, v, p, st, f, by.value)
			})
		},
	}
	v.register(cmd.Flags())
	s.registerGroups(cmd.Flags(), stateOpen)
	p.register(cmd.Flags())
	cmd.Flags().Var(&by, "sort", "what comes first: the last death, or the highest count of letters that need somebody")
	s.completeFrom(cmd, d)
	return cmd
}

func listGroups(ctx context.Context, d *desk, v *view, p *paging, st *store.Store, f store.Filter, by string) error {
	order := store.ByLastDeath
	if by == "count" {
		order = store.ByOpen
	}
	list, err := st.Clusters(ctx, f, order, store.Page{After: p.after, Limit: p.limit})
	if err != nil {
		return err
	}
	rows := make([]groupRow, len(list.Clusters))
	hasGroups := false
	for i, c := range list.Clusters {
		rows[i] = groupOf(c, f.States)
		hasGroups = hasGroups || c.Group != ""
	}
	if err := show(d.Streams, v, groupTable(hasGroups), all(rows)); err != nil {
		return err
	}
	p.tell(d.Streams, list.Next)
	return nil
}

func groupOf(c store.Cluster, states []store.State) groupRow {
	r := groupRow{
		ID: c.ID,
		fault: fault{
			origin: origin{c.Broker, c.Source, c.Topic, c.Group, c.Reason},
			Format: c.Format, Class: c.Class, ErrorType: c.ErrorType, ErrorText: c.ErrorText, Fingerprint: c.Fingerprint,
		},
		First: instant{c.FirstAt}, Last: instant{c.LastAt}, Since: instant{c.CreatedAt}, Bytes: c.Bytes, States: map[string]int64{},
	}
	for _, s := range store.States() {
		if n := c.Counts.Of(s); n > 0 {
			r.States[string(s)] = n
		}
	}
	if states == nil {
		states = store.States()
	}
	for _, s := range states {
		r.Letters += c.Counts.Of(s)
	}
	return r
}

// groupTable has consumer groups where there are any.
func groupTable(hasGroups bool) table[groupRow] {
	if hasGroups {
		return table[groupRow]{"id letters first last topic group reason error", func(r groupRow) []any {
			return []any{r.ID, r.Letters, r.First, r.Last, r.Topic, r.Group, r.Reason, r.ErrorText}
		}}
	}
	return table[groupRow]{"id letters first last topic reason error", func(r groupRow) []any {
		return []any{r.ID, r.Letters, r.First, r.Last, r.Topic, r.Reason, r.ErrorText}
	}}
}
