// Command figures measures what the documentation claims, one tab-separated
// line a figure: name, value, unit, goal, ok or short. It exits 0 whatever the
// figures, and 2 on bad usage.
package main

import (
	"testing"

	"github.com/redrive-go/redrive/internal/figure"
)

func main() {
	testing.Init()
	figure.Main("core", map[string]figure.Area{"core": core})
}
