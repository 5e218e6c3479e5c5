package gallery

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/metrics"
)

// scraped is how often the workers are scraped.
const scraped = 30 * time.Second

// scrapes are the values of series, one for each scrape.
type scrapes map[string][]float64

// TestFreshnessAlerts scrapes workers in incidents, and plays the scrapes through the
// alerts on freshness: a topic that stands still is found within five minutes, and
// incidents in which no message is late wake nobody.
func TestFreshnessAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no promtool: apt-get install prometheus")
		}
		t.Skip("no promtool: apt-get install prometheus")
	}
	stalls := []string{"dependency hangs", "status 500", "outage of 8 h", "quiet topic, status 503"}
	calm := []string{"orders alone", "orders beside a topic of poison", "a fifth of the runs fails", "30 s up, 30 s down"}
	file := "rule_files: [rules.yml]\nevaluation_interval: 30s\ntests:\n"
	found := 0
	for _, i := range Incidents {
		stands := slices.Contains(stalls, i.Name)
		if !stands && !slices.Contains(calm, i.Name) {
			continue
		}
		found++
		i.Length, i.Watch = min(i.Length, 20*minute), 0
		s := i.scrape(t)
		file += s.input(i.Name)
		if !stands && s.late() > 0 {
			t.Errorf("%s: %v messages were late, want an incident without any", i.Name, s.late())
		}
		for at := 5 * minute; at <= i.end(); at += 5 * minute {
			if !stands || at <= i.Warm {
				file += firing("RedriveStalled|RedriveLate", at, "")
			} else {
				file += firing("RedriveStalled", at, "{value: 1}")
			}
		}
	}
	if found != len(stalls)+len(calm) {
		t.Fatalf("%d incidents found, want %d: they have other names now", found, len(stalls)+len(calm))
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yml": freshness(t), "incidents.yml": file} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "incidents.yml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// freshness is the file of the rules without the other groups.
func freshness(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range strings.Split(string(text), "\n  - name: ") {
		if strings.HasPrefix(group, "redrive-freshness\n") {
			return "groups:\n  - name: " + group + "\n"
		}
	}
	t.Fatal("alerts.yml has no group redrive-freshness")
	return ""
}

// scrape lets the incident happen.
func (i Incident) scrape(t *testing.T) scrapes {
	t.Helper()
	found := scrapes{}
	synctest.Test(t, func(t *testing.T) {
		var topics []metrics.Topic
		for _, name := range i.topics() {
			topics = append(topics, metrics.Topic{Name: name})
		}
		watch, err := metrics.New(topics...)
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(watch)
		done, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for n := 0; ; n++ {
				found.add(t, registry, n)
				select {
				case <-time.After(scraped):
				case <-done:
					return
				}
			}
		}()
		if _, err := i.run(t.Context(), watch); err != nil {
			t.Error(err)
		}
		close(done)
		<-ended
	})
	return found
}

// add adds the nth scrape. A series that begins later was 0 before.
func (s scrapes) add(t *testing.T, from prometheus.Gatherer, n int) {
	families, err := from.Gather()
	if err != nil {
		t.Error(err)
	}
	set := func(v float64, name string, labels ...string) {
		key := name + `{job="worker",` + strings.Join(labels, ",") + "}"
		s[key] = append(s[key], make([]float64, n-len(s[key]))...)
		s[key] = append(s[key], v)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			switch f.GetName() {
			case "redrive_messages_oldest_seconds", "redrive_messages_in_flight":
				set(m.GetGauge().GetValue(), f.GetName(), labels...)
			case "retry_attempts_total":
				if slices.Contains(labels, `outcome="success"`) {
					set(m.GetCounter().GetValue(), f.GetName(), labels...)
				}
			case "redrive_message_age_at_end_seconds":
				h := m.GetHistogram()
				set(float64(h.GetSampleCount()), f.GetName()+"_count", labels...)
				for _, b := range h.GetBucket() {
					if b.GetUpperBound() == 300 {
						set(float64(b.GetCumulativeCount()), f.GetName()+"_bucket", append(labels, `le="300"`)...)
					}
				}
			}
		}
	}
}

// late counts the messages that ended late.
func (s scrapes) late() (n float64) {
	for key, values := range s {
		switch last := values[len(values)-1]; {
		case strings.HasPrefix(key, "redrive_message_age_at_end_seconds_count"):
			n += last
		case strings.HasPrefix(key, "redrive_message_age_at_end_seconds_bucket"):
			n -= last
		}
	}
	return n
}

// input is a test of promtool, up to its cases.
func (s scrapes) input(name string) string {
	text := fmt.Sprintf("  # %s\n  - interval: %s\n    input_series:\n", name, scraped)
	for key, values := range s {
		text += fmt.Sprintf("      - {series: '%s', values: '%s'}\n", key, strings.Trim(fmt.Sprint(values), "[]"))
	}
	return text + "    promql_expr_test:\n"
}

// firing is a case: how many of the alerts fire, as a list of samples.
func firing(alerts string, at time.Duration, samples string) string {
	return fmt.Sprintf("      - {expr: 'count(ALERTS{alertname=~\"%s\",alertstate=\"firing\"})', eval_time: %s, exp_samples: [%s]}\n", alerts, at, samples)
}
