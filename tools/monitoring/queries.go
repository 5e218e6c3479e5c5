package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// board makes the queries of one dashboard. A metric that its table lacks, and a
// label that the metric has not, are bugs, and panic.
type board struct {
	table table
	asks  variables
}

// of selects the series of a metric: of what the user of the dashboard asks for, and
// of the other matchers.
func (b board) of(name string, matchers ...string) string {
	m := b.metric(name)
	for _, ask := range slices.Backward(b.asks) {
		if ask.label == "job" || slices.Contains(m.labels, ask.label) {
			matchers = append([]string{ask.label + `=~"$` + ask.label + `"`}, matchers...)
		}
	}
	if len(matchers) == 0 {
		return name
	}
	return name + "{" + strings.Join(matchers, ", ") + "}"
}

func (b board) metric(name string) metric {
	m, ok := b.table[base(name)]
	if !ok {
		panic("no table has the metric " + name)
	}
	return m
}

// base is the name of a metric without the suffixes of histograms.
func base(name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func (b board) must(name string, labels []string) {
	for _, label := range labels {
		if label != "le" && label != "instance" && !slices.Contains(b.metric(name).labels, label) {
			panic(fmt.Sprintf("%s has no label %s", name, label))
		}
	}
}

// per is a sum of increases a second, by labels.
func (b board) per(name string, by []string, matchers ...string) string {
	b.must(name, by)
	return aggregate("sum", by, "rate("+b.of(name, matchers...)+"[$__rate_interval])")
}

func aggregate(how string, by []string, what string) string {
	if len(by) > 0 {
		how += " by (" + strings.Join(by, ", ") + ") "
	}
	return how + "(" + what + ")"
}

// quantile of a histogram.
func (b board) quantile(q float64, name string, by ...string) string {
	return fmt.Sprintf("histogram_quantile(%v, %s)", q, b.per(name+"_bucket", append(slices.Clone(by), "le")))
}

// all is a gauge, aggregated over workers by sum or max.
func (b board) all(how, name string, by ...string) string {
	b.must(name, by)
	return aggregate(how, by, b.of(name))
}

func legends(labels []string) string {
	var parts []string
	for _, label := range labels {
		parts = append(parts, "{{"+label+"}}")
	}
	return strings.Join(parts, " ")
}

// show is a graph of one metric as its type asks for: the rate of a counter, the
// 99th percentile of a histogram, the highest of a time, and the sum of any other
// gauge.
func (b board) show(title, name string, by ...string) graph {
	m := b.metric(name)
	unit := unitOf(name)
	switch {
	case m.kind == "histogram":
		return b.graph(title, name, unit, by, b.quantile(0.99, name, by...))
	case m.kind == "counter" && unit == "s":
		return b.graph(title, name, unit, by, b.per(name, by))
	case m.kind == "counter":
		return b.graph(title, name, "cps", by, b.per(name, by))
	case unit == "s":
		return b.highest(title, name, by...)
	}
	return b.graph(title, name, unit, by, b.all("sum", name, by...))
}

// highest is a graph of the highest value of a gauge, as of a state, over workers.
func (b board) highest(title, name string, by ...string) graph {
	return b.graph(title, name, unitOf(name), by, b.all("max", name, by...))
}

// graph is one of a query about a metric, which its table explains.
func (b board) graph(title, name, unit string, by []string, expr string) graph {
	return graph{title: title, says: b.metric(name).says, unit: unit, queries: []query{{expr, cmp.Or(legends(by), title)}}}
}

// with adds the queries of other graphs, which legends tell apart.
func (g graph) with(others ...graph) graph {
	g.queries = slices.Clone(g.queries)
	g.queries[0].legend = label(g)
	for _, o := range others {
		g.says += "\n\n" + o.title + ": " + o.says
		g.queries = append(g.queries, query{o.queries[0].expr, label(o)})
	}
	return g
}

func label(g graph) string {
	if legend := g.queries[0].legend; legend != g.title {
		return g.title + ", " + legend
	}
	return g.title
}

func unitOf(name string) string {
	switch name := strings.TrimSuffix(name, "_total"); {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	}
	return "short"
}
