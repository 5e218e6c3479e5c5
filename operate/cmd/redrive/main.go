// Redrive is the command of the library: it shows what a retry policy does
// before it runs anywhere.
//
//	go run ./operate/cmd/redrive help
//
// Data goes to standard output, everything else to standard error. It exits
// with 0 if all is well, with 1 if something failed, and with 2 if it was called
// wrongly.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitOK = iota
	exitFailure
	exitUsage
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole command but for the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	started := false
	root := newRoot()
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	root.SetOut(stdout)
	root.SetErr(stderr)
	called, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", called.CommandPath(), err)
	// What cobra itself refuses, it refuses before the command starts.
	if _, wrong := errors.AsType[*usageError](err); wrong || !started {
		fmt.Fprintf(stderr, "See '%s --help'.\n", called.CommandPath())
		return exitUsage
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "See what retries do before they do it",
		Long: `Redrive shows what a retry policy does before it runs anywhere.

Data goes to standard output, messages to standard error. The exit code is 0 if
all is well, 1 if something failed, and 2 if the command was called wrongly.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(newStorm(), newPlan())
	return root
}

// noArgs refuses arguments that are not flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("there is nothing to do with the argument %q: this command takes flags only", args[0])
	}
	return nil
}

// usageError is a mistake in how the command was called.
type usageError struct{ cause error }

func (e *usageError) Error() string { return e.cause.Error() }
func (e *usageError) Unwrap() error { return e.cause }

// usage marks err as one, if it is not nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}
