package term

import (
	"bufio"
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// Cell is one value of a table.
type Cell struct {
	Text  string // may be anything
	Style Style
	Right bool // as all of its column: numbers
	Whole bool // likewise: cut only if nothing else can be
}

// Table is rows of cells, the first of which has the heads of columns.
type Table struct{ rows [][]Cell }

// NewTable returns a table without rows.
func NewTable(heads ...string) *Table {
	t, row := &Table{}, make([]Cell, len(heads))
	for i, head := range heads {
		row[i] = Cell{Text: head, Style: Bold}
	}
	t.Add(row...)
	return t
}

// Add adds a row, with a cell for each column. An empty cell becomes "-".
func (t *Table) Add(cells ...Cell) {
	row := slices.Clone(cells)
	for i, c := range cells {
		row[i].Text = cmp.Or(Safe(c.Text), "-")
	}
	t.rows = append(t.rows, row)
}

// column is a cell of a column that is like all the others.
func (t *Table) column(i int) Cell { return t.rows[len(t.rows)-1][i] }

const (
	gap       = 2  // between columns
	leastLast = 12 // of the last column, before others are cut
	leastAny  = 4
)

// Write writes the table with lines of at most width columns; 0 means any. The
// last column is cut first, then the widest ones; what was cut ends in "…".
func (t *Table) Write(to io.Writer, width int, colour bool) error {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], uniseg.StringWidth(cell.Text))
		}
	}
	if width > 0 {
		t.narrow(widths, width-gap*(len(widths)-1))
	}
	w := bufio.NewWriter(to)
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
	for ; excess > 0; excess-- {
		i := len(widths) - 1
		if widths[i] <= leastLast {
			i = t.widest(widths)
		}
		if i < 0 {
			return
		}
		widths[i]--
	}
}

// widest returns the widest column that may be cut: one that is whole only if there is
// no other. It returns -1 if there is none.
func (t *Table) widest(widths []int) int {
	for _, whole := range []bool{false, true} {
		widest, most := -1, leastAny
		for i, w := range widths {
			if w > most && (whole || !t.column(i).Whole) {
				widest, most = i, w
			}
		}
		if widest >= 0 {
			return widest
		}
	}
	return -1
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
		case t.column(i).Right:
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
