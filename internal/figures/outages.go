package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/internal/figure"
	"github.com/redrive-go/redrive/internal/outage"
	"github.com/redrive-go/redrive/internal/storm/chart"
)

const (
	shortOutage = 5 * time.Second
	longOutage  = 10 * time.Minute
)

// played is a scenario that was run.
type played struct {
	Name   string
	Outage time.Duration
	Report outage.Report
}

// outages takes a fleet through two outages, with each protection switched
// off, and through one that protections cannot make up for.
func outages(report func(figure.Figure)) error {
	all, err := inBubbles()
	if err != nil {
		return err
	}
	goal := outage.Normal(0)
	normal := float64(goal.Rate)
	var short, long outage.Report
	for _, p := range all {
		if p.Name == "all" && p.Outage == shortOutage {
			short = p.Report
		} else if p.Name == "all" && p.Outage == longOutage {
			long = p.Report
		}
	}
	report(figure.Figure{Name: "outage_amplification", Value: max(short.Amplification, long.Amplification), Unit: "calls/message", Goal: goal.Bound()})
	report(figure.Figure{Name: "recovery_peak", Value: float64(max(short.PeakServed, long.PeakServed)) / normal, Unit: "of normal load", Goal: 1.2})
	report(figure.Figure{Name: "outage_dead_letters", Value: float64(short.DeadLetters + long.DeadLetters), Unit: "messages", Goal: 0})
	report(figure.Figure{Name: "open_breaker_fetches", Value: float64(short.ReceivedOpen + long.ReceivedOpen), Unit: "messages", Goal: 0})
	// What the outage held up, by the capacity that is left, and the time that
	// breakers may take to see its end.
	spare := float64(goal.Capacity - goal.Rate)
	drain := longOutage.Seconds()*normal/spare + 300
	report(figure.Figure{Name: "drain_s", Value: long.Drain.Seconds(), Unit: "s after 10 min", Goal: drain})
	table(all)
	return draw(all)
}

// table notes one line for each scenario.
func table(all []played) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	last := time.Duration(0)
	for _, p := range all {
		if p.Outage != last {
			last = p.Outage
			fmt.Fprintf(w, "\t\t\t\t\t\t\t\t\n%v\tamplification\toffered/s\tserved/s\tattempts\tup to\tdead\twasted\tsettled\tdrained\n", p.Outage)
		}
		r := p.Report
		fmt.Fprintf(w, "%s\t%.3g\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", p.Name, r.Amplification, r.PeakOffered, r.PeakServed,
			r.Burnt, r.Attempts, r.DeadLetters, r.Wasted, shown(r.Settled), shown(r.Drain))
	}
	w.Flush()
	for line := range strings.Lines(text.String()) {
		note("%s", strings.TrimSpace(line))
	}
}

func shown(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return d.Round(time.Second).String()
}

var svg = flag.String("svg", "", "a file for the chart of the area restraint")

// draw writes the chart, if one is wanted.
func draw(all []played) error {
	if *svg == "" {
		return nil
	}
	panel := func(length time.Duration, bin int, end float64) chart.Panel {
		s := outage.Normal(length)
		p := chart.Panel{
			Title: fmt.Sprintf("Calls per second, outage of %v", length),
			Bin:   float64(bin), From: s.Warm.Seconds(), To: (s.Warm + length).Seconds(), End: end,
		}
		for _, run := range all {
			if run.Outage == length && run.Name != "no jitter" {
				p.Lines = append(p.Lines, chart.Line{Name: run.Name, Values: means(run.Report.Load.Offered, bin)})
			}
		}
		return p
	}
	file, err := os.Create(*svg)
	if err != nil {
		return err
	}
	c := chart.Load{Title: "20 workers, 100 messages a second, a dependency that can do 120", Panels: []chart.Panel{
		panel(shortOutage, 1, 120), panel(longOutage, 10, 1800),
	}}
	return cmp.Or(c.Write(file), file.Close())
}

// means returns the means of n values each.
func means(values []int, n int) []float64 {
	m := make([]float64, (len(values)+n-1)/n)
	for i, v := range values {
		m[i/n] += float64(v) / float64(n)
	}
	return m
}

// bubblesEnv names the file for the results of a process that plays all
// scenarios. Virtual time needs a test, and a test its own process, whose
// output and exit code are the testing package's.
const bubblesEnv = "REDRIVE_FIGURES_BUBBLES"

func inBubbles() (all []played, err error) {
	dir, err := os.MkdirTemp("", "figures")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	results := filepath.Join(dir, "outages.json")
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.Command(program)
	child.Env = append(os.Environ(), bubblesEnv+"="+results)
	if out, err := child.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	text, err := os.ReadFile(results)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(text, &all)
}

// playInBubbles plays all scenarios, writes the results and ends the process.
func playInBubbles(results string) {
	var all []played
	play := func(t *testing.T, length, patience time.Duration, variants []outage.Variant) {
		for _, v := range variants {
			s := outage.Normal(length)
			s.Patience = patience
			v.Change(&s)
			synctest.Test(t, func(t *testing.T) {
				broker := memory.New(memory.Options{})
				r, err := outage.Run(t.Context(), s, func() (brokers.Broker, error) { return broker, nil })
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, played{v.Name, length, r})
			})
		}
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "outages", F: func(t *testing.T) {
		play(t, shortOutage, 2*time.Hour, outage.Protections())
		play(t, longOutage, 2*time.Hour, outage.Protections())
		play(t, time.Minute, 10*time.Minute, outage.Mismatches())
		text, err := json.Marshal(all)
		if err == nil {
			err = os.WriteFile(results, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}}, nil, nil)
}
