package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/demo"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

const tutorial = "docs/tutorial/first-redrive.md"

// inDemo runs f beside what make demo is, on the embedded broker. f gets the
// address of its payment server.
func inDemo(t *testing.T, f func(bank string)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "redrive-demo")
	t.Setenv(config.Variable, filepath.Join(dir, config.DefaultFile))
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- demo.Run(ctx, demo.Options{
			Dir: dir, Bank: "127.0.0.1:0", Listen: "127.0.0.1:0", Watch: "127.0.0.1:0", Out: io.Discard, Logger: slog.New(slog.DiscardHandler),
			Ready: func(bank string) { ready <- bank },
		})
	}()
	select {
	case bank := <-ready:
		f(bank)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the demonstration: %v", err)
		}
	case err := <-ended:
		stop()
		t.Fatalf("the demonstration: %v", err)
	}
}

// unlike is what is another time something else, and what the page has instead.
var unlike = drift{
	{regexp.MustCompile(`(?m)^\d+ of \d+ letters, .*\n`), ""},
	{regexp.MustCompile(`\b\d+[smh] ago`), "9s ago"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "2026-11-25T03:00:00Z"},
	{regexp.MustCompile(`(?m)^(  \d+ +)\d\d:\d\d:\d\d:`), "${1}03:00:00:"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:7421"},
	{regexp.MustCompile(regexp.QuoteMeta(whoami())), "anna@desk"},
	{regexp.MustCompile(`(dead by +).*`), "${1}worker-1"},
	{regexp.MustCompile(`(?m)^(  size +).*`), "${1}760 B"},
	{regexp.MustCompile(`such as letter \d+`), "such as letter 4"},
	// A receipt has told of it first, or the letter itself has.
	{regexp.MustCompile(`returned: (?:dead poison [0-9a-f]{16}|it came\s+back\s+as\s+another\s+letter), such as letter \d+, which\s+came\s+back with:`),
		"returned: dead poison 95dc9ffd29fd5cc1, such as letter 4, which came\n           back with:"},
	{regexp.MustCompile(`went wrong \(1 (?:failing|returned)\)`), "went wrong (1 returned)"},
	{regexp.MustCompile(`(This would send \d+ letters), .*`), "$1, 2.9 MiB"},
}

// TestTutorial types what the tutorial does, beside the demonstration, and compares
// what comes with what the page shows.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends 4,000 letters at the rate of the page")
	}
	shown := regexp.MustCompile("(?m)^```\n\\$ ([^\n]+)\n((?s).*?)^```$")
	page, typed := readPage(t, tutorial), 0
	inDemo(t, func(bank string) {
		now := shown.ReplaceAllStringFunc(page, func(old string) string {
			typed++
			awaitReturned(t)
			part := shown.FindStringSubmatch(old)
			text := unlike.uniform(typeIn(t, bank, part[1]))
			if alike(text, part[2]) {
				return old
			}
			return fmt.Sprintf("```\n$ %s\n%s```", part[1], text)
		})
		goldentest.File(t, filepath.Join(root, tutorial), now)
	})
	if typed < 10 {
		t.Errorf("%s shows %d commands, want them all to be found", tutorial, typed)
	}
}

// alike compares what comes with what the page shows, but for the widths of what is
// unlike: how many spaces there are, and where a line is cut.
func alike(a, b string) bool {
	spaces := regexp.MustCompile(` {2,}`)
	return slices.EqualFunc(strings.Split(a, "\n"), strings.Split(b, "\n"), func(a, b string) bool {
		a, b = spaces.ReplaceAllString(a, " "), spaces.ReplaceAllString(b, " ")
		if len(a) > len(b) {
			a, b = b, a
		}
		start, cut := strings.CutSuffix(a, "…")
		return a == b || cut && strings.HasPrefix(b, start)
	})
}

// awaitReturned waits, as whoever reads the tutorial does, until letters that died
// again are collected again.
func awaitReturned(t *testing.T) {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(filepath.Dir(os.Getenv(config.Variable)), "letters.db"))
	must(t, err)
	defer s.Close()
	for tick := time.Tick(10 * time.Millisecond); ; <-tick {
		list, err := s.Letters(t.Context(), store.Filter{States: []store.State{store.StateReturned}}, store.Page{})
		must(t, err)
		if !slices.ContainsFunc(list.Letters, func(l store.Letter) bool { return l.Next == 0 }) {
			return
		}
	}
}

// typeIn returns what a terminal shows of a command.
func typeIn(t *testing.T, bank, line string) string {
	t.Helper()
	words := wordsOf(line)
	if words[0] == "curl" {
		return curl(t, wordsOf(strings.Replace(line, "http://127.0.0.1:7421", bank, 1)))
	}
	var terminal strings.Builder
	streams := term.Streams{In: strings.NewReader(""), Out: &terminal, Err: &terminal, Width: 80}
	if code := execute(t.Context(), newRootOn(streams, connect.Broker, connect.Broker), words[1:], streams); code == exitUsage || code == exitFailure {
		t.Errorf("%s: exit code %d: %s", line, code, &terminal)
	}
	return terminal.String()
}

// wordsOf splits a line as a shell does that has single quotes only.
func wordsOf(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}
