package serve_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

const alerts = "../../../docs/how-to/alerts.yml"

// TestAlerts has every rule name metrics that exist, and say what it means; and the
// page on alerts name every rule.
func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/how-to/watch-a-worker.md")
	if err != nil {
		t.Fatal(err)
	}
	var metrics string
	inWorld(t, func(w *world) {
		w.run()
		time.Sleep(time.Second) // it has begun with all brokers
		metrics = w.get("/metrics", "").Body.String()
	})
	rules := 0
	for _, group := range file.Groups {
		if group.Name != "redrive-letters" {
			continue
		}
		for _, r := range group.Rules {
			rules++
			for _, name := range regexp.MustCompile(`\bredrive_\w+`).FindAllString(r.Expr, -1) {
				if !strings.Contains(metrics, "# TYPE "+name+" ") {
					t.Errorf("%s names %s, which does not exist", r.Alert, name)
				}
			}
			if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || !strings.Contains(string(page), r.Alert) {
				t.Errorf("%s lacks a severity, a summary, or a line in watch-a-worker.md: %+v", r.Alert, r)
			}
		}
	}
	if rules < 5 {
		t.Errorf("%d rules found, want those of redrive serve", rules)
	}
}

// TestAlertsFire plays the rules through with Prometheus' own tool, where there is
// one.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool")
	}
	for _, args := range [][]string{{"check", "rules", alerts}, {"test", "rules", "testdata/alerts.yml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
