package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const (
	root    = "../../.."
	cliPage = "docs/reference/cli.md"
	physics = "docs/explanation/retry-physics.md"
)

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// TestReference holds docs/reference/cli.md against the help of every command.
func TestReference(t *testing.T) {
	section := regexp.MustCompile("(?s)<!-- generated: (redrive[ a-z-]*) -->\n.*?<!-- end -->")
	var documented []string
	page := section.ReplaceAllStringFunc(readPage(t, cliPage), func(old string) string {
		name := section.FindStringSubmatch(old)[1]
		documented = append(documented, name)
		help := call(t, append(strings.Fields(name)[1:], "--help")...)
		if help.code != exitOK {
			t.Fatalf("%s --help: exit code %d, messages %q", name, help.code, help.stderr)
		}
		return fmt.Sprintf("<!-- generated: %s -->\n```\n%s```\n<!-- end -->", name, help.stdout)
	})
	if want := commands(newRoot()); !slices.Equal(documented, want) {
		t.Errorf("%s has the sections %q, want %q", cliPage, documented, want)
	}
	golden(t, filepath.Join(root, cliPage), page)
}

// commands returns the names of a command and of those below it.
func commands(c *cobra.Command) []string {
	names := []string{c.CommandPath()}
	for _, sub := range c.Commands() {
		names = append(names, commands(sub)...)
	}
	return names
}

// TestPhysics runs every command of the page on retry physics, and compares its
// output, and its chart, with what the page shows.
func TestPhysics(t *testing.T) {
	shown := regexp.MustCompile("(?m)^```\n\\$ redrive ([^\n]+)\n((?s).*?)^```$")
	ran := 0
	page := shown.ReplaceAllStringFunc(readPage(t, physics), func(old string) string {
		ran++
		line := shown.FindStringSubmatch(old)[1]
		args := strings.Fields(line)
		compareChart := func() {}
		if i := slices.Index(args, "--svg"); i >= 0 {
			chart := filepath.Join(root, args[i+1])
			drawn := filepath.Join(t.TempDir(), "chart.svg")
			args[i+1] = drawn
			compareChart = func() { sameChart(t, chart, drawn) }
		}
		got := call(t, args...)
		if got.code == exitUsage {
			t.Errorf("redrive %s: %s", line, got.stderr)
		}
		compareChart()
		return fmt.Sprintf("```\n$ redrive %s\n%s```", line, got.stdout)
	})
	if ran < 5 {
		t.Errorf("%s shows %d commands, want them all to be found", physics, ran)
	}
	golden(t, filepath.Join(root, physics), page)
}

func sameChart(t *testing.T, chart, drawn string) {
	t.Helper()
	wellFormed(t, drawn)
	got, err := os.ReadFile(drawn)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(chart, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))) {
		t.Errorf("%s is not what its command draws; if that is right, run go test ./operate/cmd/redrive -update", chart)
	}
}
