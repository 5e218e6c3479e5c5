package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/store"
)

var update = flag.Bool("update", false, "rewrite the golden files and the generated parts of the documentation")

// asCommand is a variable that makes the binary of this test run as the
// command.
const asCommand = "REDRIVE_TEST_COMMAND"

// TestMain says at once what tests would wait for in vain.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if err := roomToCollect(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests collect letters with the default limits:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// roomToCollect reports whether the disk of temporary files is too full for that.
func roomToCollect() error {
	dir, err := os.MkdirTemp("", "redrive")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := store.Open(context.Background(), filepath.Join(dir, "letters.db"))
	if err != nil {
		return err
	}
	defer s.Close()
	free, size, err := s.Disk()
	if err == nil && free < size/10 {
		err = fmt.Errorf("%s has %.1f %% free, they need 10 %%", dir, 100*float64(free)/float64(size))
	}
	return err
}

// result is what a call of the command came to.
type result struct {
	code           int
	stdout, stderr string
}

func call(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	code := run(t.Context(), args, streamsTo(&stdout, &stderr))
	return result{code, stdout.String(), stderr.String()}
}

// streamsTo are the streams of a process without a terminal, and without input.
func streamsTo(stdout, stderr io.Writer) term.Streams {
	return term.Streams{In: strings.NewReader(""), Out: stdout, Err: stderr, Width: 80}
}

// golden compares got with a file, or rewrites the file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("the output is not that of %s; if it is right, run go test ./operate/cmd/redrive -update. Got\n%s", file, got)
	}
}

// small keeps the storms of tests short.
var small = []string{"--seeds", "3"}

func TestGolden(t *testing.T) {
	tests := map[string][]string{
		"storm":           append([]string{"storm"}, small...),
		"storm_seed":      append([]string{"storm", "--preset", "seed"}, small...),
		"storm_one":       {"storm", "--policy", "full", "--seeds", "1"},
		"storm_random":    {"storm", "--policy", "none,full", "--budget", "off,mesh,15%+2/s", "--breaker", "off,on", "--arrivals", "poisson", "--capacity", "550", "--patience", "300ms", "--concurrency", "100", "--seeds", "2"},
		"plan":            {"plan"},
		"plan_table":      {"plan", "--jitter", "none", "--base", "100ms", "--cap", "30s", "--attempts", "9"},
		"plan_slo":        {"plan", "--attempts", "4", "--base", "100ms", "--cap", "2s", "--run", "150ms", "--slo", "2s"},
		"plan_hops":       {"plan", "--attempts", "3", "--hops", "sdk=3,3", "--budget", "mesh"},
		"plan_hops_plain": {"plan", "--attempts", "3", "--hops", "2,1", "--budget", "off"},
		"plan_age":        {"plan", "--max-age", "2m", "--run", "1s", "--jitter", "decorrelated", "--floor", "500ms"},
		"plan_linear":     {"plan", "--step", "1s", "--jitter", "equal", "--attempts", "5"},
		"plan_service":    {"plan", "--policy", filepath.Join("testdata", "policy.json"), "--run", "2s"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			text := call(t, args...)
			if text.code != exitOK || text.stderr != "" {
				t.Fatalf("exit code %d, messages %q", text.code, text.stderr)
			}
			golden(t, filepath.Join("testdata", name+".txt"), text.stdout)
			data := call(t, append(args, "--output", "json")...)
			if data.code != exitOK || !json.Valid([]byte(data.stdout)) {
				t.Fatalf("exit code %d, messages %q, data\n%s", data.code, data.stderr, data.stdout)
			}
			golden(t, filepath.Join("testdata", name+".json"), data.stdout)
		})
	}
}

func TestExitCodes(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none", "chart.svg")
	tests := []struct {
		name    string
		args    []string
		code    int
		message string // a part of standard error; "" for none at all
		data    bool   // on standard output
	}{
		{"no command", nil, exitOK, "", true},
		{"help", []string{"help"}, exitOK, "", true},
		{"help of a command", []string{"storm", "--help"}, exitOK, "", true},
		{"a script for a shell", []string{"completion", "bash"}, exitOK, "", true},
		{"unknown command", []string{"strom"}, exitUsage, "See 'redrive --help'", false},
		{"unknown flag", []string{"storm", "--no-such"}, exitUsage, "--no-such", false},
		{"flag without a value", []string{"plan", "--slo"}, exitUsage, "--slo", false},
		{"argument", []string{"storm", "now"}, exitUsage, "takes flags only", false},
		{"argument of plan", []string{"plan", "now"}, exitUsage, "takes flags only", false},
		{"bad number", []string{"storm", "--seeds", "many"}, exitUsage, "--seeds", false},
		{"no seeds", []string{"storm", "--seeds", "0"}, exitUsage, "--seeds is 0: use 1 to 1000", false},
		{"bad output", []string{"plan", "-o", "yaml"}, exitUsage, "use text or json", false},
		{"bad preset", []string{"storm", "--preset", "calm"}, exitUsage, "use seed, spread, overload, consumer or recovery", false},
		{"bad policy", []string{"storm", "--policy", "none,half"}, exitUsage, `no policy "half"`, false},
		{"no policy", []string{"storm", "--policy", ""}, exitUsage, `no policy ""`, false},
		{"bad budget", []string{"storm", "--budget", "10"}, exitUsage, `"10" is no budget`, false},
		{"budget refused", []string{"storm", "--budget", "200%+1/s"}, exitUsage, "Config.Share: is 2", false},
		{"bad breaker", []string{"storm", "--breaker", "1"}, exitUsage, `"1" is no breaker`, false},
		{"bad scenario", []string{"storm", "--rate", "-1"}, exitUsage, "--rate is -1", false},
		{"bad policy of storm", []string{"storm", "--base", "1h"}, exitUsage, "Backoff.Cap", false},
		{"nothing to do", []string{"storm", "--attempts", "0"}, exitUsage, "--attempts is 0", false},
		{"several faults", []string{"storm", "--bin", "0", "--service", "-1s"}, exitUsage, "--service", false},
		{"bad plan", []string{"plan", "--floor", "1h"}, exitUsage, "Backoff.Floor", false},
		{"bad budget of plan", []string{"plan", "--budget", "few"}, exitUsage, "--budget: ", false},
		{"bad hops", []string{"plan", "--hops", "3,0"}, exitUsage, `"0" is no hop`, false},
		{"bad slo", []string{"plan", "--slo", "-1s"}, exitUsage, "--slo is -1s", false},
		{"policy and a flag of it", []string{"plan", "--policy", "none.json", "--cap", "1h"}, exitUsage, "--cap: leave it out", false},
		{"no file of a policy", []string{"plan", "--policy", none}, exitUsage, "--policy: open ", false},
		{"no policy in the file", []string{"plan", "--policy", filepath.Join("testdata", "plan.json")}, exitUsage, "attempts", false},
		{"slo kept", []string{"plan", "--attempts", "2", "--slo", "1s"}, exitOK, "", true},
		{"slo missed", []string{"plan", "--slo", "1s"}, exitFailure, "does not keep the SLO of 1s: a message may take 8m31s", true},
		{"no folder for the chart of plan", []string{"plan", "--svg", none}, exitFailure, "the chart was not written", true},
		{"no folder for the chart of storm", []string{"storm", "--seeds", "1", "--svg", none}, exitFailure, "the chart was not written", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := call(t, tt.args...)
			if got.code != tt.code || !strings.Contains(got.stderr, tt.message) || (tt.message == "") != (got.stderr == "") {
				t.Errorf("exit code %d, messages\n%s\nwant %d, %q", got.code, got.stderr, tt.code, tt.message)
			}
			if (got.stdout != "") != tt.data {
				t.Errorf("data\n%s\nwant some: %v", got.stdout, tt.data)
			}
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		flags []string
	}{
		{[]string{"storm", "--bin", "0", "--service", "-1s", "--rate", "-1", "--seeds", "0", "--attempts", "0"},
			[]string{"--bin", "--service", "--rate", "--seeds", "--attempts"}},
		{[]string{"plan", "--budget", "few", "--slo", "-1s", "--run", "-1s", "--samples", "0", "--floor", "1h"},
			[]string{"--budget", "--slo", "--run", "--samples", "Floor"}},
	} {
		got := call(t, tt.args...)
		for _, flag := range tt.flags {
			if !strings.Contains(got.stderr, flag) {
				t.Errorf("%q: messages\n%s\nwant one about %s", tt.args, got.stderr, flag)
			}
		}
		if got.code != exitUsage || got.stdout != "" {
			t.Errorf("%q: exit code %d, data %q", tt.args, got.code, got.stdout)
		}
	}
}

func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted by a test"))
	var stdout, stderr strings.Builder
	if code := run(ctx, []string{"storm"}, streamsTo(&stdout, &stderr)); code != exitInterrupted || !strings.Contains(stderr.String(), "interrupted by a test") || stdout.Len() > 0 {
		t.Errorf("exit code %d, messages %q, data %q", code, stderr.String(), stdout.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestOutputFails(t *testing.T) {
	for _, args := range [][]string{{"plan"}, {"plan", "-o", "json"}, {"storm", "--seeds", "1"}, {"storm", "--seeds", "1", "-o", "json"}} {
		var stderr strings.Builder
		if code := run(t.Context(), args, streamsTo(fullDisk{}, &stderr)); code != exitFailure || !strings.Contains(stderr.String(), "the disk is full") {
			t.Errorf("%q: exit code %d, messages %q, want a failure", args, code, stderr.String())
		}
	}
}
