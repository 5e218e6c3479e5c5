package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/internal/suite"
)

// repeated is which tests are repeated, and how often.
var repeated struct {
	packages string
	count    int
}

func suiteFlags() {
	flag.StringVar(&repeated.packages, "packages", "", "suite: packages whose tests are repeated, with spaces")
	flag.IntVar(&repeated.count, "count", 20, "suite: how often")
}

// suiteOf is the repository that figures runs in.
func suiteOf(ctx context.Context) (*suite.Suite, error) {
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &suite.Suite{Root: strings.TrimSpace(string(root)), Recorder: program, Log: os.Stderr}, nil
}

func suiteArea(ctx context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	s, err := suiteOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	s.Test, s.CI, s.Mutants = []string{"make", "test"}, []string{".ci/run"}, []string{"make", "mutants"}
	if packages := strings.Fields(repeated.packages); len(packages) > 0 {
		s.Repeat = append([]string{"go", "test", "-race", "-count", strconv.Itoa(repeated.count)}, packages...)
	}
	return s.Measurements(), s.Close, s.Open()
}

func attackArea(ctx context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	s, err := suiteOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	a := &suite.Attack{Suite: *s, Tests: []string{"make", "--no-print-directory", "attack", "ATTACK=-json"}}
	return a.Measurements(), a.Close, a.Open()
}
