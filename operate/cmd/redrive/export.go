package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

func newExport(d *desk) *cobra.Command {
	s := &selection{}
	var to string
	cmd := &cobra.Command{
		Use:   "export [letter...]",
		Short: "Write letters with their content as JSON, one a line",
		Long: `Export writes letters with all that is known of them, one JSON object a line, the
latest death first. Without --state and without numbers it writes the letters that
still need somebody. Bodies may hold personal data: a file is created for its owner
alone, and none is overwritten.`,
		Example: `  redrive dlq export --error 3 --to declined.jsonl
  redrive dlq export --topic orders | jq -r .body`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := s.listed(cmd, args)
			if err != nil {
				return err
			}
			return d.withStore(cmd.Context(), func(_ *config.Config, st *store.Store) error {
				return export(cmd.Context(), d, st, f, to)
			})
		},
	}
	s.registerLetters(cmd.Flags(), stateOpen)
	cmd.Flags().StringVar(&to, "to", "", "`file` to write, instead of standard output")
	s.completeFrom(cmd, d)
	return cmd
}

func export(ctx context.Context, d *desk, s *store.Store, f store.Filter, to string) (err error) {
	if f.UpTo == 0 {
		if f.UpTo, err = s.Last(ctx); err != nil {
			return err
		}
	}
	if to == "" {
		_, err := exportTo(ctx, d, s, f, d.Out)
		return err
	}
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("nothing was written: %w", err)
	}
	n, err := exportTo(ctx, d, s, f, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s is incomplete: it has %s: %w", to, count(n, "letter"), err)
	}
	fmt.Fprintf(d.Err, "wrote %s to %s\n", count(n, "letter"), term.Safe(to))
	return nil
}

// exportTo returns how many letters it wrote.
func exportTo(ctx context.Context, d *desk, s *store.Store, f store.Filter, to io.Writer) (n int64, err error) {
	w := bufio.NewWriter(to)
	p := term.NewProgress(d.Streams, "letters", 0, time.Now())
	defer p.Close()
	defer func() { err = errors.Join(err, w.Flush()) }()
	for l, err := range allLetters(ctx, s, f) {
		if err != nil {
			return n, err
		}
		doc, err := docOf(ctx, s, l.ID)
		if errors.Is(err, store.ErrNotFound) {
			continue // its retention has ended meanwhile
		}
		if err != nil {
			return n, err
		}
		line, err := term.JSON(doc, "", "")
		if err != nil {
			return n, err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return n, err
		}
		n++
		p.Set(int(n), time.Now())
	}
	return n, nil
}
