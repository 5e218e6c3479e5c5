// Command brokers runs the brokers of the integration tests: in containers
// where a Docker engine answers, as local processes elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/integration/harness"
)

const usage = `Usage: go run ./integration/brokers COMMAND

  up                start all brokers and print their addresses
  down              stop all brokers and remove what they left
  env               print the addresses, for eval
  run CMD ARGS...   run a command with the addresses in its environment;
                    brokers that it had to start are stopped afterwards
  start NAME        start one broker, with the data that it had
  stop NAME         stop one broker in good order, keep its data
  kill NAME         end one broker as a crash does, keep its data
  ctl NAME ARGS...  run rabbitmqctl against one broker
  list              print names, images, ports and variables

REDRIVE_ENGINE=docker or local decides how they run; not set, docker does if it answers.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err == nil {
		return
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && os.Args[1] == "run" {
		os.Exit(exit.ExitCode()) // the command has said why
	}
	fmt.Fprintln(os.Stderr, "brokers:", err)
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, "\n", usage)
		os.Exit(2)
	}
	os.Exit(1)
}

var errUsage = errors.New("no such command")

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	name, args := args[0], args[1:]
	switch {
	case name == "list" && len(args) == 0:
		list(os.Stdout)
		return nil
	case name == "env" && len(args) == 0:
		export(os.Stdout)
		return nil
	case name == "run" && len(args) > 0:
		return run(ctx, args)
	}
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	switch {
	case name == "up" && len(args) == 0:
		if _, err := h.Up(ctx); err != nil {
			return err
		}
		export(os.Stdout)
		return nil
	case name == "down" && len(args) == 0:
		return h.Down(ctx)
	case name == "start" && len(args) == 1:
		return h.Start(ctx, args[0])
	case name == "stop" && len(args) == 1:
		return h.Stop(ctx, args[0])
	case name == "kill" && len(args) == 1:
		return h.Kill(ctx, args[0])
	case name == "ctl" && len(args) > 1:
		return h.Control(ctx, args[0], args[1:]...)
	}
	return fmt.Errorf("%w: %s with %d arguments", errUsage, name, len(args))
}

func export(out io.Writer) {
	for _, setting := range harness.Environment() {
		fmt.Fprintln(out, "export", setting)
	}
}

func list(out io.Writer) {
	for _, b := range harness.Brokers() {
		fmt.Fprintln(out, b.Name, b.Image, b.Port, b.Management, b.Env)
	}
}

// run runs a command with the brokers. Where they cannot run, the command does
// all the same: its tests say what they skip, or fail where CI=true.
func run(ctx context.Context, args []string) (err error) {
	env := os.Environ()
	if harness.Provided() {
		return execute(ctx, args, env)
	}
	h, err := harness.New(ctx, os.Stderr)
	started := false
	if err == nil {
		started, err = h.Up(ctx)
	}
	if started {
		defer func() {
			// The command may have been interrupted: the brokers are stopped all the same.
			if left := h.Down(context.WithoutCancel(ctx)); left != nil {
				fmt.Fprintln(os.Stderr, "brokers: not stopped:", left)
				err = errors.Join(err, left)
			}
		}()
	}
	switch {
	case err == nil:
		env = append(env, harness.Environment()...)
	case ctx.Err() != nil:
		return err
	default:
		fmt.Fprintln(os.Stderr, "brokers: not started, so tests that need them are skipped, or fail where CI=true:", err)
	}
	return execute(ctx, args, env)
}

func execute(ctx context.Context, args, env []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}
