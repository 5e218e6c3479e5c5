// Command brokers runs the brokers of the integration tests: in containers
// where a Docker engine answers, as local processes elsewhere.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

const usage = `Usage: go run ./integration/brokers COMMAND

  up [NAME...]                  start brokers and print their addresses
  down [NAME...]                stop brokers and remove what they left
  env [NAME...]                 print the addresses, for eval
  run [-only NAME,...] CMD ARGS...
                                run a command with the addresses in its environment;
                                the last run that uses a broker stops it, if a run
                                has started it. Without -only, older brokers and
                                Valkey take part only with REDRIVE_NIGHTLY=true
  start NAME                    start one broker, with the data that it had
  stop NAME                     stop one broker in good order, keep its data
  kill NAME                     end one broker as a crash does, keep its data
  freeze NAME, thaw NAME        make one broker stand still, and go on
  ctl NAME ARGS...              run rabbitmqctl against one RabbitMQ
  list                          print names, products, images, ports and variables

[NAME...] are brokers or products (rabbitmq, kafka, sqs, redis, valkey). Without NAME, all brokers are meant.
REDRIVE_ENGINE=docker or local decides how they run; not set, docker does if it answers.
As root on Debian or Ubuntu, up and run install what is missing; REDRIVE_INSTALL=no forbids it.
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
	case name == "run":
		return run(ctx, args)
	case name == "up" || name == "down" || name == "env":
		return several(ctx, name, args)
	}
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if name == "ctl" && len(args) > 1 {
		return h.Control(ctx, args[0], args[1:]...)
	}
	act := map[string]func(context.Context, string) error{
		"start": h.Start, "stop": h.Stop, "kill": h.Kill, "freeze": h.Freeze, "thaw": h.Thaw,
	}[name]
	if act == nil || len(args) != 1 {
		return fmt.Errorf("%w: %s with %d arguments", errUsage, name, len(args))
	}
	return act(ctx, args[0])
}

// several runs the commands that take any number of names.
func several(ctx context.Context, command string, names []string) error {
	brokers, err := harness.Select(names...)
	if err != nil {
		return err
	}
	if command == "env" {
		export(os.Stdout, brokers)
		return nil
	}
	if command == "up" {
		equip(ctx, brokers, nil)
	}
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if command == "down" {
		return h.Down(ctx, brokers)
	}
	if _, err := h.Up(ctx, brokers); err != nil {
		return err
	}
	export(os.Stdout, brokers)
	return nil
}

func export(out io.Writer, brokers []harness.Broker) {
	for _, setting := range harness.Environment(brokers) {
		fmt.Fprintln(out, "export", setting)
	}
}

func list(out io.Writer) {
	for _, b := range harness.Brokers() {
		fmt.Fprintln(out, b.Name, b.Product, b.Image, b.Port, b.Management, b.Controller, b.Env)
	}
}

// run runs a command with the brokers, and says at the end which those were.
// Where those of a product cannot run, the command does all the same: its tests
// say what they skip, or fail where CI=true, as run does.
func run(ctx context.Context, args []string) error {
	brokers, others, args, err := parseRun(args)
	if err != nil {
		return err
	}
	equip(ctx, brokers, others)
	env, uses, had, err := useAll(ctx, brokers)
	if err == nil {
		had.addOthers(ctx, others)
		err = execute(ctx, args, env)
	}
	for _, use := range uses {
		err = errors.Join(err, release(ctx, use))
	}
	if !livetest.IsNightly() {
		had.leaves(slices.DeleteFunc(harness.Brokers(), func(b harness.Broker) bool { return slices.Contains(brokers, b) }))
	}
	had.print(os.Stderr)
	if os.Getenv("CI") == "true" && had.lacking() {
		err = errors.Join(err, errMissing)
	}
	return err
}

var errMissing = errors.New("with CI=true, one that is missing is a failure")

// useAll starts the brokers, product by product, where the environment names no
// other ones. An error is that of ctx.
func useAll(ctx context.Context, brokers []harness.Broker) (env []string, uses []*harness.Use, had report, err error) {
	env = os.Environ()
	for _, product := range []harness.Product{harness.RabbitMQ, harness.Kafka, harness.SQS, harness.Redis, harness.Valkey} {
		of := ofProduct(brokers, product)
		if !harness.Provided(of) {
			use, err := use(ctx, of)
			if use != nil {
				uses = append(uses, use)
			}
			if ctx.Err() != nil {
				return env, uses, had, err
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "brokers: %s not started, so tests that need it are skipped, or fail where CI=true: %v\n", product, err)
				had.lacks(string(product), err)
				continue
			}
			env = append(env, harness.Environment(of)...)
		}
		for _, b := range of {
			had.on = append(had.on, harness.Describe(ctx, b))
		}
	}
	return env, uses, had, nil
}

func ofProduct(brokers []harness.Broker, product harness.Product) []harness.Broker {
	return slices.DeleteFunc(slices.Clone(brokers), func(b harness.Broker) bool { return b.Product != product })
}

// report is what the tests had to run on.
type report struct {
	on, not, later []string
	noDetector     error // why the tests ran without the race detector
}

func (r *report) lacking() bool { return len(r.not) > 0 || r.noDetector != nil }

// lacks takes the ends of an error, where the causes are; the whole of it was
// printed.
func (r *report) lacks(name string, err error) {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	reason := lines[0]
	if len(lines) > 1 {
		reason += " " + lines[len(lines)-1]
	}
	r.not = append(r.not, fmt.Sprintf("%s (%s)", name, reason))
}

// leaves says which brokers wait for make nightly.
func (r *report) leaves(brokers []harness.Broker) {
	for _, b := range brokers {
		if isNightly(b) {
			r.later = append(r.later, b.Name+" (make nightly)")
		}
	}
}

func (r *report) addOthers(ctx context.Context, others []harness.Product) {
	for _, other := range others {
		switch other {
		case harness.RaceDetector:
			r.noDetector = harness.NoRaceDetector(ctx)
		case harness.Postgres:
			version, err := harness.DescribePostgres(ctx)
			if err != nil {
				r.lacks(string(other), err)
				continue
			}
			r.on = append(r.on, version)
		default:
			if err := harness.Lacks(other); err != nil {
				r.lacks(string(other), err)
			}
		}
	}
}

func (r *report) print(out io.Writer) {
	none := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }
	fmt.Fprintln(out, "brokers: tested on:", none(r.on))
	fmt.Fprintln(out, "brokers: not tested on:", none(slices.Concat(r.not, r.later)))
	if r.noDetector != nil {
		fmt.Fprintln(out, "brokers: race detector: not used,", r.noDetector)
	}
}

// parseRun returns the brokers that run is to start, what else tests need where
// -only names none, and the command.
func parseRun(args []string) (brokers []harness.Broker, others []harness.Product, command []string, err error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	only := flags.String("only", "", "")
	if err := flags.Parse(args); err != nil {
		return nil, nil, nil, fmt.Errorf("%w: run: %w", errUsage, err)
	}
	if flags.NArg() == 0 {
		return nil, nil, nil, fmt.Errorf("%w: run without a command", errUsage)
	}
	names := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	brokers, err = harness.Select(names...)
	if len(names) == 0 {
		others = []harness.Product{harness.Postgres, harness.RedisServer, harness.RaceDetector, harness.Python, harness.Promtool}
		if !livetest.IsNightly() {
			brokers = slices.DeleteFunc(brokers, isNightly)
		}
	}
	return brokers, others, flags.Args(), err
}

func isNightly(b harness.Broker) bool { return b.Nightly }

// equip installs what is missing, where that may be. What then cannot start says
// so itself.
func equip(ctx context.Context, brokers []harness.Broker, others []harness.Product) {
	brokers = slices.DeleteFunc(slices.Clone(brokers), func(b harness.Broker) bool { return harness.Provided(ofProduct(brokers, b.Product)) })
	if len(brokers) == 0 && len(others) == 0 {
		return
	}
	h, err := harness.New(ctx, os.Stderr)
	if err == nil {
		err = h.Equip(ctx, brokers, others...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "brokers: not installed:", err)
	}
}

func use(ctx context.Context, brokers []harness.Broker) (*harness.Use, error) {
	h, err := harness.New(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	return h.Use(ctx, brokers)
}

// release stops brokers also when the command was interrupted.
func release(ctx context.Context, use *harness.Use) error {
	err := use.Release(context.WithoutCancel(ctx))
	if err != nil {
		fmt.Fprintln(os.Stderr, "brokers: not stopped:", err)
	}
	return err
}

func execute(ctx context.Context, args, env []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}
