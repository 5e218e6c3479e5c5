// Package goldentest compares what tests make with files, and rewrites the files
// with "go test -update".
package goldentest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files, and the generated parts of the documentation")

// Updates reports whether tests rewrite what they compare with.
func Updates() bool { return *update }

// Read returns the text of a file, with the line ends of Unix.
func Read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// File compares a text with a file, or rewrites the file. If they differ, the
// test fails and logs the lines that the file does not have.
func File(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := Read(t, file)
	if got == want {
		return
	}
	t.Errorf("%s has %d lines, and the test makes %d; if they are right, run go test -update here. New lines:",
		file, strings.Count(want, "\n"), strings.Count(got, "\n"))
	for line := range strings.Lines(got) {
		if !strings.Contains("\n"+want, "\n"+line) {
			t.Log(strings.TrimSuffix(line, "\n"))
		}
	}
}

// section is a generated part of a page.
var section = regexp.MustCompile(`(?s)<!-- generated: ([\w -]+?) -->\n.*?<!-- end -->`)

// Parts compares the generated parts of a page with texts, by their names, or
// rewrites them. Each must be there once. The page must have no other parts,
// except those whose names begin with one of others: another test makes them.
func Parts(t testing.TB, file string, texts map[string]string, others ...string) {
	t.Helper()
	var found []string
	page := section.ReplaceAllStringFunc(Read(t, file), func(part string) string {
		name := section.FindStringSubmatch(part)[1]
		if slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(name, other) }) {
			return part
		}
		found = append(found, name)
		return fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->", name, texts[name])
	})
	slices.Sort(found)
	if want := slices.Sorted(maps.Keys(texts)); !slices.Equal(found, want) {
		t.Fatalf("%s has the generated parts %q, want %q, each once", file, found, want)
	}
	File(t, file, page)
}
