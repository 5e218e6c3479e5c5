package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

var plain = term.Streams{In: strings.NewReader(""), Width: 80}

// hostile is a value that a terminal would obey.
const hostile = "a\x1b[2J\nb\u202e\x00"

// TestRowsFail demands that output which was cut off cannot pass for complete.
func TestRowsFail(t *testing.T) {
	gone := errors.New("the store is gone")
	rows := func(yield func(int, error) bool) { _ = yield(1, nil) && yield(0, gone) }
	numbers := table[int]{"id", func(n int) []any { return []any{n} }}
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		err := show(streamsTo(&out, io.Discard), &view{choice{value: format}}, numbers, rows)
		if !errors.Is(err, gone) || format == "json" && json.Valid([]byte(out.String())) {
			t.Errorf("%s: error %v, data %q, which looks complete", format, err, out.String())
		}
	}
}

// TestErrors holds the exit codes and messages of errors of commands.
func TestErrors(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("interrupted by a test")
	cancel(stopped)
	failed := errors.New("the broker said " + hostile)
	resume := []string{"redrive", "dlq", "jobs", "resume", "12"}
	for _, tt := range []struct {
		name    string
		ctx     context.Context
		err     error
		code    int
		message string
	}{
		{"none", t.Context(), nil, exitOK, ""},
		{"failure", t.Context(), failed, exitFailure, "redrive letters: the broker said a\\x1b[2J\nb\\u202e\\x00\n"},
		{"usage", t.Context(), usage(failed), exitUsage, "See 'redrive letters --help'.\n"},
		{"partial", t.Context(), &partialError{fmt.Errorf("3 of 12 letters: %w", failed)}, exitPartial, "redrive letters: 3 of 12 letters: the broker said"},
		{"resumable", t.Context(), resumable(failed, resume...), exitFailure, "Go on with: redrive dlq jobs resume 12\n"},
		{"interrupted", ctx, context.Cause(ctx), exitInterrupted, "redrive letters: interrupted by a test\n"},
		{"interrupted, partial", ctx, resumable(&partialError{stopped}, resume...), exitInterrupted, "redrive letters: interrupted by a test\nGo on with: redrive dlq jobs resume 12\n"},
		{"done before it was interrupted", ctx, nil, exitOK, ""},
		{"not resumable", t.Context(), resumable(nil, resume...), exitOK, ""},
		{"not wrong", t.Context(), usage(nil), exitOK, ""},
	} {
		var stderr strings.Builder
		streams := streamsTo(io.Discard, &stderr)
		root := newRoot(streams)
		root.AddCommand(&cobra.Command{Use: "letters", RunE: func(*cobra.Command, []string) error { return tt.err }})
		if code := execute(tt.ctx, root, []string{"letters"}, streams); code != tt.code || !strings.Contains(stderr.String(), tt.message) || (tt.message == "") != (stderr.Len() == 0) {
			t.Errorf("%s: exit code %d, messages %q, want %d, %q", tt.name, code, stderr.String(), tt.code, tt.message)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := call(t, "completion", shell); got.code != exitOK || !strings.Contains(got.stdout, "redrive") {
			t.Errorf("%s: exit code %d, data %q", shell, got.code, got.stdout)
		}
	}
}

// BenchmarkStart measures how long the command takes that does the least with a
// configuration, and how much of a processor. The goal is 50 ms.
func BenchmarkStart(b *testing.B) {
	program := filepath.Join(b.TempDir(), "redrive")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	var cpu time.Duration
	for b.Loop() {
		cmd := exec.Command(program, "config", "show", "--config", "testdata/shop.yaml")
		cmd.Stderr = os.Stderr
		must(b, cmd.Run())
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"--error=3": "--error=3", "a b": "'a b'", "": "''", "it's": `'it'\''s'`, "$(rm)": "'$(rm)'", hostile: "'" + hostile + "'",
	} {
		if got := quoted(word); got != want {
			t.Errorf("quoted(%q) = %q, want %q", word, got, want)
		}
	}
	if got := term.Safe(quoted(hostile)); strings.ContainsAny(got, "\x1b\n") {
		t.Errorf("%q is not safe", got)
	}
}
