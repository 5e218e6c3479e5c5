package snippets

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	// Named so that a change of the library runs the snippets again.
	_ "github.com/redrive-go/redrive/brokers/brokertest"
	_ "github.com/redrive-go/redrive/brokers/sqs/sqstest"
	_ "github.com/redrive-go/redrive/consumer/consumertest"
	_ "github.com/redrive-go/redrive/idempotency/redisstore"
	_ "github.com/redrive-go/redrive/idempotency/sqlstore"
	"github.com/redrive-go/redrive/integration/goldentest"
)

const modulePath = "github.com/redrive-go/redrive"

// imports are the packages that a fragment may use without an import.
var imports = byName(
	"bytes", "cmp", "context", "crypto/tls", "crypto/x509", "database/sql", "encoding/json", "errors", "fmt", "io", "log", "log/slog", "math/rand/v2",
	"net", "net/http", "os", "os/signal", "slices", "strconv", "strings", "sync", "sync/atomic", "syscall", "testing", "testing/synctest", "time",
	modulePath+"/brokers", modulePath+"/brokers/brokertest", modulePath+"/brokers/kafka", modulePath+"/brokers/memory", modulePath+"/brokers/rabbitmq",
	modulePath+"/brokers/sqs", modulePath+"/brokers/sqs/sqstest", modulePath+"/classify",
	"github.com/aws/aws-sdk-go-v2/aws", "github.com/segmentio/kafka-go/sasl/plain",
	modulePath+"/consumer", modulePath+"/consumer/consumertest", modulePath+"/dlq", modulePath+"/health", modulePath+"/httpretry",
	modulePath+"/idempotency", modulePath+"/idempotency/sqlstore",
	modulePath+"/retry", modulePath+"/retry/breaker", modulePath+"/retry/budget", modulePath+"/retry/flow", modulePath+"/settings", modulePath+"/visibility",
)

func byName(paths ...string) map[string]string {
	m := map[string]string{}
	for _, p := range paths {
		m[path.Base(strings.TrimSuffix(p, "/v2"))] = p
	}
	return m
}

// stage is what a fragment of statements finds around itself.
const stage = "func _(ctx context.Context, t *testing.T, broker *memory.Broker, worker *consumer.Consumer) {"

var stageImports = []string{"context", "testing", "memory", "consumer"}

// example is what the pages have to compile.
type example struct {
	files    map[string]string // by path inside the module of the snippets
	programs []*program
	tests    map[string]bool // directories with tests to run
}

// program is a block with a package clause.
type program struct {
	dir    string
	output string // expected on standard output, "" if the page does not say
}

var (
	namedTest = regexp.MustCompile(`^// (\w+_test\.go)\n`)
	testFunc  = regexp.MustCompile(`(?m)^func Test\w*\(`)
)

// add turns the blocks of a page into Go files.
func (ex *example) add(p *page) error {
	dir := strings.NewReplacer("/", "_", "-", "_", ".md", "").Replace(strings.ToLower(p.path))
	var last *program
	for i, b := range p.blocks {
		named := namedTest.FindStringSubmatch(b.text)
		switch {
		case b.info == "text output" && last != nil && last.output == "":
			last.output = b.text
		case b.info == "text output", b.info == "go" && named != nil && last == nil:
			return fmt.Errorf("%s:%d: this output or test follows no program", p.path, b.line)
		case b.info != "go":
		case named != nil:
			ex.files[last.dir+"/"+named[1]] = p.directive(b) + b.text
			ex.tests[last.dir] = true
		case isFile(b.text):
			last = &program{dir: fmt.Sprintf("%s/program%d", dir, i)}
			ex.programs = append(ex.programs, last)
			ex.files[last.dir+"/main.go"] = p.directive(b) + b.text
		default:
			file, err := p.fragment(b)
			if err != nil {
				return err
			}
			ex.files[fmt.Sprintf("%s/fragment%d_test.go", dir, i)] = file
			if testFunc.MatchString(b.text) {
				ex.tests[dir] = true
			}
		}
	}
	return nil
}

// directive lets errors of the compiler name the page.
func (p *page) directive(b block) string { return fmt.Sprintf("//line %s:%d\n", p.path, b.line) }

func isFile(text string) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", text, parser.PackageClauseOnly)
	return err == nil
}

// fragment makes a file of declarations or statements.
func (p *page) fragment(b block) (string, error) {
	const head = "package page\n"
	body, used := p.directive(b)+b.text, []string{}
	file, err := parser.ParseFile(token.NewFileSet(), "", head+body, parser.ParseComments)
	if err != nil {
		body, used = stage+"\n"+body+"}\n", slices.Clone(stageImports)
		var second error
		if file, second = parser.ParseFile(token.NewFileSet(), "", head+body, parser.ParseComments); second != nil {
			return "", fmt.Errorf("%s:%d: neither declarations (%w) nor statements (%w)", p.path, b.line, err, second)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil && imports[x.Name] != "" {
				used = append(used, x.Name)
			}
		}
		return true
	})
	var out strings.Builder
	out.WriteString(head)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(used))) {
		fmt.Fprintf(&out, "import %q\n", imports[name])
	}
	return out.String() + body, nil
}

// TestSnippets compiles all code of the documentation, runs its tests and the
// programs that say what they print.
func TestSnippets(t *testing.T) {
	t.Parallel()
	root, dir := moduleRoot(t), t.TempDir()
	mod, sums := "module docs.example\n\ngo 1.26\n", ""
	for _, module := range []string{"", "/tracing"} { // those for users
		home := root + module
		mod += fmt.Sprintf("\nrequire %[1]s v0.0.0\n\nreplace %[1]s => %[2]q\n", modulePath+module, home)
		sum, err := os.ReadFile(filepath.Join(home, "go.sum"))
		must(t, err)
		sums += string(sum)
		fetch(t, home)
	}
	writeFile(t, dir, "go.mod", mod)
	writeFile(t, dir, "go.sum", sums)
	ex := example{files: map[string]string{}, tests: map[string]bool{}}
	for _, p := range pages(t) {
		if err := ex.add(p); err != nil {
			t.Error(err)
		}
	}
	for name, text := range ex.files {
		writeFile(t, dir, name, text)
	}
	if len(ex.files) < 20 || len(ex.programs) == 0 {
		t.Fatalf("found %d blocks of Go code with %d programs: the extraction is broken", len(ex.files), len(ex.programs))
	}
	if out, err := goCommand(t, dir, "vet", "./..."); err != nil {
		t.Fatalf("the documentation does not compile: %v\n%s", err, out)
	}
	arguments := []string{"test"}
	for _, d := range slices.Sorted(maps.Keys(ex.tests)) {
		arguments = append(arguments, "./"+d)
	}
	if out, err := goCommand(t, dir, arguments...); err != nil {
		t.Errorf("the tests of the documentation fail: %v\n%s", err, out)
	}
	for _, p := range ex.programs {
		if p.output != "" {
			t.Run(p.dir, func(t *testing.T) {
				t.Parallel()
				compareOutput(t, dir, p)
			})
		}
	}
}

func compareOutput(t *testing.T, dir string, p *program) {
	out, err := goCommand(t, dir, "run", "./"+p.dir)
	if err != nil {
		t.Fatalf("the program fails: %v\n%s", err, out)
	}
	got, want := sortedLines(out), sortedLines(p.output)
	if !slices.Equal(got, want) {
		t.Errorf("the program prints other lines than its page says\n got: %q\nwant: %q", got, want)
	}
}

func sortedLines(s string) []string {
	return slices.Sorted(slices.Values(strings.Split(strings.TrimSpace(s), "\n")))
}

// fetch brings what the module at root requires by itself into the module cache:
// the snippets are built offline, as a user's program is, with the oldest
// versions that go.mod allows.
func fetch(t *testing.T, root string) {
	t.Helper()
	_, err := command(t, root, []string{"GOWORK=off"}, "list", "-deps", "./...")
	must(t, err)
}

// goCommand runs the go command offline in dir.
func goCommand(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	return command(t, dir, []string{"GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off"}, args...)
}

// command returns the standard output of the go command, with standard error if it failed.
func command(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return string(out), nil
}

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), 0o644))
}

// TestWorkersAreWhole compares the workers that pages show with the examples.
func TestWorkersAreWhole(t *testing.T) {
	for path, example := range map[string]string{
		"README.md":                      "examples/worker/main.go",
		"docs/tutorial/rabbitmq.md":      "examples/rabbitmq/main.go",
		"docs/tutorial/kafka.md":         "examples/kafka/main.go",
		"docs/tutorial/sqs.md":           "examples/sqs/main.go",
		"docs/how-to/test-in-your-ci.md": "examples/ci/worker_test.go",
	} {
		p, worker := readPage(t, path), readFile(t, example)
		i := slices.IndexFunc(p.blocks, func(b block) bool { return b.info == "go" && isFile(b.text) })
		if i < 0 {
			t.Errorf("%s has no program", path)
			continue
		}
		goldentest.File(t, filepath.Join(moduleRoot(t), path), strings.Replace(p.text, p.blocks[i].text, worker, 1))
	}
}
