package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// trialRow stands for what commands list.
type trialRow struct {
	ID   int       `json:"id"`
	Dead time.Time `json:"dead"`
	Text string    `json:"text"`
}

// trial is a command on the frame, as those for dead letters are.
type trial struct {
	setup
	view
	consent
	topic string
	rows  []trialRow
	fault error // after the rows
}

func (c *trial) command(streams term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "letters [topic]",
		ValidArgsFunction: c.completion(topicNames),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.ask(cmd.Context(), streams, "This discards 312 letters", 312); err != nil {
				return err
			}
			return show(streams, &c.view, c.columns(), c.letters())
		},
	}
	c.setup.register(cmd.Flags())
	c.view.register(cmd.Flags())
	c.consent.register(cmd.Flags())
	cmd.Flags().StringVar(&c.topic, "group", "", "")
	if err := cmd.RegisterFlagCompletionFunc("group", c.completion(groupNames)); err != nil {
		panic(err)
	}
	cmd.Flags().String("broker", "", "")
	if err := cmd.RegisterFlagCompletionFunc("broker", c.completion(brokerNames)); err != nil {
		panic(err)
	}
	return cmd
}

func (c *trial) columns() []column[trialRow] {
	return []column[trialRow]{
		{head: "id", right: true, text: func(r trialRow) string { return fmt.Sprint(r.ID) }},
		{head: "dead", text: func(r trialRow) string { return instant{r.Dead}.ago() }, style: func(trialRow) term.Style { return term.Dim }},
		{head: "text", text: func(r trialRow) string { return r.Text }},
	}
}

func (c *trial) letters() iter.Seq2[trialRow, error] {
	return func(yield func(trialRow, error) bool) {
		for row := range all(c.rows) {
			if !yield(row, nil) {
				return
			}
		}
		if c.fault != nil {
			yield(trialRow{}, c.fault)
		}
	}
}

// call runs redrive with the trial among its commands.
func (c *trial) call(ctx context.Context, streams term.Streams, args ...string) result {
	var stdout, stderr strings.Builder
	streams.Out, streams.Err = &stdout, &stderr
	root := newRoot(streams)
	cmd := c.command(streams)
	root.AddCommand(cmd)
	completeWords(cmd)
	code := execute(ctx, root, args, streams)
	return result{code, stdout.String(), stderr.String()}
}

var plain = term.Streams{In: strings.NewReader(""), Width: 80}

// hostile is a value that a terminal would obey.
const hostile = "a\x1b[2J\nb\u202e\x00"

func TestFormats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := []trialRow{
			{7, time.Now().Add(-90 * time.Minute), "card declined: " + strings.Repeat("the bank says no, ", 6)},
			{1234, time.Time{}, hostile},
		}
		for _, tt := range []struct {
			file    string
			streams term.Streams
			args    []string
		}{
			{"text.txt", plain, nil},
			{"colour.txt", term.Streams{In: plain.In, Width: 60, Colour: true}, nil},
			{"rows.json", plain, []string{"-o", "json"}},
		} {
			got := (&trial{rows: rows}).call(t.Context(), tt.streams, append([]string{"letters", "--yes"}, tt.args...)...)
			if got.code != exitOK || got.stderr != "" {
				t.Errorf("%s: exit code %d, messages %q", tt.file, got.code, got.stderr)
			}
			golden(t, filepath.Join("testdata", "frame", tt.file), got.stdout)
		}
		for format, want := range map[string]string{"json": "[]\n", "text": "id  dead  text\n"} {
			if got := (&trial{}).call(t.Context(), plain, "letters", "--yes", "-o", format); got.code != exitOK || got.stdout != want {
				t.Errorf("no rows as %s: exit code %d, data %q, want %q", format, got.code, got.stdout, want)
			}
		}
	})
}

// TestRowsFail demands that output which was cut off cannot pass for complete.
func TestRowsFail(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		c := &trial{rows: []trialRow{{ID: 1}}, fault: errors.New("the store is gone")}
		got := c.call(t.Context(), plain, "letters", "--yes", "-o", format)
		if got.code != exitFailure || !strings.Contains(got.stderr, "the store is gone") {
			t.Errorf("%s: exit code %d, messages %q", format, got.code, got.stderr)
		}
		if format == "json" && json.Valid([]byte(got.stdout)) {
			t.Errorf("json: %q looks complete", got.stdout)
		}
	}
}

func TestConsent(t *testing.T) {
	asks := func(answer string) term.Streams {
		return term.Streams{In: strings.NewReader(answer), Width: 80, Asks: true}
	}
	for _, tt := range []struct {
		name    string
		streams term.Streams
		args    []string
		code    int
		message string
	}{
		{"typed", asks("312\n"), nil, exitOK, "This discards 312 letters\nType 312 to go on: "},
		{"typed something else", asks("y\n"), nil, exitFailure, "nothing was done: the number was not typed"},
		{"nobody there", plain, nil, exitUsage, "nothing was done: This discards 312 letters: add --yes"},
		{"yes", plain, []string{"--yes"}, exitOK, ""},
	} {
		c := &trial{rows: []trialRow{{ID: 1}}}
		got := c.call(t.Context(), tt.streams, append([]string{"letters"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.message) || (got.stdout != "") != (tt.code == exitOK) {
			t.Errorf("%s: exit code %d, messages %q, data %q, want %d, %q", tt.name, got.code, got.stderr, got.stdout, tt.code, tt.message)
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

func TestTypos(t *testing.T) {
	for _, tt := range []struct {
		args    []string
		message string
	}{
		{[]string{"strom", "--seeds", "3"}, `redrive: there is no command "strom": did you mean storm?`},
		{[]string{"config", "chek"}, `redrive config: there is no command "chek": did you mean check?`},
		{[]string{"config", "chek", "-x"}, `there is no command "chek": did you mean check?`},
		{[]string{"config", "frobnicate"}, `redrive config: there is no command "frobnicate"` + "\n"},
		{[]string{"config", "check", "--confg", "x"}, "unknown flag: --confg: did you mean --config?"},
		{[]string{"plan", "--atempts", "3"}, "unknown flag: --atempts: did you mean --attempts?"},
		{[]string{"config", "check", "-o", "yaml"}, "use text or json"},
	} {
		if got := call(t, tt.args...); got.code != exitUsage || !strings.Contains(got.stderr, tt.message) || got.stdout != "" {
			t.Errorf("%q: exit code %d, messages %q, want %q", tt.args, got.code, got.stderr, tt.message)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"letters", ""}, []string{"orders", "payments"}},
		{[]string{"letters", "orders", ""}, []string{"payments"}},
		{[]string{"letters", "--group", ""}, []string{"billing", "ledger"}},
		{[]string{"letters", "--broker", ""}, []string{"events", "shop"}},
		{[]string{"letters", "-o", ""}, []string{"text", "json"}},
		{[]string{"plan", "--jitter", ""}, jitters},
	} {
		args := append([]string{"__complete"}, tt.args...)
		if tt.args[0] == "letters" {
			args = slices.Insert(args, 2, "--config", "testdata/shop.yaml")
		}
		got := (&trial{}).call(t.Context(), plain, args...)
		lines := strings.Split(got.stdout, "\n")
		if i := slices.Index(lines, ":4"); i < 0 || !slices.Equal(lines[:i], tt.want) {
			t.Errorf("%q: %q, want %q and no files", tt.args, lines, tt.want)
		}
	}
	if got := (&trial{}).call(t.Context(), plain, "__complete", "letters", "--config", "testdata/none.yaml", ""); got.code != exitOK || got.stdout != ":4\n" {
		t.Errorf("without a configuration: exit code %d, data %q", got.code, got.stdout)
	}
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
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
}
