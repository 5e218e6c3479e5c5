package gallery

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

var page = flag.Bool("page", false, "print the table, and write it into the page")

const pageFile = "../../docs/explanation/gallery.md"

// What is between these lines of the page is made by make gallery.
const (
	pageBegin = "<!-- made by make gallery -->\n"
	pageEnd   = "<!-- end of what is made -->\n"
)

// TestPage holds the page against the table of incidents, but for the figures.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(text), pageBegin)
	got, _, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		t.Fatalf("%s has no lines %q and %q", pageFile, pageBegin, pageEnd)
	}
	want := pageTables(make([]outcome, len(Incidents)))
	if anonymous(got) != anonymous(want) {
		t.Errorf("%s is not about the incidents of the code: run make gallery", pageFile)
	}
}

// anonymous is text without the figures of its last table.
func anonymous(text string) string {
	var b strings.Builder
	figures := false
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if figures = figures || strings.Contains(line, columns[0]); figures && len(cells) > 2 && !strings.Contains(line, columns[0]) {
			line = fmt.Sprintln(cells[1], len(cells))
		}
		b.WriteString(line)
	}
	return b.String()
}

// outcome is what became of the messages in an incident.
type outcome struct {
	Report
	wrong bool
}

// pageTables are the tables of the page.
func pageTables(outcomes []outcome) string {
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	rule := func(n int) { b.WriteString(strings.Repeat("|---", n) + "|\n") }
	row("Incident", "What happens", "What must become of the messages")
	rule(3)
	for _, i := range Incidents {
		var wants []string
		for _, w := range i.Wants {
			wants = append(wants, w.Text)
		}
		row(i.Name, i.Story, strings.Join(wants, "; "))
	}
	b.WriteString("\n")
	row(append([]string{"Incident"}, columns...)...)
	rule(1 + len(columns))
	for n, i := range Incidents {
		row(append([]string{i.Name}, i.cells(outcomes[n].Report)...)...)
	}
	return b.String()
}

// textTable is what make gallery prints.
func textTable(outcomes []outcome) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "incident\t%s\tholds\n", strings.Join(columns, "\t"))
	for n, i := range Incidents {
		holds := "yes"
		if outcomes[n].wrong {
			holds = "NO"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", i.Name, strings.Join(i.cells(outcomes[n].Report), "\t"), holds)
	}
	w.Flush()
	return b.String()
}

// writePage puts the outcomes into the page.
func writePage(t *testing.T, outcomes []outcome) {
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), pageBegin)
	_, after, ok := strings.Cut(rest, pageEnd)
	if !ok {
		t.Fatalf("%s has no place for the tables", pageFile)
	}
	made := before + pageBegin + pageTables(outcomes) + pageEnd + after
	if err := os.WriteFile(pageFile, []byte(made), 0o644); err != nil {
		t.Fatal(err)
	}
}
