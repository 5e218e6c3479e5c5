package deptest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// moduleRoot is the directory with the go.mod that this package belongs to.
func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatalf("the module root is not where it was: %v", err)
	}
	return root
}

// load reads the imports of every Go file under root. It parses the files
// instead of asking the go command, so that files for other systems and build
// tags count too, and so that the test cache notices when one of them changes.
func load(root string) ([]pkg, error) {
	found := map[string]*pkg{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && outside(file):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(file) != ".go":
			return nil
		}
		imports, err := importsOf(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		if found[dir] == nil {
			found[dir] = &pkg{dir: dir}
		}
		if strings.HasSuffix(file, "_test.go") {
			found[dir].testImports = append(found[dir].testImports, imports...)
		} else {
			found[dir].imports = append(found[dir].imports, imports...)
		}
		return nil
	})
	var pkgs []pkg
	for _, p := range found {
		pkgs = append(pkgs, *p)
	}
	slices.SortFunc(pkgs, func(a, b pkg) int { return strings.Compare(a.dir, b.dir) })
	return pkgs, err
}

// outside reports whether the go command would not take a directory for a part
// of the module around it.
func outside(dir string) bool {
	name := filepath.Base(dir)
	if name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_' {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func importsOf(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, spec := range parsed.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
