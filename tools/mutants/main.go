// Command mutants plants bugs in the source, one at a time, each of which breaks
// a promise, and fails unless the test that is named for each does.
//
//	mutants [-list FILE] [-root DIR] [-limit 30s] [-only REGEXP]
//
// The list is TOML, see mutants.toml. The compiler reads a bug from an overlay,
// so the work tree is never touched. A named test that fails kills it; what does
// not compile, hangs or panics counts as survived.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

func main() {
	var c campaign
	flag.StringVar(&c.list, "list", "mutants/mutants.toml", "list of mutants")
	flag.StringVar(&c.root, "root", "..", "directory that the files of the list are below")
	flag.DurationVar(&c.limit, "limit", 30*time.Second, "time that a test has to fail")
	only := flag.String("only", "", "regular expression for the files or promises of those to plant")
	flag.Parse()
	if err := c.run(os.Stdout, regexp.MustCompile(*only)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// mutant is a bug: New in place of Old in File breaks Promise.
type mutant struct {
	Promise string
	File    string // below the root
	Old     string // occurs once
	New     string
	Package string // of the test; that of File if empty
	Test    string // a function that must fail

	number int
}

// campaign plants mutants and looks at what the tests make of them.
type campaign struct {
	list, root string
	limit      time.Duration
	tmp        string
}

func (c *campaign) run(w io.Writer, only *regexp.Regexp) error {
	mutants, err := c.read()
	if err != nil {
		return err
	}
	mutants = slices.DeleteFunc(mutants, func(m *mutant) bool { return !only.MatchString(m.File + " " + m.Promise) })
	if c.tmp, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(c.tmp)
	if err := c.unchanged(mutants); err != nil {
		return err
	}
	var survived []error
	for _, m := range mutants {
		begin, verdict := time.Now(), "killed"
		if err := c.plant(m); err != nil {
			verdict = "SURVIVED"
			survived = append(survived, fmt.Errorf("entry %d (%s, %s): %w", m.number, m.File, m.Promise, err))
		}
		fmt.Fprintf(w, "%-8s  %5.1f s  %s: %s (%s %s)\n", verdict, time.Since(begin).Seconds(), m.File, m.Promise, m.Package, m.Test)
	}
	fmt.Fprintf(w, "mutants: %d planted, mutants_survived %d\n", len(mutants), len(survived))
	if len(survived) > 0 {
		return fmt.Errorf("mend the test that is named for each of these, or the entry in %s:\n%w", c.list, errors.Join(survived...))
	}
	return nil
}

// read returns the mutants of a list that fits the source, or all its faults.
func (c *campaign) read() ([]*mutant, error) {
	var content struct{ Mutant []*mutant }
	meta, err := toml.DecodeFile(c.list, &content)
	faults := []error{err}
	for _, key := range meta.Undecoded() {
		faults = append(faults, fmt.Errorf("%s: unknown key %s", c.list, key))
	}
	c.root, err = filepath.Abs(c.root)
	faults = append(faults, err)
	for i, m := range content.Mutant {
		if m.number = i + 1; m.Package == "" {
			m.Package = filepath.Dir(m.File)
		}
		source, err := os.ReadFile(filepath.Join(c.root, m.File))
		if n := strings.Count(string(source), m.Old); err != nil || n != 1 {
			faults = append(faults, fmt.Errorf("the source has changed: mend entry %d (%s): what is old occurs %d times, not once:\n%s", m.number, m.File, n, m.Old))
		}
	}
	return content.Mutant, errors.Join(faults...)
}

// unchanged runs the named tests of each package on the source as it is.
func (c *campaign) unchanged(mutants []*mutant) error {
	tests := map[string][]string{}
	for _, m := range mutants {
		tests[m.Package] = append(tests[m.Package], m.Test)
	}
	for pkg, names := range tests {
		out, err := c.test(time.Hour, pkg, strings.Join(names, "|"))
		if err != nil {
			return fmt.Errorf("%s fails without any mutant: %w\n%s", pkg, err, out)
		}
		for _, name := range names {
			if !bytes.Contains(out, []byte("--- PASS: "+name+" (")) {
				return fmt.Errorf("%s has no test %s, or skips it:\n%s", pkg, name, out)
			}
		}
	}
	return nil
}

var panicked = regexp.MustCompile(`(?m)^(panic|fatal error): `)

// plant returns why m survived, nil if its test killed it.
func (c *campaign) plant(m *mutant) error {
	file, mutated, overlay := filepath.Join(c.root, m.File), filepath.Join(c.tmp, "mutated.go"), filepath.Join(c.tmp, "overlay.json")
	source, err := os.ReadFile(file)
	replace, _ := json.Marshal(map[string]map[string]string{"Replace": {file: mutated}})
	if err := errors.Join(err,
		os.WriteFile(mutated, []byte(strings.Replace(string(source), m.Old, m.New, 1)), 0o600),
		os.WriteFile(overlay, replace, 0o600),
	); err != nil {
		return err
	}
	out, err := c.test(c.limit, m.Package, m.Test, "-overlay", overlay)
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return errors.New("the test passes")
	case !failed || !exit.Exited():
		return fmt.Errorf("%w\n%s", err, out)
	case panicked.Match(out) || !bytes.Contains(out, []byte("--- FAIL: "+m.Test+" (")):
		return fmt.Errorf("the test does not say what is wrong, but ends with %w\n%s", err, out)
	}
	return nil
}

// test builds the tests of a package and runs those that are named for up to
// limit.
func (c *campaign) test(limit time.Duration, pkg, names string, flags ...string) ([]byte, error) {
	dir, binary := filepath.Join(c.root, pkg), filepath.Join(c.tmp, "test")
	build := exec.Command("go", append([]string{"test", "-c", "-ldflags=-w", "-o", binary}, flags...)...)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return out, fmt.Errorf("it does not compile: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.v", "-test.run", "^("+names+")$")
	run.Dir, run.WaitDelay = dir, time.Second
	out, err := run.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it hangs: no end after %v", limit)
	}
	return out, err
}
