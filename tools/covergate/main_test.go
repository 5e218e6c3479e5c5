package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

const profile = `mode: atomic
github.com/redrive-go/redrive/brokers/a.go:1.1,2.2 3 0
github.com/redrive-go/redrive/brokers/a.go:3.1,4.2 1 7
github.com/redrive-go/redrive/retry/b.go:1.1,2.2 6 0
github.com/redrive-go/redrive/brokers/a.go:1.1,2.2 3 18446744073709551615
github.com/redrive-go/redrive/retry/b.go:5.1,6.2 4 1
`

func TestMeasureCountsABlockOnce(t *testing.T) {
	want := map[string]coverage{"brokers": {4, 4}, "retry": {4, 10}}
	if got, err := measure(strings.NewReader(profile)); err != nil || !maps.Equal(got, want) {
		t.Errorf("measure = %v, %v, want %v", got, err, want)
	}
}

func TestMeasureRefusesWhatIsNoProfile(t *testing.T) {
	for _, line := range []string{"", "a b", "a.go:1.1,2.2 x 1", "a.go:1.1,2.2 1 x", "a.go:1.1,2.2 1 -1"} {
		if got, err := measure(strings.NewReader("mode: set\n" + line + "\n")); err == nil {
			t.Errorf("measure(%q) = %v, want an error", line, got)
		}
	}
}

func TestReport(t *testing.T) {
	measured := map[string]coverage{"brokers": {9, 10}, "retry": {899, 1000}, "other": {0, 5000}}
	for packages, want := range map[string]string{
		"brokers":       "<nil>", // just at the goal
		"brokers retry": "total coverage 89.90 %",
		"brokers dlq":   "package dlq is not in the profile",
	} {
		var out strings.Builder
		err := report(&out, measured, 90, strings.Fields(packages))
		if !strings.Contains(fmt.Sprint(err), want) || !strings.Contains(out.String(), "brokers") {
			t.Errorf("%s: error %v, want %s; output %q, want a line for brokers", packages, err, want, out.String())
		}
	}
}
