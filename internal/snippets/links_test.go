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
	for path, file := range goFiles(t) {
		for name := range file.Scope.Objects { // all but methods
			if strings.HasSuffix(path, "_test.go") {
				tests[name] = true
			} else if ast.IsExported(name) {
				exported[file.Name.Name+"."+name] = true
			}
		}
	}
	return tests, exported
}

// goFiles returns the syntax of all Go files of the module, by path.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	root := os.DirFS(moduleRoot(t))
	must(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name() == "testdata" || d.Name()[0] == '.' || d.Name() == "tools"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		files[name], err = parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		return err
	}))
	return files
}

// TestPagesInTexts looks for the pages that errors and other texts of the code
// send people to. They say where by an address: whoever reads them has the
// package, and no clone.
func TestPagesInTexts(t *testing.T) {
	const home = "https://github.com/redrive-go/redrive/blob/main/"
	root, found := moduleRoot(t), 0
	onlyInAClone := regexp.MustCompile(`_test\.go$|^examples/|^internal/`)
	for file, syntax := range goFiles(t) {
		if onlyInAClone.MatchString(file) || syntax.Name.Name == "main" {
			continue
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			for _, text := range pageName.FindAllString(literal.Value, -1) {
				name, ok := strings.CutPrefix(text, home)
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err != nil || !ok {
					t.Errorf("%s: %q is not %s with a page behind it", file, text, home)
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
