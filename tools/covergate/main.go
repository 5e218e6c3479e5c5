// Command covergate reads a Go coverage profile, prints the coverage of each
// named package and of all of them together, and exits 1 when the total is
// below the minimum or a named package is absent from the profile.
//
//	covergate -min 90 -profile coverage.out PACKAGE...
//
// A package is named by its path inside the module. A block that several test
// binaries report counts once, and is covered if any of them reached it.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
)

const module = "github.com/redrive-go/redrive/"

func main() {
	least := flag.Float64("min", 90, "least total coverage in percent of statements")
	profile := flag.String("profile", "coverage.out", "coverage profile to read")
	flag.Parse()
	if err := run(os.Stdout, *profile, *least, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "covergate:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, profile string, least float64, packages []string) error {
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer f.Close()
	measured, err := measure(f)
	if err != nil {
		return fmt.Errorf("%s: %w", profile, err)
	}
	return report(w, measured, least, packages)
}

// coverage counts statements.
type coverage struct{ covered, total int }

func (c coverage) percent() float64 {
	if c.total == 0 {
		return 100
	}
	return 100 * float64(c.covered) / float64(c.total)
}

// measure sums the blocks of a profile per package.
func measure(profile io.Reader) (map[string]coverage, error) {
	statements := map[string]int{}
	reached := map[string]bool{}
	lines := bufio.NewScanner(profile)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "mode:") {
			continue
		}
		block, n, hits, err := parse(lines.Text())
		if err != nil {
			return nil, err
		}
		statements[block] = n
		reached[block] = reached[block] || hits > 0
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}

	measured := map[string]coverage{}
	for block, n := range statements {
		file, _, _ := strings.Cut(block, ":")
		pkg := strings.TrimPrefix(path.Dir(file), module)
		c := measured[pkg]
		c.total += n
		if reached[block] {
			c.covered += n
		}
		measured[pkg] = c
	}
	return measured, nil
}

// parse splits a line of the form "file:from,to statements hits".
func parse(line string) (block string, statements int, hits uint64, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return "", 0, 0, fmt.Errorf("not a line of a coverage profile: %q", line)
	}
	if statements, err = strconv.Atoi(fields[1]); err != nil {
		return "", 0, 0, fmt.Errorf("statements in %q: %w", line, err)
	}
	if hits, err = strconv.ParseUint(fields[2], 10, 64); err != nil {
		return "", 0, 0, fmt.Errorf("hits in %q: %w", line, err)
	}
	return fields[0], statements, hits, nil
}

func report(w io.Writer, measured map[string]coverage, least float64, packages []string) error {
	var all coverage
	for _, pkg := range packages {
		c, ok := measured[pkg]
		if !ok {
			return fmt.Errorf("package %s is not in the profile: it has no statements or was not tested", pkg)
		}
		fmt.Fprintf(w, "coverage  %-12s %5.1f %%  %d of %d statements\n", pkg, c.percent(), c.covered, c.total)
		all.covered += c.covered
		all.total += c.total
	}
	fmt.Fprintf(w, "coverage  %-12s %5.1f %%  %d of %d statements, goal %g %%\n", "total", all.percent(), all.covered, all.total, least)
	if all.percent() < least {
		return fmt.Errorf("total coverage %.2f %% is below %g %%", all.percent(), least)
	}
	return nil
}
