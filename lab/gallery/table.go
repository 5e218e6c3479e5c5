package gallery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Columns are the heads of the table that Cells fills.
var columns = []string{"published", "served", "dead", "runs", "longest wait", "done after", "amplification"}

// cells are the figures of a run.
func (i Incident) cells(r Report) []string {
	done := short(r.DoneAfter)
	if r.Undone > 0 {
		done = fmt.Sprintf("%d never", r.Undone)
	}
	return []string{
		fmt.Sprint(r.All.Published), fmt.Sprint(r.All.Served), reasons(r.All.Dead), fmt.Sprint(r.All.Runs),
		short(i.good(r).Wait), done, fmt.Sprintf("%.2f", r.Amplification),
	}
}

// good are the figures of the messages whose business the incident is not; of
// all, if it is that of all.
func (i Incident) good(r Report) Figures {
	var f Figures
	for _, s := range i.Traffic {
		if s.Good {
			f.add(r.Streams[s.Name])
		}
	}
	if f.Published == 0 {
		return r.All
	}
	return f
}

func reasons(dead map[string]int) string {
	if len(dead) == 0 {
		return "0"
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(dead)) {
		parts = append(parts, fmt.Sprintf("%d %s", dead[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// summary is the figures of a run in one line.
func (i Incident) summary(r Report) string {
	var b strings.Builder
	for n, cell := range i.cells(r) {
		fmt.Fprintf(&b, "%s %s; ", columns[n], cell)
	}
	fmt.Fprintf(&b, "peak %.2f", r.Peak)
	for _, s := range i.Traffic {
		f := r.Streams[s.Name]
		fmt.Fprintf(&b, "\n%s: %d of %d served, dead %v, %d runs, longest wait %s, %d late", s.Name, f.Served, f.Published, f.Dead, f.Runs, short(f.Wait), f.Late)
	}
	return b.String()
}
