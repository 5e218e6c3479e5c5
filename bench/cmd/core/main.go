// Command figures measures what the documentation claims, one tab-separated
// line a figure: name, value, unit, goal, ok or short. What a figure is made
// of goes to standard error. It exits 0 whatever the figures, 1 if some could
// not be measured, and 2 on bad usage.
package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/redrive-go/redrive/bench/internal/figure"
)

func main() {
	testing.Init()
	figure.Main("core", map[string]figure.Area{"core": core, "restraint": restraint})
}

// note tells of what a figure is made of, apart from the figures.
func note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "# "+format+"\n", args...)
}
