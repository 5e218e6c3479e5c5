package snippets

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const logsPage = "docs/reference/logs.md"

// TestLogKeys compares the keys of all lines that the library, the service and the
// command log with the table of keys.
func TestLogKeys(t *testing.T) {
	root := moduleRoot(t)
	page, err := os.ReadFile(filepath.Join(root, logsPage))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Keys")
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented[row[1]] = true
	}
	used := logKeys(t, root)
	if len(used) < 25 {
		t.Fatalf("%d keys in the sources: this test does not see them any more", len(used))
	}
	for key, where := range used {
		if !documented[key] {
			t.Errorf("%s logs the key %q, which %s has not", where, key, logsPage)
		}
	}
	for key := range documented {
		if used[key] == "" {
			t.Errorf("%s has the key %q, which nothing logs", logsPage, key)
		}
	}
}

// logKeys returns the keys that the sources of the modules . and operate log, with the
// place of one line that has it.
func logKeys(t *testing.T, root string) map[string]string {
	t.Helper()
	used := map[string]string{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel, _ := filepath.Rel(root, path); slices.Contains([]string{"examples", "lab", "tools", "integration", ".git"}, rel) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if list, ok := n.(*ast.CompositeLit); ok && isAny(list.Type) { // arguments for a logger
				for i := 0; i+1 < len(list.Elts); i += 2 {
					for _, key := range appendKey(nil, list.Elts[i]) {
						used[key] = files.Position(list.Pos()).String()
					}
				}
			}
			if call, ok := n.(*ast.CallExpr); ok {
				for _, key := range keysOf(call, d.Name() == "log.go" && file.Name.Name == "consumer") {
					used[key] = files.Position(call.Pos()).String()
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// keysOf returns the keys in a call that makes an attribute, or one of a logger. The log
// of a worker makes attributes in ways of its own, too.
func keysOf(call *ast.CallExpr, worker bool) (keys []string) {
	name, of := "", ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name, of = f.Sel.Name, strings.ToLower(lastName(f.X))
	}
	first := -1
	switch {
	case of == "slog" && slices.Contains([]string{"String", "Int", "Int64", "Duration", "Time", "Any", "Bool"}, name), of == "" && (name == "name" || name == "add") && worker:
		if len(call.Args) == 2 {
			return appendKey(nil, call.Args[0])
		}
	case !slices.Contains([]string{"slog", "log", "logger"}, of):
	case slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name):
		first = 1
	case slices.Contains([]string{"DebugContext", "InfoContext", "WarnContext", "ErrorContext"}, name):
		first = 2
	case name == "With":
		first = 0
	}
	for i := first; first >= 0 && i+1 < len(call.Args); i += 2 {
		keys = appendKey(keys, call.Args[i])
	}
	return keys
}

// isAny reports whether e is []any.
func isAny(e ast.Expr) bool {
	list, ok := e.(*ast.ArrayType)
	return ok && lastName(list.Elt) == "any"
}

// lastName is the last name in an expression: "Logger" of c.cfg.Logger, "log" of s.log().
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		if name := lastName(e.Fun); name != "Or" {
			return name
		}
		return lastName(e.Args[0]) // cmp.Or(s.Logger, slog.Default())
	}
	return ""
}

func appendKey(keys []string, e ast.Expr) []string {
	literal, ok := e.(*ast.BasicLit)
	if !ok {
		return keys
	}
	if key, err := strconv.Unquote(literal.Value); err == nil && regexp.MustCompile("^[a-z_]+$").MatchString(key) {
		return append(keys, key)
	}
	return keys
}
