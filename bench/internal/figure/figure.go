// Package figure prints measured values against their goals. The commands that
// measure share it, whatever module they are in.
package figure

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Figure is one measured value with its goal.
type Figure struct {
	Name    string
	Value   float64
	Unit    string
	Goal    float64
	AtLeast bool // the goal is a lower bound, otherwise an upper one
}

// String is the line to print: name, value, unit, goal, and ok or short, with
// tabs in between.
func (f Figure) String() string {
	bound, met := "<=", f.Value <= f.Goal
	if f.AtLeast {
		bound, met = ">=", f.Value >= f.Goal
	}
	verdict := "short"
	if met {
		verdict = "ok"
	}
	return fmt.Sprintf("%s\t%.4g\t%s\t%s %.4g\t%s", f.Name, f.Value, f.Unit, bound, f.Goal, verdict)
}

// Area measures a group of figures and reports each as soon as it has it. Its
// error says what it could not measure.
type Area func(report func(Figure)) error

// Main is the whole of a measuring command: it measures the area that the flag
// -area names. It exits 0 whatever the figures are, 1 if some could not be
// measured, and 2 on bad usage.
func Main(standard string, areas map[string]Area) {
	names := strings.Join(slices.Sorted(maps.Keys(areas)), ", ")
	area := flag.String("area", standard, "which figures: "+names)
	flag.Parse()
	measure := areas[*area]
	if measure == nil || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "figures: no area %q: use one of %s\n", *area, names)
		os.Exit(2)
	}
	if err := measure(func(f Figure) { fmt.Println(f) }); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// Median returns the middle of values, the upper one of two.
func Median[T cmp.Ordered](values []T) T { return Quantile(values, 0.5) }

// Quantile returns the value that the share q of values, in [0, 1), lie below.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)))]
}
