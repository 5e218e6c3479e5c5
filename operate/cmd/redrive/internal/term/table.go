package term

import (
	"bufio"
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// Cell is one value of a table.
type Cell struct {
	Text  string // may be anything
	Style Style
}

// Column is the head of a column of a table.
type Column struct {
	Head  string
	Right bool // numbers
	Whole bool // what is cut only if nothing else can be
}

// Table is rows of cells below the heads of columns.
type Table struct {
	Columns []Column
	rows    [][]Cell
}

// Add adds a row, with a cell for each column. An empty cell becomes "-".
func (t *Table) Add(cells ...Cell) {
	row := make([]Cell, len(t.Columns))
	for i := range row {
		row[i] = cells[i]
		row[i].Text = Safe(row[i].Text)
		if row[i].Text == "" {
			row[i].Text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

const (
	gap       = 2  // between columns
	leastLast = 12 // of the last column, before others are cut
	leastAny  = 4
)

// Write writes the table with lines of at most width columns; 0 means any. The
// last column is cut first, then the widest ones; what was cut ends in "…".
func (t *Table) Write(to io.Writer, width int, colour bool) error {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = uniseg.StringWidth(c.Head)
		for _, row := range t.rows {
			widths[i] = max(widths[i], uniseg.StringWidth(row[i].Text))
		}
	}
	if width > 0 {
		t.narrow(widths, width-gap*(len(widths)-1))
	}
	w := bufio.NewWriter(to)
	heads := make([]Cell, len(t.Columns))
	for i, c := range t.Columns {
		heads[i] = Cell{c.Head, Bold}
	}
	t.line(w, heads, widths, colour)
	for _, row := range t.rows {
		t.line(w, row, widths, colour)
	}
	return w.Flush()
}

// narrow makes columns fit into room, if they can be made to.
func (t *Table) narrow(widths []int, room int) {
	excess := -room
	for _, w := range widths {
		excess += w
	}
	last := &widths[len(widths)-1]
	if cut := min(excess, *last-leastLast); cut > 0 {
		*last -= cut
		excess -= cut
	}
	for ; excess > 0; excess-- {
		i := t.widest(widths, false)
		if i < 0 {
			i = t.widest(widths, true)
		}
		if i < 0 {
			return
		}
		widths[i]--
	}
}

// widest returns the widest column that may be cut, or -1.
func (t *Table) widest(widths []int, whole bool) int {
	widest, most := -1, leastAny
	for i, w := range widths {
		if w > most && (whole || !t.Columns[i].Whole) {
			widest, most = i, w
		}
	}
	return widest
}

func (t *Table) line(w *bufio.Writer, cells []Cell, widths []int, colour bool) {
	for i, cell := range cells {
		text := Fit(cell.Text, widths[i])
		pad := strings.Repeat(" ", widths[i]-uniseg.StringWidth(text))
		if colour {
			text = cell.Style.paint(text)
		}
		last := i == len(cells)-1
		switch {
		case t.Columns[i].Right:
			w.WriteString(pad + text)
		case last:
			w.WriteString(text)
		default:
			w.WriteString(text + pad)
		}
		if !last {
			w.WriteString(strings.Repeat(" ", gap))
		}
	}
	w.WriteByte('\n')
}

// Fit cuts a text to so many columns. What was cut ends in "…".
func Fit(text string, width int) string {
	if uniseg.StringWidth(text) <= width {
		return text
	}
	return beginning(text, width-1) + "…"
}

// beginning is as much of a text as has so many columns.
func beginning(text string, width int) string {
	rest, state := text, -1
	for rest != "" {
		_, after, columns, next := uniseg.FirstGraphemeClusterInString(rest, state)
		if width -= columns; width < 0 {
			break
		}
		rest, state = after, next
	}
	return text[:len(text)-len(rest)]
}
