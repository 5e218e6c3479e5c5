package chart

import (
	"cmp"
	"io"
	"math"
	"strconv"
)

const (
	width, left, right = 820.0, 64.0, 28.0
	plot               = width - left - right
	columns            = 250 // points of a line at most
)

// Load is a chart of calls per second over time, or of other values, one panel below
// the other.
type Load struct {
	Title  string
	Panels []Panel
}

// Panel is one coordinate system.
type Panel struct {
	Title string
	// Bin is how many seconds each value of a line stands for, or how much of Unit.
	Bin float64
	// Unit is that of what the panel begins and ends with; "" means "s".
	Unit string
	// Begin is the first second shown.
	Begin float64
	// From and To, in seconds, are shaded: the outage. None if they are equal.
	From, To float64
	// End is the last second shown.
	End   float64
	Lines []Line
}

// Line is one line of a panel.
type Line struct {
	Name   string
	Values []float64 // per second
}

// Write draws the chart.
func (c Load) Write(to io.Writer) error {
	const height, gap = 150.0, 46.0
	d := newDrawing()
	d.text("ink", "start", left, 24, c.Title)
	y := d.legend(c.Panels, 44)
	for _, p := range c.Panels {
		y += gap
		d.panel(p, y, height)
		y += height
	}
	return d.write(to, c.Title, width, y+gap)
}

// legend names the lines of the first panel that has most, and returns where
// it ends.
func (d *drawing) legend(panels []Panel, y float64) float64 {
	var names []Line
	for _, p := range panels {
		if len(p.Lines) > len(names) {
			names = p.Lines
		}
	}
	x := left
	for i, l := range names {
		wide := 40 + 7*float64(len(l.Name))
		if x+wide > width-right && x > left {
			x, y = left, y+18
		}
		d.path(lineClass(i), dash(i), 2, []point{{x, y - 4}, {x + 22, y - 4}})
		d.text("ink", "start", x+27, y, l.Name)
		x += wide
	}
	return y
}

func lineClass(i int) string { return "line-" + strconv.Itoa(i%lines) }

func (d *drawing) panel(p Panel, top, height float64) {
	bottom := top + height
	x := func(second float64) float64 {
		return left + min(max((second-p.Begin)/(p.End-p.Begin), 0), 1)*plot
	}
	highest := 1.0
	for _, l := range p.Lines {
		for _, v := range l.Values {
			highest = max(highest, v)
		}
	}
	step := niceStep(highest / 4)
	highest = math.Ceil(highest/step) * step
	y := func(v float64) float64 { return bottom - v/highest*height }

	d.text("faint", "start", left, top-8, p.Title)
	if p.To > p.From {
		d.rect("shade", x(p.From), top, max(x(p.To)-x(p.From), 1), height)
	}
	for v := 0.0; v <= highest*1.001; v += step {
		d.path("grid", "", 1, []point{{left, y(v)}, {width - right, y(v)}})
		d.text("faint", "end", left-6, y(v)+4, strconv.FormatFloat(v, 'f', -1, 64))
	}
	step = niceStep((p.End - p.Begin) / 8)
	for s := math.Ceil(p.Begin/step) * step; s <= p.End*1.001; s += step {
		d.text("faint", "middle", x(s), bottom+16, strconv.FormatFloat(math.Round(s*1e6)/1e6, 'f', -1, 64)+" "+cmp.Or(p.Unit, "s"))
	}
	for i, l := range p.Lines {
		var points []point
		for _, s := range thinned(l.Values, p.Bin, p.End-p.Begin) {
			points = append(points, point{x(p.Begin + s.x), y(s.y)})
		}
		d.path(lineClass(i), dash(i), 1.5, points)
	}
}

// thinned turns values into at most a few hundred points, each the highest of
// the values that it stands for, so that no peak is lost.
func thinned(values []float64, bin, end float64) []point {
	shown := min(int(math.Ceil(end/bin)), 1<<20)
	each := max((shown+columns-1)/columns, 1)
	var points []point
	for from := 0; from < shown; from += each {
		high := 0.0
		for i := from; i < min(from+each, len(values)); i++ {
			high = max(high, values[i])
		}
		points = append(points, point{(float64(from) + float64(each)/2) * bin, high})
	}
	return points
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is not
// below least.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= least {
			return factor * power
		}
	}
	return 10 * power
}
