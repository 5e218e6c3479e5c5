package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/storm"
	"github.com/redrive-go/redrive/operate/storm/chart"
)

// planReport is what redrive plan prints. Times are in seconds.
type planReport struct {
	Attempts []planRow `json:"attempts"`
	End      quantiles `json:"given_up_s"`
	SLO      *sloRow   `json:"slo,omitempty"`
	Hops     []hopRow  `json:"hops,omitempty"`

	plan   storm.Plan
	slo    time.Duration
	budget string
}

type planRow struct {
	Number  int       `json:"attempt"`
	Reached float64   `json:"reached"`
	Delay   quantiles `json:"delay_s"`
	Start   quantiles `json:"start_s"`
}

type quantiles struct {
	Least float64 `json:"least"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Most  float64 `json:"most"`
}

type sloRow struct {
	Limit  float64 `json:"limit_s"`
	Worst  float64 `json:"worst_s"`
	Beyond float64 `json:"share_beyond"`
	Met    bool    `json:"met"`
}

type hopRow struct {
	Name     string   `json:"name"`
	Attempts int      `json:"attempts"`
	Calls    float64  `json:"calls"`
	Budgeted *float64 `json:"calls_with_budget,omitempty"`
}

func inSeconds(s storm.Spread) quantiles {
	return quantiles{s.Least.Seconds(), s.P50.Seconds(), s.P90.Seconds(), s.P99.Seconds(), s.Most.Seconds()}
}

func newPlanReport(f *planFlags, p storm.Plan, budget allowance) planReport {
	r := planReport{End: inSeconds(p.End), plan: p, slo: f.slo, budget: budget.name}
	for _, a := range p.Attempts {
		r.Attempts = append(r.Attempts, planRow{a.Number, a.Reached, inSeconds(a.Delay), inSeconds(a.Start)})
	}
	if f.slo > 0 {
		r.SLO = &sloRow{
			Limit: f.slo.Seconds(), Worst: p.End.Most.Seconds(),
			Beyond: p.Beyond(f.slo), Met: p.End.Most <= f.slo,
		}
	}
	if len(f.hops.values) > 0 {
		r.Hops = hopRows(f, budget)
	}
	return r
}

// hopRows begins with the policy of the plan itself.
func hopRows(f *planFlags, budget allowance) []hopRow {
	attempts, _, _ := f.input.Retry.Limits()
	hops := append([]storm.Hop{{Name: "this policy", Attempts: attempts}}, f.hops.values...)
	share := 0.0
	if budget.config != nil {
		share = budget.config.Share
	}
	var rows []hopRow
	for i, load := range storm.Amplification(hops, share) {
		row := hopRow{Name: load.Name, Attempts: load.Attempts, Calls: load.Calls}
		if row.Name == "" {
			row.Name = "hop " + strconv.Itoa(i+1)
		}
		if budget.config != nil {
			row.Budgeted = &load.Budgeted
		}
		rows = append(rows, row)
	}
	return rows
}

func (r planReport) text(to io.Writer) error {
	out := &bytes.Buffer{} // which takes all
	t := term.NewTable("attempt", "reached", "delay before it", "p50", "p99", "starts after", "p50", "p90", "p99", "at most")
	for _, a := range r.plan.Attempts {
		delay := []string{"", "", ""} // before the first
		if a.Number > 1 {
			delay = []string{between(a.Delay.Least, a.Delay.Most), shortDuration(a.Delay.P50), shortDuration(a.Delay.P99)}
		}
		s := a.Start
		t.Add(cells(number(int64(a.Number)), percent(a.Reached), delay[0], delay[1], delay[2],
			shortDuration(s.Least), shortDuration(s.P50), shortDuration(s.P90), shortDuration(s.P99), shortDuration(s.Most))...)
	}
	_ = t.Write(out, 0, false)
	e := r.plan.End
	fmt.Fprintf(out, "\nA message that never succeeds is given up after %s (median), %s (p99), %s (at most).\n",
		shortDuration(e.P50), shortDuration(e.P99), shortDuration(e.Most))
	r.sloText(out)
	r.hopText(out)
	_, err := out.WriteTo(to)
	return err
}

func between(least, most time.Duration) string {
	if shortDuration(least) == shortDuration(most) {
		return shortDuration(most)
	}
	return shortDuration(least) + " - " + shortDuration(most)
}

func (r planReport) sloText(out io.Writer) {
	if r.SLO == nil {
		return
	}
	verdict := "kept: even the worst case is within it"
	if !r.SLO.Met {
		verdict = fmt.Sprintf("not kept: the worst case is %s, and %s of the draws are beyond it",
			shortDuration(r.plan.End.Most), percent(r.SLO.Beyond))
	}
	fmt.Fprintf(out, "The SLO of %v is %s.\n", r.slo, verdict)
}

func (r planReport) hopText(out io.Writer) {
	if len(r.Hops) == 0 {
		return
	}
	fmt.Fprintln(out, "\nCalls for one message if every attempt fails:")
	heads := []string{"hop", "attempts", "calls"}
	if r.Hops[0].Budgeted != nil {
		heads = append(heads, "with budget "+r.budget)
	}
	t := term.NewTable(heads...)
	for _, h := range r.Hops {
		row := cells(h.Name, number(int64(h.Attempts)), shortNumber(h.Calls))
		if h.Budgeted != nil {
			row = append(row, term.Cell{Text: shortNumber(*h.Budgeted)})
		}
		t.Add(row...)
	}
	_ = t.Write(out, 0, false)
}

func (r planReport) chart() chart.Schedule {
	c := chart.Schedule{Title: "When each attempt starts, after the first one", Limit: r.slo, LimitName: "SLO"}
	for _, a := range r.plan.Attempts[1:] {
		c.Bars = append(c.Bars, bar("attempt "+strconv.Itoa(a.Number), a.Start))
	}
	c.Bars = append(c.Bars, bar("given up", r.plan.End))
	return c
}

func bar(name string, s storm.Spread) chart.Bar {
	return chart.Bar{Name: name, Least: s.Least, Most: s.Most, P50: s.P50, P99: s.P99}
}
