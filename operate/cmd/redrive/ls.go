package main

import (
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

func newLs(d *desk) *cobra.Command {
	v, s, p := &view{}, &selection{}, &paging{}
	cmd := &cobra.Command{
		Use:   "ls [letter...]",
		Short: "List letters, the latest death first",
		Long: `Ls lists letters in the store, the latest death first. All flags that select must
hold. Without --state it lists the letters that still need somebody: all but those
that are confirmed, returned or discarded.

Pages do not shift while letters arrive: the last line on standard error says how
to go on.`,
		Example: `  redrive dlq ls --error 3
  redrive dlq ls --topic orders --since 3h --text 'card declined'
  redrive dlq ls --id order-4711 --state all -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			f, err := s.listed(cmd, args)
			if err != nil {
				return err
			}
			return d.withStore(cmd.Context(), func(_ *config.Config, st *store.Store) error {
				next := p.after
				rows := pageOfLetters(cmd.Context(), st, f, p.limit, &next)
				if err := show(d.Streams, v, letterTable, rows); err != nil {
					return err
				}
				p.tell(d.Streams, next)
				return nil
			})
		},
	}
	v.register(cmd.Flags())
	s.registerLetters(cmd.Flags(), stateOpen)
	p.register(cmd.Flags())
	s.completeFrom(cmd, d)
	return cmd
}

// pageOfLetters returns up to limit letters. In next it finds where to begin, and
// leaves where to go on. The store may need several looks for them.
func pageOfLetters(ctx context.Context, s *store.Store, f store.Filter, limit int, next *string) iter.Seq2[letterRow, error] {
	return func(yield func(letterRow, error) bool) {
		for limit > 0 {
			list, err := s.Letters(ctx, f, store.Page{After: *next, Limit: limit})
			if err != nil {
				yield(letterRow{}, err)
				return
			}
			for _, l := range list.Letters {
				if !yield(rowOf(l), nil) {
					return
				}
			}
			limit -= len(list.Letters)
			if *next = list.Next; *next == "" {
				return
			}
		}
	}
}
