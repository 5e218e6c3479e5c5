package snippets

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks follows every link that stays in the repository.
func TestLinks(t *testing.T) {
	root, all := moduleRoot(t), map[string]*page{}
	for _, p := range pages(t) {
		all[p.path] = p
	}
	linked := map[string]bool{"README.md": true}
	for _, p := range all {
		for _, match := range link.FindAllStringSubmatch(p.prose, -1) {
			target := match[1]
			if strings.HasPrefix(target, "https://") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			file = path.Join(path.Dir(p.path), file)
			if target[0] == '#' {
				file = p.path
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil || strings.HasPrefix(target, "/") {
				t.Errorf("%s: the link to %q leads nowhere", p.path, target)
				continue
			}
			if p.path == "docs/README.md" {
				linked[file] = true
			}
			if anchor != "" && (all[file] == nil || !slices.Contains(all[file].heads, anchor)) {
				t.Errorf("%s: %s has no heading #%s, only %q", p.path, file, anchor, all[file].heads)
			}
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !linked[name] {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// TestReadmeIsShort keeps the README what is read before anything else.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(readFile(t, "README.md"))); n > 900 {
		t.Errorf("README.md has %d words, 900 are the most: move some to a page", n)
	}
}

var (
	makeCommand = regexp.MustCompile(`\bmake((?: +[A-Za-z_-]+(?:=\S*)?)+)`)
	goRun       = regexp.MustCompile(`\bgo (?:run|test)[^\n]* \./([\w/-]+)`)
	testName    = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*`)
	qualified   = regexp.MustCompile(`\b(brokers|kafka|memory|rabbitmq|sqs|sqstest|brokertest|classify|consumer|consumertest|dlq|retry|visibility)\.([A-Z]\w*)`)
)

// commands returns what a page shows as code, apart from Go.
func (p *page) commands() []string {
	all := slices.Clone(p.spans)
	for _, b := range p.blocks {
		if b.info != "go" {
			all = append(all, strings.Split(b.text, "\n")...)
		}
	}
	return all
}

// TestCommands looks for what the documentation tells people to type.
func TestCommands(t *testing.T) {
	root, makefile := moduleRoot(t), readFile(t, "Makefile")
	for _, p := range pages(t) {
		for _, line := range p.commands() {
			for _, match := range makeCommand.FindAllStringSubmatch(line, -1) {
				for _, word := range strings.Fields(match[1]) {
					name, _, isVariable := strings.Cut(word, "=")
					pattern := `(?m)^` + regexp.QuoteMeta(name) + `:`
					if isVariable {
						pattern = `\b` + regexp.QuoteMeta(name) + `\b`
					}
					if !regexp.MustCompile(pattern).MatchString(makefile) {
						t.Errorf("%s: the Makefile knows no %q of %q", p.path, name, line)
					}
				}
			}
			for _, match := range goRun.FindAllStringSubmatch(line, -1) {
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(match[1]))); err != nil && match[1] != "brokers/yourbroker" {
					t.Errorf("%s: there is no ./%s of %q", p.path, match[1], line)
				}
			}
		}
	}
}

// TestNames looks for the tests and the exported names that the documentation
// speaks of. SECURITY.md must name each test of an attack.
func TestNames(t *testing.T) {
	tests, exported := declared(t)
	security := map[string]bool{}
	for _, p := range pages(t) {
		spans := p.spans
		if p.path == "SECURITY.md" {
			spans = append(spans, p.prose)
		}
		for _, span := range spans {
			for _, name := range testName.FindAllString(span, -1) {
				security[name] = security[name] || p.path == "SECURITY.md"
				if !tests[name] && name != "FuzzName" { // which stands for any
					t.Errorf("%s: there is no test %s", p.path, name)
				}
			}
			for _, match := range qualified.FindAllStringSubmatch(span, -1) {
				if !exported[match[0]] {
					t.Errorf("%s: there is no %s", p.path, match[0])
				}
			}
		}
	}
	for name := range tests {
		if strings.HasPrefix(name, "TestAttack") && !strings.HasPrefix(name, "TestAttacks") && !security[name] {
			t.Errorf("SECURITY.md does not say what %s promises", name)
		}
	}
}

// declared returns the tests of the module, and its exported names as
// package.Name.
func declared(t *testing.T) (tests, exported map[string]bool) {
	t.Helper()
	tests, exported = map[string]bool{}, map[string]bool{}
	for _, f := range goFiles(t) {
		for name := range f.syntax.Scope.Objects { // all but methods
			if f.isTest {
				tests[name] = true
			} else if ast.IsExported(name) {
				exported[f.syntax.Name.Name+"."+name] = true
			}
		}
	}
	return tests, exported
}

type goFile struct {
	path   string
	isTest bool
	syntax *ast.File
}

// goFiles returns the syntax of all Go files of the module.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	root := moduleRoot(t)
	var files []goFile
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || d.Name() == "tools"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		relative, _ := filepath.Rel(root, name)
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		files = append(files, goFile{filepath.ToSlash(relative), strings.HasSuffix(name, "_test.go"), syntax})
		return err
	})
	must(t, err)
	return files
}

// TestPagesInTexts looks for the pages that errors and other texts of the code
// send people to. They say where by an address: whoever reads them has the
// package, and no clone.
func TestPagesInTexts(t *testing.T) {
	const home = "https://github.com/redrive-go/redrive/blob/main/"
	root, found := moduleRoot(t), 0
	for _, f := range goFiles(t) {
		if f.isTest || strings.HasPrefix(f.path, "examples/") || strings.HasPrefix(f.path, "internal/") || f.syntax.Name.Name == "main" {
			continue // which only a clone has
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			for _, text := range pageName.FindAllString(literal.Value, -1) {
				name, ok := strings.CutPrefix(text, home)
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err != nil || !ok {
					t.Errorf("%s: %q is not %s with a page behind it", f.path, text, home)
				}
				found++
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no text of the code names a page: the pattern is broken")
	}
}

// pageName is what a page is called, or the whole address.
var pageName = regexp.MustCompile(`[\w:/.-]*docs/[\w/-]+\.md`)

// TestJSON parses what pages show as JSON, such as policies that people paste.
func TestJSON(t *testing.T) {
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.info == "json" && !json.Valid([]byte(b.text)) {
				t.Errorf("%s:%d: this is no JSON", p.path, b.line)
			}
		}
	}
}
