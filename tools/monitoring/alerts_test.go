package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	alertsFile = "monitoring/alerts.yml"
	runbooks   = "docs/how-to/runbooks.md"
	commands   = "docs/reference/cli.md"
	home       = "https://github.com/redrive-go/redrive/blob/main/"
)

// alertTests are files of cases for promtool. Days have one of their own: it looks less
// often.
var alertTests = []string{"monitoring/alerts_test.yml", "monitoring/alerts_days_test.yml"}

// rule is a rule of Prometheus.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	strict(t, alertsFile, &file)
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// strict reads YAML without fields that to has not.
func strict(t *testing.T, name string, to any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, name)))
	d.KnownFields(true)
	if err := d.Decode(to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestAlerts has each alert say what it means and how bad it is, and lead to its
// runbook.
func TestAlerts(t *testing.T) {
	books := sections(read(t, runbooks))
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) || r.Annotations["summary"] == "" {
			t.Errorf("%s lacks a severity or a summary: %+v", r.Alert, r)
		}
		if want := home + runbooks + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("the runbook_url of %s is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if books[r.Alert] == "" {
			t.Errorf("%s has no section ## %s", runbooks, r.Alert)
		}
		delete(books, r.Alert)
	}
	for name := range books {
		t.Errorf("%s has a section ## %s, and there is no such alert", runbooks, name)
	}
}

// sections are the parts of a page below its headings of the second level.
func sections(page string) map[string]string {
	found := map[string]string{}
	for _, part := range strings.Split(page, "\n## ")[1:] {
		heading, text, _ := strings.Cut(part, "\n")
		found[heading] = strings.TrimSpace(text)
	}
	return found
}

// TestRunbooksEndInCommands types the last line of each runbook: the reference must
// know the command and its flags.
func TestRunbooksEndInCommands(t *testing.T) {
	help := map[string]string{}
	for _, match := range regexp.MustCompile(`(?s)<!-- generated: (redrive[a-z ]*) -->\n(.*?)<!-- end -->`).FindAllStringSubmatch(read(t, commands), -1) {
		help[match[1]] = match[2]
	}
	last := regexp.MustCompile("(?s)```sh\n([^\n]+)\n```$")
	for name, text := range sections(read(t, runbooks)) {
		match := last.FindStringSubmatch(text)
		if match == nil {
			t.Errorf("the runbook %s does not end in one command", name)
			continue
		}
		command, flags, _ := strings.Cut(match[1], " --")
		if help[command] == "" {
			t.Errorf("%s: there is no command %q", name, command)
		}
		for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString("--"+flags, -1) {
			if !strings.Contains(help[command], flag+" ") {
				t.Errorf("%s: %q has no flag %s", name, command, flag)
			}
		}
	}
}

// TestAlertsAreTested wants a case in which each alert fires, and one in which it is
// silent.
func TestAlertsAreTested(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, name := range alertTests {
		var file struct {
			Tests []struct {
				Cases []struct {
					Alert string           `yaml:"alertname"`
					Fires []map[string]any `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, name)), &file); err != nil {
			t.Fatal(err)
		}
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				if len(c.Fires) > 0 {
					fires[c.Alert] = true
				} else {
					silent[c.Alert] = true
				}
			}
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && !(fires[r.Alert] && silent[r.Alert]) {
			t.Errorf("%q have no case in which %s fires, or none in which it is silent", alertTests, r.Alert)
		}
	}
}

// TestAlertsFire plays the cases through with Prometheus' own tool.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no promtool: apt-get install prometheus")
		}
		t.Skip("no promtool: apt-get install prometheus")
	}
	test := []string{"test", "rules"}
	for _, name := range alertTests {
		test = append(test, filepath.Base(name))
	}
	for _, args := range [][]string{{"check", "rules", filepath.Base(alertsFile)}, test} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join(root, "monitoring")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestFreshness has rules, dashboards and the page speak of one objective.
func TestFreshness(t *testing.T) {
	for _, r := range rules(t) {
		if strings.HasPrefix(r.Record, "redrive:late:") && !strings.Contains(r.Expr, `le=~"300(\\.0)?"`) {
			t.Errorf("%s is about another objective than %d s: %s", cmp.Or(r.Record, r.Alert), inTime, r.Expr)
		}
	}
	if !regexp.MustCompile(`\[\]float64\{[^}]*\b300,[^}]*\}, "topic"\),?\n\t\}`).MatchString(read(t, "metrics/collect.go")) {
		t.Error("redrive_message_age_at_end_seconds has no bucket of 300 s")
	}
}
