package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/store"
)

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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

// TestExitCodes has the cases that the session of usage cannot show: much output,
// and messages of the system.
func TestExitCodes(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none", "chart.svg")
	for _, tt := range []struct {
		args    []string
		code    int
		message string // a part of standard error; "" for none at all
		data    bool   // on standard output
	}{
		{nil, exitOK, "", true},
		{[]string{"help"}, exitOK, "", true},
		{[]string{"storm", "--help"}, exitOK, "", true},
		{[]string{"plan", "--policy", none}, exitUsage, "--policy: open ", false},
		{[]string{"plan", "--svg", none}, exitFailure, "the chart was not written", true},
		{[]string{"storm", "--seeds", "1", "--svg", none}, exitFailure, "the chart was not written", true},
		{[]string{"config", "show", "--config", none}, exitFailure, "there is no configuration: open " + none, false},
	} {
		got := call(t, tt.args...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.message) || (tt.message == "") != (got.stderr == "") || (got.stdout != "") != tt.data {
			t.Errorf("%q: exit code %d, messages\n%s\ndata\n%s\nwant %d, %q, data: %v", tt.args, got.code, got.stderr, got.stdout, tt.code, tt.message, tt.data)
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
