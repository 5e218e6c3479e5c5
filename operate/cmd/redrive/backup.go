package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

func newBackup(d *desk) *cobra.Command {
	var from string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "backup file",
		Short: "Copy the store into a file while it is in use, or back",
		Long: `Backup copies all that the store has into a new file: letters, history, jobs, all
with their numbers. The copy is what the store was at one moment, and others may go
on using the store. It needs room for the copy twice until it is done.

With --restore it copies such a file into the store of the configuration, which must
be new. So it also moves a store from a file to Postgres, and back.`,
		Example: `  redrive dlq backup letters-2026-11-25.db
  redrive dlq backup --restore letters-2026-11-25.db`,
		Args: func(_ *cobra.Command, args []string) error {
			if from == "" && len(args) != 1 || from != "" && len(args) != 0 {
				return errors.New("use backup file, or backup --restore file")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if from != "" {
				return d.restore(cmd.Context(), from, dryRun)
			}
			return d.withStore(cmd.Context(), func(_ *config.Config, s *store.Store) error {
				return d.backup(cmd.Context(), s, args[0], dryRun)
			})
		},
	}
	cmd.Flags().StringVar(&from, "restore", "", "copy this `file` into the store of the configuration")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be copied, and copy nothing")
	return cmd
}

func (d *desk) backup(ctx context.Context, s *store.Store, file string, dryRun bool) error {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing was copied: %s is there already: a backup is a new file", file)
	}
	if dryRun {
		return d.tellCopy(ctx, s, "This would copy", "")
	}
	err := withStoreAt(ctx, file, func(to *store.Store) error { return s.Copy(ctx, to) })
	if err != nil {
		for _, end := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(file + end) // it is empty, and new
		}
		return fmt.Errorf("nothing was copied: %w", err)
	}
	return d.tellCopy(ctx, s, "copied", " to "+file)
}

func (d *desk) restore(ctx context.Context, file string, dryRun bool) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("nothing was copied: %w", err)
	}
	return withStoreAt(ctx, file, func(from *store.Store) error {
		if dryRun {
			return d.tellCopy(ctx, from, "This would copy", "")
		}
		return d.withNewStore(ctx, func(_ *config.Config, to *store.Store) error {
			if err := from.Copy(ctx, to); err != nil {
				return fmt.Errorf("nothing was copied: %w", err)
			}
			return d.tellCopy(ctx, to, "copied", " into the store")
		})
	})
}

// tellCopy says how many letters a store has, which were copied.
func (d *desk) tellCopy(ctx context.Context, s *store.Store, before, after string) error {
	stats, err := s.Stats(ctx, time.Now())
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Err, "%s %s%s\n", before, count(stats.Letters(), "letter"), term.Safe(after))
	return nil
}
