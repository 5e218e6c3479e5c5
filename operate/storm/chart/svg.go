// Package chart draws small charts as SVG documents, which need nothing but
// themselves: no script, no font, no image. They are readable on a light and on
// a dark screen, and where style sheets are ignored they are light.
package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// tone is one colour on either screen.
type tone struct{ light, dark string }

// paper is the ground that everything is drawn on.
const paper = "paper"

// tones are the colours by class. Those of the lines keep apart for people who
// do not tell red from green; lines also differ in their dashes.
func tones() map[string]tone {
	return map[string]tone{
		paper:    {"#ffffff", "#0d1117"},
		"ink":    {"#1f2328", "#e6edf3"},
		"faint":  {"#59636e", "#9198a1"},
		"grid":   {"#d1d9e0", "#30363d"},
		"shade":  {"#ffe8e0", "#3d1f17"},
		"line-0": {"#b3261e", "#ff8f80"},
		"line-1": {"#0b5fbf", "#6cb6ff"},
		"line-2": {"#8a5a00", "#e3b341"},
		"line-3": {"#0f7b4f", "#4fd09a"},
		"line-4": {"#7a3fb0", "#cba6f7"},
		"line-5": {"#1f2328", "#e6edf3"},
	}
}

// lines is how many classes of lines there are.
const lines = 6

// dash returns the dashes of line i, which go with lineClass(i): the first 36
// lines all look different.
func dash(i int) string {
	dashes := [lines]string{"", "6 2", "2 2", "8 2 2 2", "4 4", "1 3"}
	return dashes[(i+i/lines)%lines]
}

// drawing collects the elements of a document.
type drawing struct {
	body  bytes.Buffer
	tones map[string]tone
}

func newDrawing() *drawing { return &drawing{tones: tones()} }

func number(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

func escaped(s string) string {
	var b strings.Builder
	// A strings.Builder does not fail.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

func (d *drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(&d.body, `<rect class="%s" fill="%s" x="%s" y="%s" width="%s" height="%s"/>`+"\n",
		class, d.tones[class].light, number(x), number(y), number(w), number(h))
}

func (d *drawing) path(class, dashes string, width float64, points []point) {
	var b strings.Builder
	for i, p := range points {
		step := "L"
		if i == 0 {
			step = "M"
		}
		b.WriteString(step + number(p.x) + " " + number(p.y))
	}
	if dashes != "" {
		dashes = ` stroke-dasharray="` + dashes + `"`
	}
	fmt.Fprintf(&d.body, `<path class="%s" fill="none" stroke="%s" stroke-width="%s"%s d="%s"/>`+"\n",
		class, d.tones[class].light, number(width), dashes, b.String())
}

// text writes s with its anchor ("start", "middle" or "end") at x, and its
// base line at y.
func (d *drawing) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(&d.body, `<text class="%s" fill="%s" text-anchor="%s" x="%s" y="%s">%s</text>`+"\n",
		class, d.tones[class].light, anchor, number(x), number(y), escaped(s))
}

type point struct{ x, y float64 }

// write completes the document. The title is what a screen reader says.
func (d *drawing) write(to io.Writer, title string, width, height float64) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 %s %s" width="%s" height="%s" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12">`+"\n",
		number(width), number(height), number(width), number(height))
	fmt.Fprintf(&b, "<title>%s</title>\n<style>\n@media (prefers-color-scheme: dark) {\n", escaped(title))
	for _, class := range slices.Sorted(maps.Keys(d.tones)) {
		fmt.Fprintf(&b, "rect.%[1]s, text.%[1]s { fill: %[2]s } path.%[1]s { stroke: %[2]s }\n", class, d.tones[class].dark)
	}
	b.WriteString("}\n</style>\n")
	fmt.Fprintf(&b, `<rect class="%s" fill="%s" width="100%%" height="100%%"/>`+"\n", paper, d.tones[paper].light)
	b.Write(d.body.Bytes())
	b.WriteString("</svg>\n")
	_, err := to.Write(b.Bytes())
	return err
}
