package main

import (
	"bytes"
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
	got, err := measure(strings.NewReader(profile))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]coverage{"brokers": {4, 4}, "retry": {4, 10}}
	for pkg, c := range want {
		if got[pkg] != c {
			t.Errorf("%s = %+v, want %+v", pkg, got[pkg], c)
		}
	}
	if len(got) != len(want) {
		t.Errorf("packages = %v, want %v", got, want)
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
	tests := []struct {
		name     string
		packages []string
		fault    string // "" means that the gate opens
	}{
		{"at the goal", []string{"brokers"}, ""},
		{"just below the goal", []string{"brokers", "retry"}, "total coverage 89.90 %"},
		{"not in the profile", []string{"brokers", "dlq"}, "package dlq is not in the profile"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := report(&out, measured, 90, tt.packages)
			if tt.fault == "" {
				if err != nil {
					t.Errorf("error = %v, want none", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("error = %v, want one with %q", err, tt.fault)
			}
			if !strings.Contains(out.String(), "brokers") {
				t.Errorf("output = %q, want a line for brokers", out.String())
			}
		})
	}
}
