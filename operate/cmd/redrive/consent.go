package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// consent is the flags of a command that changes many letters at once.
type consent struct{ yes, dryRun bool }

func (c *consent) register(flags *pflag.FlagSet) {
	flags.BoolVar(&c.dryRun, "dry-run", false, "say what would be done, and do nothing")
	flags.BoolVar(&c.yes, "yes", false, "do it without asking")
}

// ask returns nil if what may be done to count letters: with --yes, or if somebody
// types the count. Otherwise nothing is to be done, and the error says so.
func (c *consent) ask(ctx context.Context, streams term.Streams, what string, count int) error {
	if c.yes {
		return nil
	}
	switch err := streams.Confirm(ctx, what, count); {
	case errors.Is(err, term.ErrNobody):
		return usage(fmt.Errorf("nothing was done: %s: add --yes to do it, or --dry-run to see what it would do", what))
	case err != nil:
		return fmt.Errorf("nothing was done: %w", err)
	}
	return nil
}
