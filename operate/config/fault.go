package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/token"

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

// because returns a fault at the place of f.
func (f Fault) because(problem, fix string, cause error) *Fault {
	f.Problem, f.Fix, f.cause = problem, fix, cause
	return &f
}

// at returns a fault of a key without a problem yet. It is at the key, or at what
// is around one that is not there.
func (c *Config) at(key string) Fault {
	f := Fault{File: c.file, Key: key}
	for around := key; around != ""; around = around[:max(strings.LastIndexAny(around, ".["), 0)] {
		if at := c.lines[around]; at != nil {
			f.Line, f.Column = at.Line, at.Column
			break
		}
	}
	return f
}

// Fault returns err as a fault of a key, such as "brokers.shop", for what only
// its users can find out.
func (c *Config) Fault(key string, err error) *Fault { return c.at(key).because(err.Error(), "", err) }

// mostFaults is how many are reported: a file that is no configuration at all has
// thousands.
const mostFaults = 50

// fault notes that something is wrong with a key.
func (d *decoder) fault(key, problem, fix string) {
	d.faults = append(d.faults, d.at(key).because(problem, fix, nil))
}

// faultAt is fault for another place in the file; nil is none.
func (d *decoder) faultAt(at *token.Position, key, problem, fix string) {
	f := Fault{File: d.file, Key: key}
	if at != nil {
		f.Line, f.Column = at.Line, at.Column
	}
	d.faults = append(d.faults, f.because(problem, fix, nil))
}

// err joins the faults, or is nil.
func (d *decoder) err() error {
	slices.SortStableFunc(d.faults, func(a, b *Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Key, b.Key))
	})
	var errs []error
	for _, f := range d.faults[:min(len(d.faults), mostFaults)] {
		errs = append(errs, f)
	}
	if more := len(d.faults) - mostFaults; more > 0 {
		errs = append(errs, fmt.Errorf("%s has %d more faults", d.file, more))
	}
	return errors.Join(errs...)
}

// quoted is a word of the file for a message: short, and on one line.
func quoted(word string) string { return `"` + text.Line(word, 64) + `"` }

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
