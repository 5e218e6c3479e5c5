// Package figure prints measured values against their goals.
package figure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Figure is a measured value with its goal. The value is the median of its
// samples.
type Figure struct {
	name, unit string
	goal       float64
	lower      bool // the goal is a lower bound, otherwise an upper one
	free       bool // there is no goal
	samples    []float64
}

// AtMost returns a figure whose goal is an upper bound.
func AtMost(name, unit string, goal float64) *Figure {
	return &Figure{name: name, unit: unit, goal: goal}
}

// AtLeast returns a figure whose goal is a lower bound.
func AtLeast(name, unit string, goal float64) *Figure {
	return &Figure{name: name, unit: unit, goal: goal, lower: true}
}

// Reported returns a figure that has no goal.
func Reported(name, unit string) *Figure { return &Figure{name: name, unit: unit, free: true} }

// String is the line to print: name, value, unit, goal, and ok or short, with
// tabs in between; - and reported, if there is no goal. Without a sample there is
// no value, and the figure failed.
func (f *Figure) String() string {
	median := Median(f.samples)
	goal, met := fmt.Sprintf("<= %.4g", f.goal), median <= f.goal
	if f.lower {
		goal, met = fmt.Sprintf(">= %.4g", f.goal), median >= f.goal
	}
	if f.free {
		goal = "-"
	}
	value, verdict := fmt.Sprintf("%.4g", median), "short"
	switch {
	case len(f.samples) == 0:
		value, verdict = "-", "failed"
	case f.free:
		verdict = "reported"
	case met:
		verdict = "ok"
	}
	return strings.Join([]string{f.name, value, f.unit, goal, verdict}, "\t")
}

// Measurement takes the samples of figures that belong together.
type Measurement struct {
	Name    string
	Figures []*Figure
	Limit   time.Duration // 15 minutes if zero
	// Run measures. What it has sampled when it fails counts.
	Run func(context.Context, *Samples) error
}

// Matches reports whether the name of m, or that of one of its figures, matches.
func (m Measurement) Matches(only *regexp.Regexp) bool {
	return only.MatchString(m.Name) || slices.ContainsFunc(m.Figures, func(f *Figure) bool { return only.MatchString(f.name) })
}

// Samples are those of the figures of one measurement.
type Samples struct{ figures []*Figure }

func (s *Samples) figure(name string) *Figure {
	for _, f := range s.figures {
		if f.name == name {
			return f
		}
	}
	panic("no figure " + name)
}

// Add adds a sample to the figure name.
func (s *Samples) Add(name string, value float64) {
	f := s.figure(name)
	f.samples = append(f.samples, value)
}

// Set makes value the only sample of the figure name.
func (s *Samples) Set(name string, value float64) { s.figure(name).samples = []float64{value} }

// Goal replaces the goal of the figure name, where it depends on the measurement.
func (s *Samples) Goal(name string, goal float64) { s.figure(name).goal = goal }

// Run measures one after the other, and prints the figures of each as soon as
// it ends, also if it fails. It goes on with the next then, unless ctx has
// ended. Its error says which failed, and why.
func Run(ctx context.Context, out io.Writer, all []Measurement) error {
	var errs []error
	for _, m := range all {
		if err := m.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Name, err))
			Note("%s failed: %v", m.Name, err)
		}
		for _, f := range m.Figures {
			fmt.Fprintln(out, f)
		}
	}
	return errors.Join(errs...)
}

func (m Measurement) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limit := cmp.Or(m.Limit, 15*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	return m.Run(ctx, &Samples{m.Figures})
}

// Rounds returns the numbers of n rounds. There are fewer, and a note says so, when
// less time is left to ctx than two of them have taken.
func Rounds(ctx context.Context, n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		began := time.Now()
		for round := range n {
			each := time.Since(began) / time.Duration(max(round, 1))
			if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*each {
				Note("this machine is slow: there is time for %d of %d rounds", round, n)
				return
			}
			if !yield(round) {
				return
			}
		}
	}
}

// Note tells of what a figure is made of, apart from the figures.
func Note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "# "+format+"\n", args...)
}

// Median returns the middle of values, the upper one of two.
func Median[T cmp.Ordered](values []T) T { return Quantile(values, 0.5) }

// Quantile returns the value that the share q of values, in [0, 1), lie below,
// and zero if there are none.
func Quantile[T cmp.Ordered](values []T, q float64) (v T) {
	if len(values) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)))]
}
