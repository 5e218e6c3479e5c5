package deptest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	modulePath = "github.com/redrive-go/redrive"
	extended   = "golang.org/x/"
)

// pkg is a package directory and what its files import, over all build tags.
type pkg struct {
	dir         string // relative to the module, with slashes
	imports     []string
	testImports []string
}

// violations returns a sentence for every import that the rows do not allow.
func violations(pkgs []pkg, rows map[string]row) []string {
	var found []string
	for _, p := range pkgs {
		if !mayTest(p.dir) {
			for _, path := range p.imports {
				if within(path, "testing") {
					found = append(found, fmt.Sprintf("%s imports %s: only packages named *test may, or every user's program carries it", p.dir, path))
				}
			}
		}
		found = append(found, betweenModules(p)...)
		r, ok := rows[p.dir]
		if !ok {
			if !slices.ContainsFunc(closed, func(tree string) bool { return within(p.dir, tree) }) {
				found = append(found, p.dir+" has no row in the house: add one that says what it may import")
			}
			continue
		}
		found = append(found, strangers(p.dir, p.imports, r.imports, r.sdk...)...)
		inTests := slices.Concat(r.imports, r.tests, []string{p.dir})
		found = append(found, strangers(p.dir+" (test)", p.testImports, inTests, r.sdk...)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// betweenModules are imports of the lab by other modules, and of internal packages
// of another module: that command and lab need none shows that the public API is
// enough.
func betweenModules(p pkg) []string {
	var found []string
	for _, path := range slices.Concat(p.imports, p.testImports) {
		ours, isOurs := strings.CutPrefix(path, modulePath+"/")
		switch {
		case !isOurs || moduleOf(ours) == moduleOf(p.dir):
		case moduleOf(ours) == "lab":
			found = append(found, fmt.Sprintf("%s imports %s: no other module uses the lab", p.dir, ours))
		case slices.Contains(strings.Split(ours, "/"), "internal"):
			found = append(found, fmt.Sprintf("%s imports %s: it uses public packages of other modules only", p.dir, ours))
		}
	}
	return found
}

// moduleOf is the directory of the module that a package is in.
func moduleOf(dir string) string {
	if first, _, _ := strings.Cut(dir, "/"); first == "lab" || first == "operate" {
		return first
	}
	return "."
}

// strangers are the imports that are neither standard library, nor
// golang.org/x, nor one of the allowed packages of this module, nor in one of modules.
func strangers(who string, imports, allowed []string, modules ...string) []string {
	var found []string
	for _, path := range imports {
		ours, isOurs := strings.CutPrefix(path, modulePath+"/")
		switch {
		case isOurs && slices.Contains(allowed, ours):
		case isOurs:
			found = append(found, fmt.Sprintf("%s imports %s: the house has no such arrow", who, ours))
		case slices.ContainsFunc(modules, func(m string) bool { return within(path, m) }):
		case !isStandard(path) && !strings.HasPrefix(path, extended):
			found = append(found, fmt.Sprintf("%s imports %s: only the standard library and golang.org/x are allowed here", who, path))
		}
	}
	return found
}

func mayTest(dir string) bool {
	return strings.HasSuffix(path.Base(dir), "test") || within(dir, "lab")
}

// isStandard reports whether an import path has no dot in its first element,
// which the go command reserves for the standard library.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// within reports whether a path is the tree or lies inside it.
func within(path, tree string) bool {
	return path == tree || strings.HasPrefix(path, tree+"/")
}
