package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/storm"
	"github.com/redrive-go/redrive/operate/storm/chart"
)

// report is what redrive storm prints.
type report struct {
	Preset string      `json:"preset,omitempty"`
	Cases  []stormCase `json:"cases"`
	Notes  []string    `json:"notes,omitempty"`
}

// stormCase is one world with all that was tried in it.
type stormCase struct {
	Title    string            `json:"title,omitempty"`
	Settings map[string]string `json:"settings"`
	Rows     []row             `json:"rows"`

	world storm.Scenario
}

type row struct {
	Policy  string `json:"policy"`
	Budget  string `json:"budget"`
	Breaker string `json:"breaker"`
	storm.Summary
}

func (r report) text(to io.Writer) error {
	w := &bytes.Buffer{}
	for i, c := range r.Cases {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if c.Title != "" {
			fmt.Fprintf(w, "%s\n", c.Title)
		}
		c.table(w)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "\n%s\n", strings.Join(term.Wrap(note, 78), "\n"))
	}
	_, err := w.WriteTo(to)
	return err
}

func (c stormCase) table(to io.Writer) {
	t := term.NewTable("policy", "budget", "breaker", "offered/s", "served/s", "amplification", "attempts", "wasted", "lost", "settled")
	for _, r := range c.Rows {
		amplification := ranged(r.Amplification, shortNumber)
		if r.Amplification.Max == 0 {
			amplification = "-"
		}
		t.Add(cells(
			r.Policy, r.Budget, r.Breaker,
			ranged(r.PeakOffered, shortNumber), ranged(r.PeakServed, shortNumber), amplification,
			shortNumber(r.Attempts.Median), shortNumber(r.Wasted.Median), shortNumber(r.Lost.Median),
			ranged(r.Settled, func(s float64) string { return fmt.Sprintf("%.1f", s) })+" s",
		)...)
	}
	_ = t.Write(to, 0, false) // to takes all
}

// describe says what is simulated, where no preset does.
func describe(w storm.Scenario) string {
	text, instant := "No outage", "at one instant"
	if w.Outage > 0 {
		text, instant = fmt.Sprintf("An outage of %s", w.Outage), "at the instant when it begins"
	}
	if w.Messages > 0 {
		text += fmt.Sprintf(", %d messages at %s a second", w.Messages, shortNumber(w.Rate))
	}
	if w.Together > 0 {
		text += fmt.Sprintf(", %d %s", w.Together, instant)
	}
	if w.Capacity > 0 {
		text += fmt.Sprintf(", a dependency that can do %s calls a second", shortNumber(w.Capacity))
	}
	return text
}

// conclusion is what follows for jitter, where a table shows that.
func (c stormCase) conclusion() []string {
	var none, full storm.Summary
	for _, r := range c.Rows {
		if r.Budget == "off" && r.Breaker == "off" {
			switch r.Policy {
			case "none":
				none = r.Summary
			case "full":
				full = r.Summary
			}
		}
	}
	if full.PeakServed.Median >= none.PeakServed.Median || full.Attempts.Median < none.Attempts.Median || none.Attempts.Median == 0 {
		return nil
	}
	return []string{fmt.Sprintf(
		"With full jitter the dependency serves %s calls a second at most instead of %s, out of %s attempts instead of %s: it spreads calls, and saves none; --budget and --breaker do.",
		shortNumber(full.PeakServed.Median), shortNumber(none.PeakServed.Median), shortNumber(full.Attempts.Median), shortNumber(none.Attempts.Median),
	)}
}

// ranged is a median, and the range if there is one.
func ranged(r storm.Range, show func(float64) string) string {
	low, high := show(r.Min), show(r.Max)
	if low == high {
		return show(r.Median)
	}
	return fmt.Sprintf("%s [%s-%s]", show(r.Median), low, high)
}

// recoveryChart draws how long recovery takes at each load, up to when no more
// messages come.
func (r report) recoveryChart() chart.Load {
	const half = recoveryStep / 2.0
	p := chart.Panel{
		Title: fmt.Sprintf("Seconds until the last message that waited is done, %.0f at most, over load", recoveryFor.Seconds()),
		Bin:   recoveryStep, Unit: "%", Begin: recoveryFrom - half, End: 100 - half,
	}
	for n, line := range r.Cases[0].Rows {
		l := chart.Line{Name: line.name(r.Cases[0])}
		for _, c := range r.Cases {
			l.Values = append(l.Values, min(c.Rows[n].Settled.Median, recoveryFor.Seconds()))
		}
		p.Lines = append(p.Lines, l)
	}
	return chart.Load{Title: "Recovery from an outage of 5 s", Panels: []chart.Panel{p}}
}

// chart draws the first seed of every case.
func (r report) chart() chart.Load {
	if r.Preset == recoveryPreset().name {
		return r.recoveryChart()
	}
	c := chart.Load{Title: "Calls per second"}
	for _, each := range r.Cases {
		c.Panels = append(c.Panels, each.panels()...)
	}
	return c
}

// panels are what is offered, what is served, and where those can differ, what
// is answered in time.
func (c stormCase) panels() []chart.Panel {
	offered := c.panel("offered", func(r storm.Result) []int { return r.Offered })
	if c.Title != "" {
		offered.Title = c.Title + ": offered"
	}
	panels := []chart.Panel{offered, c.panel("served", func(r storm.Result) []int { return r.Served })}
	if c.world.Patience > 0 {
		panels = append(panels, c.panel("answered in time", func(r storm.Result) []int { return r.Answered }))
	}
	return panels
}

func (c stormCase) panel(title string, bins func(storm.Result) []int) chart.Panel {
	p := chart.Panel{
		Title: title,
		Bin:   c.world.Bin.Seconds(),
		From:  c.world.OutageAt.Seconds(),
		To:    (c.world.OutageAt + c.world.Outage).Seconds(),
		End:   c.end(),
	}
	for _, r := range c.Rows {
		p.Lines = append(p.Lines, chart.Line{Name: r.name(c), Values: perSecond(bins(r.First), c.world.Bin)})
	}
	return p
}

// end is how much of a case is shown: until the arrivals are over, and long
// enough after the outage for most of what it caused.
func (c stormCase) end() float64 {
	longest := 0
	for _, r := range c.Rows {
		longest = max(longest, len(r.First.Offered), len(r.First.Served))
	}
	all := time.Duration(longest) * c.world.Bin
	after := c.world.OutageAt + c.world.Outage + max(2*time.Second, 2*c.world.Outage)
	arrivals := time.Duration(0)
	if c.world.Rate > 0 {
		arrivals = time.Duration(float64(c.world.Messages) / c.world.Rate * float64(time.Second))
	}
	return min(all, max(after, arrivals)).Seconds()
}

// name is the policy, and whatever else tells the rows of c apart.
func (r row) name(c stormCase) string {
	name := r.Policy
	for _, other := range c.Rows {
		if other.Budget != r.Budget {
			name += ", budget " + r.Budget
			break
		}
	}
	for _, other := range c.Rows {
		if other.Breaker != r.Breaker {
			name += ", breaker " + r.Breaker
			break
		}
	}
	return name
}

func perSecond(bins []int, width time.Duration) []float64 {
	rates := make([]float64, len(bins))
	for i, n := range bins {
		rates[i] = float64(n) / width.Seconds()
	}
	return rates
}
