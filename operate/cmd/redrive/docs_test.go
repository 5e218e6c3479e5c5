package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

const (
	root       = "../../.."
	cliPage    = "docs/reference/cli.md"
	configPage = "docs/reference/configuration.md"
	physics    = "docs/explanation/retry-physics.md"
)

func readPage(t *testing.T, page string) string {
	t.Helper()
	return goldentest.Read(t, filepath.Join(root, page))
}

// TestReference compares docs/reference/cli.md with the help of every command,
// and with the rows that commands print as JSON.
func TestReference(t *testing.T) {
	parts := map[string]string{}
	for _, name := range commands(newRoot(term.Streams{})) {
		help := call(t, append(strings.Fields(name)[1:], "--help")...)
		if help.code != exitOK {
			t.Fatalf("%s --help: exit code %d, messages %q", name, help.code, help.stderr)
		}
		parts[name] = "```\n" + help.stdout + "```\n"
	}
	others := []string{"planRow", "hopRow", "sloRow"} // of redrive plan
	structs := structsOf(t, ".")
	for name, fields := range structs {
		if (strings.HasSuffix(name, "Row") || strings.HasSuffix(name, "Doc")) && !slices.Contains(others, name) {
			parts["rows "+name] = rowTable(withEmbedded(structs, fields))
		}
	}
	goldentest.Parts(t, filepath.Join(root, cliPage), parts, "metrics")
}

// TestConfiguration compares docs/reference/configuration.md with the types that
// the file is read into, and reads its examples.
func TestConfiguration(t *testing.T) {
	file, parts, structs := filepath.Join(root, configPage), map[string]string{}, structsOf(t, "../../config")
	for name := range strings.FieldsSeq("Config Broker TLS Key Topic Retry Redis Store Collect Retention Serve Service Quota " +
		"Bodies S3 Dead Web Certificate Secret") {
		parts["keys "+name] = keyTable(structs[name])
	}
	goldentest.Parts(t, file, parts)
	page := goldentest.Read(t, file)
	examples := parseExamples(t, page)
	faulty := regexp.MustCompile("(?s)(```yaml faulty\n(.*?)```\n\n)```\n.*?```\n")
	if examples == 0 || !faulty.MatchString(page) {
		t.Errorf("%s has %d examples, and perhaps no faulty one", configPage, examples)
	}
	goldentest.File(t, file, faulty.ReplaceAllStringFunc(page, func(old string) string {
		part := faulty.FindStringSubmatch(old)
		_, err := config.Parse("redrive.yaml", []byte(part[2]))
		return fmt.Sprintf("%s```\n%v\n```\n", part[1], err)
	}))
}

// parseExamples reads the configurations of a page, and returns how many it has.
func parseExamples(t *testing.T, page string) int {
	t.Helper()
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```\n").FindAllStringSubmatch(page, -1)
	for _, example := range examples {
		if _, err := config.Parse("redrive.yaml", []byte(example[1])); err != nil {
			t.Errorf("an example has faults:\n%v\n%s", err, example[1])
		}
	}
	return len(examples)
}

// TestRunPage reads the configuration on the page about running the retry service.
func TestRunPage(t *testing.T) {
	if found := parseExamples(t, readPage(t, "docs/how-to/run-the-retry-service.md")); found < 2 {
		t.Errorf("found %d of what is to be checked: the pattern is broken", found)
	}
}

// docField is a field of a struct as its source has it.
type docField struct {
	name, typ, doc string
	tag            reflect.StructTag
}

// structsOf returns the fields of the structs of a package.
func structsOf(t *testing.T, dir string) map[string][]docField {
	t.Helper()
	structs := map[string][]docField{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	for _, file := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		must(t, err)
		ast.Inspect(syntax, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = fieldsOf(s)
				}
			}
			return true
		})
	}
	return structs
}

func fieldsOf(s *ast.StructType) []docField {
	var fields []docField
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 {
			fields = append(fields, docField{typ: types.ExprString(f.Type)})
		}
		if len(f.Names) != 1 || f.Tag == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
		fields = append(fields, docField{f.Names[0].Name, types.ExprString(f.Type), doc, reflect.StructTag(tag)})
	}
	return fields
}

// withEmbedded has the fields of structs that are embedded in place of these, but
// for rows, which have a table of their own.
func withEmbedded(structs map[string][]docField, fields []docField) (list []docField) {
	for _, f := range fields {
		switch {
		case f.name != "":
			list = append(list, f)
		case !strings.HasSuffix(f.typ, "Row"):
			list = append(list, withEmbedded(structs, structs[f.typ])...)
		}
	}
	return list
}

// meaning is the comment of a field without the name that it begins with.
func (f docField) meaning() string {
	text := f.doc
	for _, start := range []string{" is ", " are ", " "} {
		if rest, ok := strings.CutPrefix(text, f.name+start); ok {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return "**no comment**"
}

func rowTable(fields []docField) string {
	kinds := map[string]string{
		"string": "text", "int": "number", "int64": "number", "float64": "number", "bool": "true or false", "[]string": "list of texts",
		"instant": "time, or null", "map[string]int64": "object of numbers", "[]int": "list of numbers",
	}
	var b strings.Builder
	b.WriteString("| Field | Type | Meaning |\n|---|---|---|\n")
	for _, f := range fields {
		name, _, _ := strings.Cut(f.tag.Get("json"), ",")
		kind := kinds[f.typ]
		if of, ok := strings.CutPrefix(f.typ, "[]"); ok && kind == "" {
			kind = "list of objects, see [" + strings.TrimSuffix(of, "Row") + "s](#fields-of-" + strings.TrimSuffix(of, "Row") + "s)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, kind, f.meaning())
	}
	return b.String()
}

func keyTable(fields []docField) string {
	var b strings.Builder
	kinds := slices.ContainsFunc(fields, func(f docField) bool { return f.tag.Get("kinds") != "" })
	b.WriteString("| Key | Unset means | Meaning |\n|---|---|---|\n")
	for _, f := range fields {
		if f.name == "" { // embedded: the page names them
			continue
		}
		unset, meaning := f.tag.Get("unset"), f.meaning()
		if value := f.tag.Get("default"); value != "" {
			unset = "`" + value + "`"
		}
		switch f.tag.Get("required") {
		case "true":
			unset = "refused"
		case "unless service":
			unset = "refused, unless there is `service`"
		}
		if of := strings.Fields(f.tag.Get("kinds")); kinds && len(of) > 0 {
			for i := range of {
				of[i] = map[string]string{"rabbitmq": "RabbitMQ", "kafka": "Kafka", "sqs": "SQS"}[of[i]]
			}
			meaning = strings.Join(of, ", ") + ": " + strings.ToLower(meaning[:1]) + meaning[1:]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.tag.Get("yaml"), unset, meaning)
	}
	return b.String()
}

// commands returns the names of a command and of those below it.
func commands(c *cobra.Command) []string {
	names := []string{c.CommandPath()}
	for _, sub := range c.Commands() {
		names = append(names, commands(sub)...)
	}
	return names
}

// TestPhysics runs every command of the page on retry physics, and compares its
// output, and its chart, with what the page shows.
func TestPhysics(t *testing.T) {
	shown := regexp.MustCompile("(?m)^```\n\\$ redrive ([^\n]+)\n((?s).*?)^```$")
	ran := 0
	page := shown.ReplaceAllStringFunc(readPage(t, physics), func(old string) string {
		ran++
		line := shown.FindStringSubmatch(old)[1]
		args, drawn := strings.Fields(line), filepath.Join(t.TempDir(), "chart.svg")
		i := slices.Index(args, "--svg") + 1
		chart := args[i]
		if i > 0 {
			args[i] = drawn
		}
		got := call(t, args...)
		if got.code == exitUsage {
			t.Errorf("redrive %s: %s", line, got.stderr)
		}
		if i > 0 {
			goldentest.File(t, filepath.Join(root, chart), goldentest.Read(t, drawn))
		}
		return fmt.Sprintf("```\n$ redrive %s\n%s```", line, got.stdout)
	})
	if ran < 5 {
		t.Errorf("%s shows %d commands, want them all to be found", physics, ran)
	}
	goldentest.File(t, filepath.Join(root, physics), page)
}
