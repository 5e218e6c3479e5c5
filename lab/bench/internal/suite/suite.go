// Package suite measures the tests of the project: how long they take, what they
// use, and what they let through.
package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

// Suite is what to measure.
type Suite struct {
	Root              string   // of the repository
	Test, CI, Mutants []string // commands; CI runs in a clone
	Repeat            []string // a command that repeats tests, if any
	Recorder          string   // this program, which go test is to run test binaries with
	Log               io.Writer

	tmp            string
	cache          string // of what go builds, if it is not the user's
	runs, failures int
}

// Measurements returns what there is to measure, in the order that it needs.
func (s *Suite) Measurements() []figure.Measurement {
	const limit = time.Hour
	seconds := func(name string, goal float64) []*figure.Figure {
		return []*figure.Figure{figure.AtMost(name, "s", goal)}
	}
	return []figure.Measurement{
		{Name: "repository", Run: s.repository, Figures: []*figure.Figure{
			figure.AtMost("root_direct_requires", "modules", 9),
			figure.AtMost("readme_words", "words", 900),
		}},
		{Name: "cold test", Limit: limit, Run: s.cold, Figures: seconds("test_cold_s", 540)},
		{Name: "warm test", Limit: limit, Run: s.warm, Figures: seconds("test_warm_s", 300)},
		{Name: "CI", Limit: limit, Run: s.ci, Figures: seconds("ci_s", 720)},
		{Name: "mutants", Limit: limit, Run: s.mutants, Figures: []*figure.Figure{figure.AtMost("mutants_survived", "mutants", 0)}},
		// Last: it counts what failed in the runs before, too.
		{Name: "flakes", Limit: 2 * limit, Run: s.flakes, Figures: []*figure.Figure{figure.AtMost("flakes", "failures", 0)}},
	}
}

// Open makes the directory of what the measurements leave.
func (s *Suite) Open() (err error) {
	s.tmp, err = os.MkdirTemp("", "suite")
	return err
}

// Close removes it.
func (s *Suite) Close(context.Context) error { return os.RemoveAll(s.tmp) }

// repository counts what a user takes on: requirements, and words to read.
func (s *Suite) repository(ctx context.Context, samples *figure.Samples) error {
	readme, err := os.ReadFile(filepath.Join(s.Root, "README.md"))
	if err != nil {
		return err
	}
	samples.Add("readme_words", float64(len(strings.Fields(string(readme)))))
	list := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
	list.Dir = s.Root
	out, err := list.Output()
	if err != nil {
		return err
	}
	var module struct{ Require []struct{ Indirect bool } }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	direct := 0
	for _, r := range module.Require {
		if !r.Indirect {
			direct++
		}
	}
	samples.Add("root_direct_requires", float64(direct))
	return nil
}

// cold tests with an empty cache of what is built. Modules are not downloaded again.
func (s *Suite) cold(ctx context.Context, samples *figure.Samples) error {
	s.cache = filepath.Join(s.tmp, "cache")
	return s.test(ctx, samples, "test_cold_s")
}

// warm tests with the cache that cold has left, or else with the user's as it is.
func (s *Suite) warm(ctx context.Context, samples *figure.Samples) error {
	if s.cache == "" {
		figure.Note("with GOCACHE as it is: without test_cold nothing makes sure that it is warm")
	}
	return s.test(ctx, samples, "test_warm_s")
}

// test runs all tests, none of which counts as done before, and notes what each
// package used.
func (s *Suite) test(ctx context.Context, samples *figure.Samples, name string) error {
	record := filepath.Join(s.tmp, name)
	flags := fmt.Sprintf("%s -count=1 '-exec=%s -cpu %s'", os.Getenv("GOFLAGS"), s.Recorder, record)
	env := []string{"GOFLAGS=" + strings.TrimSpace(flags)}
	if s.cache != "" {
		env = append(env, "GOCACHE="+s.cache)
	}
	took, _, err := s.run(ctx, s.Root, s.Test, env...)
	used, e := Recorded(record)
	for _, u := range used {
		pkg, e := filepath.Rel(s.Root, u.Dir)
		if e != nil || strings.HasPrefix(pkg, "..") {
			pkg = u.Dir
		}
		figure.Note("%s: %.1f s of processor time in %s", name, u.Time.Seconds(), pkg)
	}
	if err == nil {
		samples.Add(name, took.Seconds())
	}
	return errors.Join(err, e)
}

// ci runs what a fresh clone of the current commit is checked by.
func (s *Suite) ci(ctx context.Context, samples *figure.Samples) error {
	clone := filepath.Join(s.tmp, "clone")
	if out, err := exec.CommandContext(ctx, "git", "clone", "--quiet", s.Root, clone).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	took, _, err := s.run(ctx, clone, s.CI)
	if err == nil {
		samples.Add("ci_s", took.Seconds())
	}
	return err
}

var survived = regexp.MustCompile(`mutants_survived (\d+)`)

func (s *Suite) mutants(ctx context.Context, samples *figure.Samples) error {
	_, out, err := s.run(ctx, s.Root, s.Mutants)
	if last := survived.FindAllSubmatch(out, -1); last != nil {
		n, e := strconv.Atoi(string(last[len(last)-1][1]))
		samples.Add("mutants_survived", float64(n))
		return e
	}
	return errors.Join(err, errors.New("no line says how many mutants survived"))
}

// flakes counts the tests that failed: in the runs so far, and when some are
// repeated.
func (s *Suite) flakes(ctx context.Context, samples *figure.Samples) (err error) {
	if len(s.Repeat) > 0 {
		before := s.failures
		if _, _, err = s.run(ctx, s.Root, s.Repeat); s.failures > before {
			err = nil // which the figure says
		}
	}
	if s.runs == 0 {
		return errors.New("no test has run: name packages to repeat, or measure test_warm_s too")
	}
	figure.Note("flakes: of %d runs", s.runs)
	samples.Add("flakes", float64(s.failures))
	return err
}

var failure = regexp.MustCompile(`(?m)^(--- FAIL: |panic: )`)

// run runs a command, and returns how long it took and what it printed. It counts
// the failures of tests.
func (s *Suite) run(ctx context.Context, dir string, command []string, env ...string) (time.Duration, []byte, error) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Dir, c.Env = dir, append(environment(), env...)
	c.Stdout = io.MultiWriter(&out, s.Log)
	c.Stderr = c.Stdout
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // so that brokers are stopped
	c.WaitDelay = time.Minute
	figure.Note("%s", strings.Join(command, " "))
	began := time.Now()
	err := c.Run()
	took := time.Since(began)
	if err != nil {
		err = fmt.Errorf("%s: %w after %v", strings.Join(command, " "), err, took.Round(time.Second))
	}
	tests, _, _ := bytes.Cut(out.Bytes(), []byte("\nTest results:\n")) // .ci/run repeats failures after that
	s.runs++
	s.failures += len(failure.FindAll(tests, -1))
	return took, out.Bytes(), err
}

// environment is that of this process, without what a make above it says.
func environment() (env []string) {
	for _, e := range os.Environ() {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS":
		default:
			env = append(env, e)
		}
	}
	return env
}
