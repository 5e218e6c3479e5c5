package metrics_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
)

var update = flag.Bool("update", false, "rewrite the table of the reference")

const reference = "../docs/reference/metrics.md"

var section = regexp.MustCompile(`(?s)<!-- metrics: made by go test \./metrics -update -->\n.*?<!-- end of metrics -->`)

// kind is a metric as the table shows it.
type kind struct{ kind, labels, help string }

func kinds(t *testing.T) map[string]kind {
	t.Helper()
	families, err := everything(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]kind{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		found[f.GetName()] = kind{strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()}
	}
	return found
}

// TestReference compares the table with the code.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("<!-- metrics: made by go test ./metrics -update -->\n| Metric | Type | Labels | What it says |\n|---|---|---|---|\n")
	all := kinds(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		k := all[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, k.kind, k.labels, k.help)
	}
	b.WriteString("<!-- end of metrics -->")
	old := string(must(os.ReadFile(reference)))
	if !section.MatchString(old) {
		t.Fatalf("%s has no place for the table", reference)
	}
	text := section.ReplaceAllLiteralString(old, b.String())
	if text == old {
		return
	}
	if *update {
		if err := os.WriteFile(reference, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not what the code says: run go test ./metrics -update. The code says:\n%s", reference, b.String())
}

// TestLabelsAreListed has everything happen, and compares the words that
// become labels with those that the reference lists.
func TestLabelsAreListed(t *testing.T) {
	s := newScript(t)
	s.see(received, started, succeeded, leaseLost)
	s.event(discarded(nil))
	s.event(consumer.Event{Kind: consumer.EventDeferred})
	for _, class := range []string{"none", classify.ClassTransient, classify.ClassThrottled, classify.ClassEnvironment,
		classify.ClassUnknown, classify.ClassPoison, classify.ClassShutdown, classify.ClassLost, classify.ClassSkipped, "gremlins"} {
		for _, decision := range []retry.Decision{retries, dies, {}} {
			e := failed(class, decision)
			s.event(e)
			e.Verdict.Deferred = true
			s.event(e)
		}
	}
	follow(t, s.m)
	found := map[string]map[string]bool{}
	pair := regexp.MustCompile(`(\w+)=([^,}]*)`)
	for sample := range values(t, s.m, metrics.NewBreaker("bank", breaker.New(breaker.Config{}))) {
		for _, label := range pair.FindAllStringSubmatch(sample, -1) {
			if found[label[1]] == nil {
				found[label[1]] = map[string]bool{}
			}
			found[label[1]][label[2]] = true
		}
	}
	text := string(must(os.ReadFile(reference)))
	for _, label := range []string{"outcome", "class", "reason", "kind", "action", "result", "state"} {
		row := regexp.MustCompile("(?m)^\\| `" + label + "` \\|(.*)$").FindString(text)
		var listed []string
		for _, word := range regexp.MustCompile("`([a-z_-]+)`").FindAllStringSubmatch(row, -1)[1:] {
			listed = append(listed, word[1])
		}
		slices.Sort(listed)
		listed = slices.Compact(listed)
		if has := slices.Sorted(maps.Keys(found[label])); !slices.Equal(listed, has) {
			t.Errorf("%s lists %q for the label %s, the code has %q", reference, listed, label, has)
		}
	}
}

// TestPagesNameMetricsThatExist looks at every name in queries and rules.
func TestPagesNameMetricsThatExist(t *testing.T) {
	all := kinds(t)
	name := regexp.MustCompile(`\b(?:redrive|retry)_[a-z_]+\b`)
	suffix := regexp.MustCompile(`_(?:bucket|count|sum)$`)
	rule := regexp.MustCompile(`\brecord: ([a-z_:]+)`)
	found := 0
	for _, page := range []string{"../docs/how-to/watch-a-worker.md", "../monitoring/alerts.yml", reference} {
		text := string(must(os.ReadFile(page)))
		text = rule.ReplaceAllString(text, "")
		text, _, _ = strings.Cut(text, "- name: redrive-letters") // of redrive serve
		for _, n := range name.FindAllString(text, -1) {
			if _, ok := all[n]; !ok {
				if k := all[suffix.ReplaceAllString(n, "")]; k.kind != "histogram" {
					t.Errorf("%s names %s, which does not exist", filepath.Base(page), n)
				}
			}
			found++
		}
	}
	if found < 50 {
		t.Errorf("only %d names found in the pages: this test does not see them any more", found)
	}
}
