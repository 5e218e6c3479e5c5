// Command figures measures what the documentation claims: the pipeline by itself,
// redrive on real brokers beside others that do the same work, and the tests. It
// prints one tab-separated line a figure: name, value, unit, goal, and ok, short
// or failed. What a figure is made of goes to standard error. It exits 0 whatever
// the figures, 1 if some could not be measured, and 2 on bad usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/suite"
)

// area returns what to measure, and a function that ends it.
type area func(context.Context) ([]figure.Measurement, func(context.Context) error, error)

var areas = map[string]area{
	"core": core, "restraint": restraint, "kafka": kafkaArea, "rabbitmq": rabbitMQ, "sqs": sqsArea, "suite": suiteArea, "attack": attackArea,
	"letters": lettersArea, "service": serviceArea, "idle": idle, "delays": delays, "joins": joins, "worker": workerArea,
}

func main() {
	if job := os.Getenv(victimEnv); job != "" {
		runVictim(job)
		return
	}
	names := strings.Join(slices.Sorted(maps.Keys(areas)), ", ")
	name := flag.String("area", "core", "which figures: "+names)
	only := flag.String("only", "", "regular expression for names of figures, or of what measures some together")
	cpu := flag.String("cpu", "", "run a test binary, and append what it used to this file (for go test -exec)")
	delayFlags()
	joinFlags()
	suiteFlags()
	flag.Parse()
	if *cpu != "" {
		os.Exit(suite.Record(*cpu, flag.Args()))
	}
	matching, err := regexp.Compile(*only)
	measure := areas[*name]
	if measure == nil {
		err = fmt.Errorf("no area %q: use one of %s", *name, names)
	}
	if flag.NArg() > 0 {
		err = fmt.Errorf("what is %q?", flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	figure.Note("%d cores, %s, %s/%s", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if err := run(ctx, measure, matching); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, measure area, only *regexp.Regexp) error {
	all, end, err := measure(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m figure.Measurement) bool { return !m.Matches(only) })
	err = figure.Run(ctx, os.Stdout, all)
	if end != nil {
		err = errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	return err
}

// brokerAt returns the address of a broker.
func brokerAt(env string) (string, error) {
	address := os.Getenv(env)
	if address == "" {
		return "", fmt.Errorf("%s is not set: make figures starts a broker and sets it", env)
	}
	return address, nil
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
