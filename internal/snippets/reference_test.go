package snippets

import (
	"fmt"
	"go/ast"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/consumer/consumertest"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// rows returns the cells of the table rows below a heading of p, up to the
// next heading. Code marks are taken off the first cell.
func (p *page) rows(heading string) [][]string {
	var rows [][]string
	below, head := false, true
	for line := range strings.Lines(p.text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			below, head = strings.TrimLeft(line, "# ") == heading, true
		case !strings.HasPrefix(line, "|"):
			head = true
		case strings.HasPrefix(line, "|---"):
			head = false
		case below && !head:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			cells[0] = strings.ReplaceAll(cells[0], "`", "")
			rows = append(rows, cells)
		}
	}
	return rows
}

func firsts(rows [][]string) []string {
	var names []string
	for _, row := range rows {
		names = append(names, row[0])
	}
	return names
}

// compare demands that a table lists exactly what the code has.
func compare(t *testing.T, where string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s does not list %s", where, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s lists %s, which does not exist", where, name)
		}
	}
	if len(got) != len(slices.Compact(got)) {
		t.Errorf("%s lists something twice: %v", where, got)
	}
}

// TestFieldsAreListed compares tables of fields with the structs, and their
// defaults with the doc comments.
func TestFieldsAreListed(t *testing.T) {
	tables := []struct {
		page, heading string
		of            any
	}{
		{"docs/reference/config.md", "consumer.Config", consumer.Config{}},
		{"docs/reference/config.md", "consumer.Topic", consumer.Topic{}},
		{"docs/reference/config.md", "consumer.Guard", consumer.Guard{}},
		{"docs/reference/config.md", "retry.Policy", retry.Policy{}},
		{"docs/reference/config.md", "retry.Backoff", retry.Backoff{}},
		{"docs/reference/config.md", "memory.Options", memory.Options{}},
		{"docs/reference/rabbitmq.md", "rabbitmq.Options", rabbitmq.Options{}},
		{"docs/reference/kafka.md", "kafka.Options", kafka.Options{}},
		{"docs/reference/sqs.md", "sqs.Options", sqs.Options{}},
		{"docs/how-to/test-with-sqstest.md", "Make calls fail", sqstest.Fault{}},
		{"docs/how-to/test-with-sqstest.md", "Look at a queue", sqstest.Queue{}},
		{"docs/reference/events.md", "Fields", consumer.Event{}},
		{"docs/how-to/test-a-handler.md", "One message, one result", consumertest.Result{}},
	}
	for _, table := range tables {
		typ := reflect.TypeOf(table.of)
		rows := readPage(t, table.page).rows(table.heading)
		compare(t, fmt.Sprintf("%s under %q", table.page, table.heading), firsts(rows), fieldNames(typ))
		comments := fieldComments(t, typ)
		for _, row := range rows {
			if unset := defaultOf(comments[row[0]]); len(row) == 3 && unset != "" && row[1] != unset {
				t.Errorf("%s: %s.%s unset means %q, the code says %q", table.page, typ, row[0], row[1], unset)
			}
		}
	}
}

func fieldNames(typ reflect.Type) []string {
	var names []string
	for _, f := range reflect.VisibleFields(typ) {
		names = append(names, f.Name)
	}
	return names
}

// fieldComments returns the doc comment of each field on one line.
func fieldComments(t *testing.T, typ reflect.Type) map[string]string {
	t.Helper()
	comments := map[string]string{}
	for _, f := range goFiles(t) {
		if f.isTest || f.syntax.Name.Name != strings.Split(typ.String(), ".")[0] {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != typ.Name() {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				for _, name := range field.Names {
					comments[name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
			return false
		})
	}
	return comments
}

var unsetMeans = regexp.MustCompile(`(?:Default(?: is|:)?|(?:Zero|0|[Zz]ero value) (?:means|is)) ((?:[^.;,]|[.,]\d|[.]\w|, \d|, f)+)`)

// defaultOf returns what a comment says about an unset field, "" if nothing.
func defaultOf(comment string) string {
	match := unsetMeans.FindStringSubmatch(comment)
	if match == nil {
		return ""
	}
	return match[1]
}

// TestEventsAreListed compares the table of events with the constants.
func TestEventsAreListed(t *testing.T) {
	constant := regexp.MustCompile(`(?m)^\t(Event\w+) +EventKind = "([\w-]+)"`)
	var names []string
	texts := map[string]string{}
	for _, match := range constant.FindAllStringSubmatch(readFile(t, "consumer/event.go"), -1) {
		names = append(names, match[1])
		texts[match[1]] = match[2]
	}
	rows := readPage(t, "docs/reference/events.md").rows("Kinds")
	compare(t, "docs/reference/events.md", firsts(rows), names)
	for _, row := range rows {
		if row[1] != texts[row[0]] {
			t.Errorf("docs/reference/events.md: %s is %q, want %q", row[0], row[1], texts[row[0]])
		}
	}
}

// TestErrorsAreListed compares the tables of errors with the exported sentinels
// and error types.
func TestErrorsAreListed(t *testing.T) {
	public := regexp.MustCompile(`^(brokers|brokers/kafka|brokers/memory|brokers/rabbitmq|brokers/sqs|classify|consumer|dlq|retry|visibility)/\w+\.go$`)
	isError := regexp.MustCompile(`^(Err[A-Z]\w*|[A-Z]\w*Error)$`)
	var want []string
	for _, f := range goFiles(t) {
		if f.isTest || !public.MatchString(f.path) {
			continue
		}
		for _, d := range f.syntax.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok.String() != "const" {
				for _, name := range names(g) {
					if isError.MatchString(name) {
						want = append(want, f.syntax.Name.Name+"."+name)
					}
				}
			}
		}
	}
	p := readPage(t, "docs/reference/errors.md")
	got := map[string]bool{}
	for line := range strings.Lines(p.text) {
		if heading, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
			for _, row := range p.rows(heading) {
				got[row[0]] = true
				if len(row) < 4 || slices.Contains(row[:4], "") {
					t.Errorf("docs/reference/errors.md: the row of %s has an empty cell", row[0])
				}
			}
		}
	}
	compare(t, "docs/reference/errors.md", slices.Collect(maps.Keys(got)), want)
}

// TestHeadersAreListed compares the tables of headers with what is written for
// a message and a dead letter that have everything.
func TestHeadersAreListed(t *testing.T) {
	now := time.UnixMilli(1767225600000)
	meta := brokers.Meta{
		Attempt: 1, Throttles: 1, FirstFailedAt: now, LastFailedAt: now, DueAt: now, Delay: time.Second, Class: "transient",
		History:        []brokers.Failure{{Attempt: 1, At: now, Class: "transient", Fingerprint: "f", Delay: time.Second}},
		IdempotencyKey: "k", RedriveCount: 1, Origin: brokers.Headers{{Name: "offset", Value: "1"}},
	}
	m := brokers.Message{ID: "i", Topic: "t", Key: "k", PublishedAt: now}
	entry := dlq.Entry{
		Message: m, Meta: meta, Reason: "r", ErrorType: "t", ErrorCode: "c", ErrorText: strings.Repeat("e ", 500),
		Stack: strings.Repeat("s ", 500), Fingerprint: "f", Rule: "r", Group: "g", DeadAt: now, DeadBy: "b", Abandoned: 1, Truncated: []string{"x"},
	}
	p := readPage(t, "docs/reference/headers.md")
	carried := append(headerNames(wire.Encode(m, meta)), wire.Packed)
	compare(t, "docs/reference/headers.md, carried", firsts(p.rows("Carried headers")), carried)
	compare(t, "docs/reference/headers.md, dead letters", firsts(p.rows("Headers of a dead letter")), headerNames(entry.Encode(0).Headers))

	entry.Truncated = nil
	letter, err := dlq.Decode(entry.Encode(1))
	if err != nil {
		t.Fatal(err)
	}
	step := regexp.MustCompile("(?m)^[0-9]\\. `([a-z-]+)`")
	var listed []string
	for _, match := range step.FindAllStringSubmatch(p.text, -1) {
		listed = append(listed, match[1])
	}
	if !slices.Equal(listed, letter.Truncated) {
		t.Errorf("docs/reference/headers.md sheds %q, the code %q", listed, letter.Truncated)
	}
}

// TestGrammarIsTrue reads what the page says of values that come in.
func TestGrammarIsTrue(t *testing.T) {
	const now = 1767225600000
	limits := wire.Limits{Now: time.UnixMilli(now), MaxDelay: time.Hour, Trusted: true}
	p := readPage(t, "docs/reference/headers.md")
	examples := 0
	for _, row := range p.rows("Grammar") {
		value, ok := strings.CutPrefix(row[1], "`")
		if !strings.HasPrefix(row[0], "redrive-") || !ok {
			continue
		}
		examples++
		read := func(value string) brokers.Headers {
			return wire.Encode(wire.Decode(brokers.Headers{{Name: row[0], Value: strings.Trim(value, "`")}}, limits))
		}
		var want brokers.Headers
		if taken := strings.Trim(row[2], "`"); row[0] == wire.Packed {
			want, _ = wire.Unpack(taken)
		} else if taken != "nothing" {
			want = brokers.Headers{{Name: row[0], Value: taken}}
		}
		if got := read(value); !slices.Equal(got, want) {
			t.Errorf("%s: %s: %s is taken as %v, not as %v", p.path, row[0], row[1], got, want)
		}
	}
	if examples < 15 {
		t.Errorf("%s: %d examples: the table is gone", p.path, examples)
	}
}

func headerNames(h brokers.Headers) []string {
	var names []string
	for _, header := range h {
		name := header.Name
		if before, _, ok := strings.Cut(name, "origin-"); ok {
			name = before + "origin-…"
		}
		names = append(names, name)
	}
	return names
}

// TestReasonsAreListed looks for the reasons that dlq.Entry names.
func TestReasonsAreListed(t *testing.T) {
	p := readPage(t, "docs/how-to/read-dead-letters.md")
	listed := firsts(p.rows("Reasons"))
	reason := regexp.MustCompile(`(?m)^\t//\t([a-z-]+) {2,}`)
	found := 0
	for _, match := range reason.FindAllStringSubmatch(readFile(t, "dlq/entry.go"), -1) {
		found++
		if !slices.Contains(listed, match[1]) && !slices.Contains(p.spans, match[1]) {
			t.Errorf("%s does not name the reason %s", p.path, match[1])
		}
	}
	if found == 0 {
		t.Error("dlq/entry.go names no reasons: the pattern is broken")
	}
}

// TestClassesAreListed compares the table of classes with the constants.
func TestClassesAreListed(t *testing.T) {
	want := []string{string(classify.ClassLost), string(classify.ClassShutdown)}
	for _, class := range order {
		if !slices.Contains(want, string(class)) {
			want = append(want, string(class))
		}
	}
	compare(t, classification, firsts(readPage(t, classification).rows("Classes")), want)
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
		switch {
		case i < 0:
			t.Errorf("%s has no program", path)
		case p.blocks[i].text == worker:
		case *update:
			rewrite(t, p.path, strings.Replace(p.text, p.blocks[i].text, worker, 1))
		default:
			t.Errorf("%s:%d: the worker differs from %s: run go test ./internal/snippets -update", path, p.blocks[i].line, example)
		}
	}
}

// TestFiguresAreListed compares the figures of the page that explains them with
// those that the command measures.
func TestFiguresAreListed(t *testing.T) {
	const page = "docs/explanation/performance.md"
	name := regexp.MustCompile(`figure\.At(?:Most|Least)\("(\w+)"`)
	var want []string
	for _, match := range name.FindAllStringSubmatch(readFile(t, "bench/cmd/figures/core.go"), -1) {
		want = append(want, match[1])
	}
	compare(t, page, firsts(readPage(t, page).rows("Figures")), want)
}

func TestDefaultOf(t *testing.T) {
	for comment, want := range map[string]string{
		"How many. Default 10.":                                                  "10",
		"Default is Concurrency; -1 means 1.":                                    "Concurrency",
		"Default: host name and process id.":                                     "host name and process id",
		"Default slog.Default().":                                                "slog.Default()",
		"Zero means 24 hours.":                                                   "24 hours",
		"Zero means 5; a negative number means none.":                            "5",
		"of it. 0 means 1,048,576.":                                              "1,048,576",
		"Jitter draws. The zero value is FullJitter":                             "FullJitter",
		"Its zero value means 10 attempts, 1 s doubling to 15 min, full jitter.": "10 attempts, 1 s doubling to 15 min, full jitter",
		"0 means 16 KiB, and that it is not checked.":                            "16 KiB",
		"Names it.": "",
	} {
		if got := defaultOf(comment); got != want {
			t.Errorf("defaultOf(%q) = %q, want %q", comment, got, want)
		}
	}
}
