package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/internal/typo"
)

// Fault is one thing that is wrong with a configuration, and where.
type Fault struct {
	File         string
	Line, Column int    // from 1; 0 for what no line stands for
	Key          string // such as "topics[0].broker"; empty for the file as a whole
	Problem      string
	Fix          string // what to write instead; empty where Problem says it

	cause error
}

// Error begins as compilers do, so that editors find the line.
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	for _, part := range []string{f.Key, f.Problem, f.Fix} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String()
}

// Unwrap returns what the fault was made of, if anything.
func (f *Fault) Unwrap() error { return f.cause }

// place is where something stands in the file.
type place struct{ line, column int }

// mostFaults is how many are reported: a file that is no configuration at all has
// thousands.
const mostFaults = 50

// fault notes that something is wrong with a key at a place.
func (d *decoder) fault(key string, at place, problem, fix string) {
	d.faults = append(d.faults, &Fault{File: d.file, Line: at.line, Column: at.column, Key: key, Problem: problem, Fix: fix})
}

// wrong is fault for a key of the file, or for what is around one that is not there.
func (d *decoder) wrong(key, problem, fix string) {
	at := d.lines[key]
	for around := key; at.line == 0 && around != ""; at = d.lines[around] {
		around = around[:max(strings.LastIndexAny(around, ".["), 0)]
	}
	d.fault(key, at, problem, fix)
}

// err joins the faults, or is nil.
func (d *decoder) err() error {
	sortFaults(d.faults)
	var errs []error
	for _, f := range d.faults[:min(len(d.faults), mostFaults)] {
		errs = append(errs, f)
	}
	if more := len(d.faults) - mostFaults; more > 0 {
		errs = append(errs, fmt.Errorf("%s has %d more faults", d.file, more))
	}
	return errors.Join(errs...)
}

// sortFaults puts faults into the order of the file.
func sortFaults(faults []*Fault) {
	slices.SortStableFunc(faults, func(a, b *Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Key, b.Key))
	})
}

// quoted is a word of the file for a message: short, and on one line.
func quoted(word string) string {
	return `"` + text.Line(word, 64) + `"`
}

// suggest says which of the words was meant, or which there are.
func suggest(word string, words []string) string {
	switch best := typo.Nearest(word, words); {
	case best != "":
		return "did you mean " + best + "?"
	case len(words) == 0:
		return "there are none"
	}
	return "use " + typo.AnyOf(words)
}
