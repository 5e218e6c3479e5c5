package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// element is one element of a drawing.
type element struct {
	name  string
	attrs map[string]string
	text  string
}

// parse reads a document, and fails if it is not well-formed.
func parse(t *testing.T, document string) []element {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(document))
	var all []element
	var open []int
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			open = append(open, len(all))
			all = append(all, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				all[open[len(open)-1]].text += string(token)
			}
		}
	}
}

func named(all []element, name string) (found []element) {
	for _, e := range all {
		if e.name == name {
			found = append(found, e)
		}
	}
	return found
}

func float(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		t.Fatalf("%q is no coordinate", s)
	}
	return f
}

// check demands what holds for every drawing.
func check(t *testing.T, document string) []element {
	t.Helper()
	all := parse(t, document)
	if all[0].name != "svg" || len(named(all, "title")) != 1 {
		t.Fatalf("no svg with one title:\n%s", document)
	}
	w, h := float(t, all[0].attrs["width"]), float(t, all[0].attrs["height"])
	style := named(all, "style")[0].text
	for _, e := range all[1:] {
		switch e.name {
		case "title", "style":
			continue
		case "rect", "path", "text":
		default:
			t.Errorf("unknown element %q", e.name)
		}
		if !strings.Contains(strings.ReplaceAll(style, ",", " "), e.name+"."+e.attrs["class"]+" ") {
			t.Errorf("%s.%s has no colour on a dark screen", e.name, e.attrs["class"])
		}
		inside(t, e, w, h)
	}
	return all
}

// inside demands that an element is within the picture.
func inside(t *testing.T, e element, w, h float64) {
	t.Helper()
	within := func(x, y float64) {
		if x < 0 || x > w || y < 0 || y > h {
			t.Errorf("%s %q is at %v, %v, outside of %v by %v", e.name, e.text, x, y, w, h)
		}
	}
	switch e.name {
	case "text":
		within(float(t, e.attrs["x"]), float(t, e.attrs["y"]))
	case "rect":
		if e.attrs["width"] != "100%" {
			x, y := float(t, e.attrs["x"]), float(t, e.attrs["y"])
			within(x, y)
			within(x+float(t, e.attrs["width"]), y+float(t, e.attrs["height"]))
		}
	case "path":
		for _, at := range strings.FieldsFunc(e.attrs["d"], func(r rune) bool { return r == 'M' || r == 'L' }) {
			x, y, _ := strings.Cut(at, " ")
			within(float(t, x), float(t, y))
		}
	}
}

func write(t *testing.T, c interface{ Write(io.Writer) error }) string {
	t.Helper()
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestLoad(t *testing.T) {
	values := make([]float64, 2000)
	values[1234] = 840
	c := Load{Title: "a < b & \"c\"", Panels: []Panel{
		{Title: "first", Bin: 0.05, From: 10, To: 20, End: 100, Lines: []Line{{"none", values}, {"full", []float64{1, 2, 3}}, {"late\x00", nil}}},
		{Title: "empty", Bin: 1, End: 1},
	}}
	all := check(t, write(t, c))
	if title := named(all, "title")[0].text; title != c.Title {
		t.Errorf("title %q, want %q", title, c.Title)
	}
	lines := slices.DeleteFunc(named(all, "path"), func(e element) bool { return e.attrs["class"] != "line-0" })
	if len(lines) != 2 { // in the legend and in the panel
		t.Fatalf("%d paths of the first line, want 2", len(lines))
	}
	if points := strings.Count(lines[1].attrs["d"], "L"); points < columns/2 || points > columns {
		t.Errorf("%d points for 2000 values, want at most %d", points, columns)
	}
	top := math.Inf(1)
	for _, at := range strings.Split(lines[1].attrs["d"][1:], "L") {
		_, y, _ := strings.Cut(at, " ")
		top = min(top, float(t, y))
	}
	// The panel begins below the title, the legend and a gap, is 150 high and ends at 1000.
	if want := 44 + 46 + 150 - 0.84*150; math.Abs(top-want) > 0.1 {
		t.Errorf("the peak of 840 is drawn at %v, want %v: none may be thinned out", top, want)
	}
	shade := slices.DeleteFunc(named(all, "rect"), func(e element) bool { return e.attrs["class"] != "shade" })
	if len(shade) != 1 || math.Abs(float(t, shade[0].attrs["width"])-plot/10) > 0.1 {
		t.Errorf("outages %v, want one, a tenth of the panel wide", shade)
	}
}

// TestManyLines fills the legend.
func TestManyLines(t *testing.T) {
	p := Panel{Title: "many", Bin: 1, End: 3}
	for i := range 36 {
		p.Lines = append(p.Lines, Line{fmt.Sprintf("policy number %d, budget queue", i), []float64{1, 2, 3}})
	}
	looks := map[string]bool{}
	for _, e := range named(check(t, write(t, Load{Title: "many", Panels: []Panel{p}})), "path") {
		if strings.HasPrefix(e.attrs["class"], "line-") {
			looks[e.attrs["class"]+" "+e.attrs["stroke-dasharray"]] = true
		}
	}
	if len(looks) != 36 {
		t.Errorf("%d looks for 36 lines", len(looks))
	}
}

func TestSchedule(t *testing.T) {
	bars := []Bar{
		{Name: "attempt 2", Most: time.Second, P50: 500 * time.Millisecond, P99: 990 * time.Millisecond},
		{Name: "attempt 3", Least: time.Second, Most: 3 * time.Second, P50: 1500 * time.Millisecond, P99: 2800 * time.Millisecond},
	}
	all := check(t, write(t, Schedule{Title: "plan", Bars: bars, Limit: 2 * time.Second, LimitName: "SLO"}))
	var texts []string
	for _, e := range named(all, "text") {
		texts = append(texts, e.text)
	}
	for _, want := range []string{"attempt 2", "attempt 3", "SLO", "1 s", "100 ms"} {
		if !slices.Contains(texts, want) {
			t.Errorf("texts %q, want %q among them", texts, want)
		}
	}
	for name, c := range map[string]Schedule{
		"nothing":     {Title: "none"},
		"no time":     {Bars: []Bar{{Name: "given up"}}},
		"much time":   {Bars: []Bar{{Most: 10000 * time.Hour, P50: time.Hour, P99: 9999 * time.Hour}}},
		"early limit": {Bars: bars, Limit: 1},
	} {
		t.Run(name, func(t *testing.T) { check(t, write(t, c)) })
	}
}

// TestContrast computes the ratio of WCAG 2 between what is read and the paper.
func TestContrast(t *testing.T) {
	all := tones()
	for class, tone := range all {
		if class == paper || class == "grid" || class == "shade" {
			continue
		}
		for name, pair := range map[string][4]string{
			"light": {tone.light, all[paper].light, all["shade"].light},
			"dark":  {tone.dark, all[paper].dark, all["shade"].dark},
		} {
			if ratio := contrast(t, pair[0], pair[1]); ratio < 4.5 {
				t.Errorf("%s has a contrast of %.1f on %s paper, want 4.5", class, ratio, name)
			}
			if ratio := contrast(t, pair[0], pair[2]); ratio < 3 {
				t.Errorf("%s has a contrast of %.1f on the %s shade, want 3", class, ratio, name)
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 32)
	if err != nil || len(colour) != 7 {
		t.Fatalf("%q is no colour", colour)
	}
	linear := func(v uint64) float64 {
		c := float64(v&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(n>>16) + 0.7152*linear(n>>8) + 0.0722*linear(n)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestWriteFails(t *testing.T) {
	if err := (Load{}).Write(full{}); err == nil {
		t.Error("a chart on a full disk is no error")
	}
	if err := (Schedule{}).Write(full{}); err == nil {
		t.Error("a chart on a full disk is no error")
	}
}
