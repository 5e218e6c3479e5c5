package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func made(t *testing.T) map[string]dashboard {
	t.Helper()
	all, err := dashboards(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDashboards compares the files with what the command makes.
func TestDashboards(t *testing.T) {
	all := made(t)
	files, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(all) {
		t.Errorf("%s has %d files, want the %d dashboards", folder, len(files), len(all))
	}
	for name, d := range all {
		text, err := encode(d)
		if err != nil {
			t.Fatal(err)
		}
		if file := read(t, folder+"/"+name); file != string(text) {
			t.Errorf("%s/%s is not what the tables of metrics say: run go -C tools run ./monitoring", folder, name)
		}
		var back dashboard
		strict := json.NewDecoder(bytes.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&back); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPanels looks for panels without a place, a query or words.
func TestPanels(t *testing.T) {
	uids := map[string]bool{}
	for name, d := range made(t) {
		if d.UID == "" || uids[d.UID] || d.Title == "" || d.SchemaVersion == 0 || d.Templating.List[0].Type != "datasource" {
			t.Errorf("%s lacks a title, a schema, a data source or an ID of its own: %+v", name, d)
		}
		uids[d.UID] = true
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.Title == "" {
				t.Errorf("%s: panel %d, %q, lacks a title or an ID of its own", name, p.ID, p.Title)
			}
			ids[p.ID] = true
			at := p.GridPos
			if at.W <= 0 || at.H <= 0 || at.X < 0 || at.Y < 0 || at.X+at.W > columns {
				t.Errorf("%s: %s is outside of the grid: %+v", name, p.Title, at)
			}
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s is on top of %s", name, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type != "row" {
				checkPanel(t, name, p)
			}
		}
	}
	var first []string
	for _, p := range made(t)["workers.json"].Panels[:4] {
		first = append(first, p.Title)
	}
	if want := []string{"Three signals", "Retry rate", "p99 including retries", "Amplification"}; !slices.Equal(first, want) {
		t.Errorf("the dashboard of workers begins with %q, want %q", first, want)
	}
}

func checkPanel(t *testing.T, name string, p panel) {
	t.Helper()
	if p.Type != "timeseries" || p.Description == "" || p.Datasource == nil || len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("%s: %s lacks a description, a data source, a query or a unit: %+v", name, p.Title, p)
	}
	refs, legends := map[string]bool{}, map[string]bool{}
	for _, q := range p.Targets {
		if refs[q.RefID] || legends[q.LegendFormat] || q.LegendFormat == "" || q.Expr == "" || q.Datasource == nil {
			t.Errorf("%s: %s has two queries of one name, or one without a name: %+v", name, p.Title, q)
		}
		refs[q.RefID], legends[q.LegendFormat] = true, true
	}
}

// expressions are the queries of dashboards, rules and pages, by where they stand.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$topic", ".*", "$broker", ".*")
	for name, d := range made(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				found[name] = append(found[name], grafana.Replace(q.Expr))
			}
		}
	}
	for _, r := range rules(t) {
		found["alerts.yml"] = append(found["alerts.yml"], r.Expr)
	}
	const page = "docs/how-to/watch-a-worker.md"
	for _, match := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
		found[page] = append(found[page], match[1])
	}
	return found
}

// TestExpressions parses every query, and has it name metrics and labels that exist.
func TestExpressions(t *testing.T) {
	known := map[string][]string{} // the labels of each metric, of all kinds of processes
	for _, page := range []string{workers, letters, service} {
		all, err := readTable(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range all {
			known[name] = append(known[name], m.labels...)
			if m.kind == "histogram" {
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					known[name+suffix] = append(known[name+suffix], append([]string{"le"}, m.labels...)...)
				}
			}
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			known[r.Record] = []string{"topic"}
		}
	}
	parse := parser.NewParser(parser.Options{})
	for where, list := range expressions(t) {
		if len(list) < 5 {
			t.Errorf("%s has %d queries: this test does not see them any more", where, len(list))
		}
		for _, text := range list {
			tree, err := parse.ParseExpr(text)
			if err != nil {
				t.Errorf("%s: %v: %s", where, err, text)
				continue
			}
			has := []string{"job", "instance"}
			parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
				if s, ok := n.(*parser.VectorSelector); ok {
					checkSelector(t, where, s, known)
					has = append(has, known[s.Name]...)
				}
				return nil
			})
			parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
				if a, ok := n.(*parser.AggregateExpr); ok {
					for _, label := range a.Grouping {
						if !slices.Contains(has, label) {
							t.Errorf("%s groups by %s, which no metric in it has: %s", where, label, text)
						}
					}
				}
				return nil
			})
		}
	}
}

func checkSelector(t *testing.T, where string, s *parser.VectorSelector, known map[string][]string) {
	t.Helper()
	has, ok := known[s.Name]
	if !ok {
		t.Errorf("%s names %s, which does not exist", where, s.Name)
	}
	for _, m := range s.LabelMatchers {
		if m.Name != "__name__" && m.Name != "job" && !slices.Contains(has, m.Name) {
			t.Errorf("%s: %s has no label %s", where, s.Name, m.Name)
		}
	}
}

// TestEveryMetricIsShown looks for metrics that no dashboard shows.
func TestEveryMetricIsShown(t *testing.T) {
	shown := map[string]string{}
	for name, d := range made(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				shown[name] += q.Expr + "\n"
			}
		}
	}
	for page, boards := range map[string]string{
		workers: shown["workers.json"] + shown["topic.json"] + shown["dead-letters.json"], letters: shown["dead-letters.json"], service: shown["retry-service.json"],
	} {
		all, err := readTable(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for name := range all {
			if !regexp.MustCompile(`\b` + name + `(_bucket|_count)?\b`).MatchString(boards) {
				t.Errorf("no dashboard shows %s of %s", name, page)
			}
		}
	}
}
