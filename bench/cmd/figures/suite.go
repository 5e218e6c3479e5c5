package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/internal/suite"
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

func suiteArea(ctx context.Context) ([]figure.Measurement, func(context.Context) error, error) {
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	s := &suite.Suite{
		Root:     strings.TrimSpace(string(root)),
		Test:     []string{"make", "test"},
		CI:       []string{".ci/run"},
		Mutants:  []string{"make", "mutants"},
		Recorder: program,
		Log:      os.Stderr,
	}
	if packages := strings.Fields(repeated.packages); len(packages) > 0 {
		s.Repeat = append([]string{"go", "test", "-race", "-count", strconv.Itoa(repeated.count)}, packages...)
	}
	return s.Measurements(), s.Close, s.Open()
}
