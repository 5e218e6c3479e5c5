// Command figures measures what the documentation claims, one tab-separated
// line a figure: name, value, unit, goal, ok or short. It exits 0 whatever the
// figures, and 2 on bad usage.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// figure is one measured value with its goal.
type figure struct {
	name  string
	value float64
	unit  string
	goal  float64
	least bool // the goal is a lower bound, otherwise an upper one
}

// String is the line to print.
func (f figure) String() string {
	bound, met := "<=", f.value <= f.goal
	if f.least {
		bound, met = ">=", f.value >= f.goal
	}
	verdict := "short"
	if met {
		verdict = "ok"
	}
	return fmt.Sprintf("%s\t%.4g\t%s\t%s %.4g\t%s", f.name, f.value, f.unit, bound, f.goal, verdict)
}

// areas are the groups of figures. Each prints a figure as soon as it has it.
var areas = map[string]func(report func(figure)){
	"core": core,
}

func main() {
	testing.Init()
	area := flag.String("area", "core", "which figures: "+strings.Join(slices.Sorted(maps.Keys(areas)), ", "))
	flag.Parse()
	measure := areas[*area]
	if measure == nil || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "figures: no area %q: use one of %s\n", *area, strings.Join(slices.Sorted(maps.Keys(areas)), ", "))
		os.Exit(2)
	}
	measure(func(f figure) { fmt.Println(f) })
}

// median returns the middle of values, the upper one of two.
func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
