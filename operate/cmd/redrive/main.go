// Redrive is the command of the library: it shows what a retry policy does
// before it runs anywhere, and handles dead letters.
//
//	go run ./operate/cmd/redrive help
//
// Data goes to standard output, everything else to standard error. The exit codes
// are 0 if all is well, 1 if something failed, 2 if the command was called
// wrongly, 3 if a part was done, and 130 if it was interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/internal/typo"
)

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitPartial     = 3
	exitInterrupted = 130 // as shells have it
)

func main() {
	logging.Disable() // of go-redis, which logs what its errors say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
	code := run(ctx, os.Args[1:], term.Of(os.Stdin, os.Stdout, os.Stderr, os.Getenv))
	stop()
	os.Exit(code)
}

// run is the whole command but for the process around it.
func run(ctx context.Context, args []string, streams term.Streams) int {
	return execute(ctx, newRoot(streams), args, streams)
}

func execute(ctx context.Context, root *cobra.Command, args []string, streams term.Streams) int {
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	called, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	name, code := called.CommandPath(), exitCode(ctx, err, started)
	fmt.Fprintf(streams.Err, "%s: %s\n", name, term.SafeLines(err.Error()))
	if resume, ok := errors.AsType[*resumableError](err); ok {
		fmt.Fprintf(streams.Err, "Go on with: %s\n", term.Safe(resume.command))
	}
	if code == exitUsage {
		fmt.Fprintf(streams.Err, "See '%s --help'.\n", name)
	}
	return code
}

// exitCode says what an error means for whoever called the command.
func exitCode(ctx context.Context, err error, started bool) int {
	// What cobra itself refuses, it refuses before the command starts.
	if _, wrong := errors.AsType[*usageError](err); wrong || !started {
		return exitUsage
	}
	if ctx.Err() != nil {
		return exitInterrupted
	}
	if _, partial := errors.AsType[*partialError](err); partial {
		return exitPartial
	}
	return exitFailure
}

func newRoot(streams term.Streams) *cobra.Command {
	return newRootOn(streams, connect.Broker, connect.Brief)
}

// newRootOn returns the command. Brief opens brokers for commands that end by
// themselves, and open for the others.
func newRootOn(streams term.Streams, open, brief opener) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "redrive",
		Short: "See what retries do before they do it, and handle dead letters",
		Long: `Redrive shows what a retry policy does before it runs anywhere, and handles dead
letters.

Data goes to standard output, messages to standard error. The exit code is 0 if
all is well, 1 if something failed, 2 if the command was called wrongly, 3 if a
part was done, and 130 if it was interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}, newStorm(), newPlan(), newConfig(streams), newDLQ(streams, brief), newServe(streams, open), newService(streams, open), newWorker(streams), newDoctor(streams, open))
	root.CompletionOptions.HiddenDefaultCmd = true
	// Groups can run to refuse what is no command of theirs, and are of no other use.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	root.SetFlagErrorFunc(wrongFlag)
	completeWords(root)
	return root
}

// group adds commands to one that does nothing but show them.
func group(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.Args = noSuchCommand
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.AddCommand(commands...)
	return c
}

// noSuchCommand refuses the arguments of a group: they are no command of it.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = ": did you mean " + typo.AnyOf(near) + "?"
	}
	return fmt.Errorf("there is no command %q%s", args[0], hint)
}

// wrongFlag is the error of flags that cannot be read: where there is no such
// flag, with the one that was meant, or with the command that there is not, either.
func wrongFlag(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	if c.HasSubCommands() && c.Flags().NArg() > 0 {
		return noSuchCommand(c, c.Flags().Args())
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := typo.Nearest(unknown.GetSpecifiedName(), names); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return err
}

// noArgs refuses arguments that are not flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("there is nothing to do with the argument %q: this command takes flags only", args[0])
	}
	return nil
}

// usageError is a mistake in how the command was called.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// usage marks err as one, if it is not nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// partialError says what was not done, where the rest was.
type partialError struct{ error }

func (e *partialError) Unwrap() error { return e.error }

// resumableError is one after which another command goes on.
type resumableError struct {
	error
	command string
}

func (e *resumableError) Unwrap() error { return e.error }

// resumable adds to err, if it is not nil, the command that goes on: its words,
// such as "redrive", "dlq", "jobs", "resume", "12".
func resumable(err error, words ...string) error {
	if err == nil {
		return nil
	}
	return &resumableError{err, strings.Join(words, " ")}
}
