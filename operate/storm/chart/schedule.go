package chart

import (
	"io"
	"math"
	"strconv"
	"time"
)

// Schedule is a chart of when things can happen, one bar below the other, over
// a time that grows by powers of ten.
type Schedule struct {
	Title string
	Bars  []Bar
	// Limit is marked with a line; 0 means none.
	Limit     time.Duration
	LimitName string
}

// Bar is from the earliest to the latest, with marks in between.
type Bar struct {
	Name        string
	Least, Most time.Duration
	P50, P99    time.Duration
}

// Write draws the chart.
func (c Schedule) Write(to io.Writer) error {
	const row, names = 24.0, 88.0
	d := newDrawing()
	d.text("ink", "start", 16, 24, c.Title)
	d.text("faint", "start", 16, 44, "bar: earliest to latest; thick: the median to the 99th percentile")
	top := 66.0
	bottom := top + row*float64(len(c.Bars))
	first, last := c.limits()
	x := func(t time.Duration) float64 {
		share := math.Log(max(t.Seconds(), first)/first) / math.Log(last/first)
		return 16 + names + min(share, 1)*(width-32-names)
	}
	d.timeAxis(first, last, x, top, bottom)
	for i, b := range c.Bars {
		y := top + row*(float64(i)+0.5)
		d.text("ink", "start", 16, y+4, b.Name)
		d.rect("line-1", x(b.Least), y-1, max(x(b.Most)-x(b.Least), 2), 2)
		d.rect("line-1", x(b.P50), y-6, max(x(b.P99)-x(b.P50), 2), 12)
	}
	if c.Limit > 0 {
		d.path("line-0", "4 3", 1.5, []point{{x(c.Limit), top - 6}, {x(c.Limit), bottom}})
		d.text("line-0", "end", x(c.Limit)-4, top-2, c.LimitName)
	}
	return d.write(to, c.Title, width, bottom+34)
}

// limits returns the ends of the axis, in seconds. The left end is where the
// medians begin, and stands for everything before it.
func (c Schedule) limits() (first, last float64) {
	first, last = math.Inf(1), max(c.Limit.Seconds(), 0.001)
	for _, b := range c.Bars {
		if b.P50 > 0 {
			first = min(first, b.P50.Seconds())
		}
		last = max(last, b.Most.Seconds())
	}
	first = min(first, last) / 10
	return max(first, 1e-6), max(last*1.05, 1e-5)
}

func (d *drawing) timeAxis(first, last float64, x func(time.Duration) float64, top, bottom float64) {
	units := []struct {
		name  string
		unit  time.Duration
		marks []int
	}{
		{"µs", time.Microsecond, []int{1, 10, 100}},
		{"ms", time.Millisecond, []int{1, 10, 100, 200, 500}},
		{"s", time.Second, []int{1, 2, 5, 10, 20}},
		{"min", time.Minute, []int{1, 2, 5, 10, 20}},
		{"h", time.Hour, []int{1, 2, 5, 10, 24, 100, 1000}},
	}
	for _, u := range units {
		for _, n := range u.marks {
			mark := time.Duration(n) * u.unit
			if s := mark.Seconds(); s < first || s > last {
				continue
			}
			d.path("grid", "", 1, []point{{x(mark), top}, {x(mark), bottom}})
			d.text("faint", "middle", x(mark), bottom+16, strconv.Itoa(n)+" "+u.name)
		}
	}
}
