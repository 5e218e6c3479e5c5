package term

import (
	"bufio"
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// Sheet is what there is to say about one thing: names with values, under titles.
type Sheet struct{ lines []sheetLine }

type sheetLine struct {
	name, value string
	kind        sheetKind
}

type sheetKind int

const (
	sheetPair sheetKind = iota
	sheetTitle
	sheetText
	sheetCommand
)

// Title adds a title.
func (s *Sheet) Title(text string) {
	s.lines = append(s.lines, sheetLine{name: Safe(text), kind: sheetTitle})
}

// Pair adds a name and its value. An empty value is left out.
func (s *Sheet) Pair(name, value string) {
	if value != "" {
		s.lines = append(s.lines, sheetLine{Safe(name), Safe(value), sheetPair})
	}
}

// Command adds a line that is never broken, so that it can be copied: a command, or an
// address.
func (s *Sheet) Command(text string) {
	s.lines = append(s.lines, sheetLine{value: Safe(text), kind: sheetCommand})
}

// Text adds lines as they are.
func (s *Sheet) Text(text string) {
	for line := range strings.Lines(SafeLines(text)) {
		s.lines = append(s.lines, sheetLine{value: strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    "), kind: sheetText})
	}
}

const (
	indent   = "  "
	mostName = 20 // columns, as a time has; a longer name has a line of its own
)

// Write writes the sheet in lines of at most width columns; 0 means any. Longer
// values go on in the next line, so nothing is cut.
func (s *Sheet) Write(to io.Writer, width int, colour bool) error {
	if width <= 0 {
		width = longest
	}
	names := 0
	for _, l := range s.lines {
		if n := uniseg.StringWidth(l.name); l.kind == sheetPair && n <= mostName {
			names = max(names, n)
		}
	}
	w := bufio.NewWriter(to)
	for i, l := range s.lines {
		switch l.kind {
		case sheetTitle:
			if i > 0 {
				w.WriteByte('\n')
			}
			for _, line := range Wrap(l.name, width) {
				w.WriteString(styled(line, Bold, colour) + "\n")
			}
		case sheetText:
			for _, line := range Wrap(l.value, width-len(indent)) {
				w.WriteString(strings.TrimRight(indent+line, " ") + "\n")
			}
		case sheetCommand:
			w.WriteString(indent + l.value + "\n")
		default:
			writePair(w, l, names, width, colour)
		}
	}
	return w.Flush()
}

func writePair(w *bufio.Writer, l sheetLine, names, width int, colour bool) {
	head := indent + styled(l.name, Dim, colour)
	if n := uniseg.StringWidth(l.name); n <= names {
		head += strings.Repeat(" ", names-n+gap)
	} else {
		for _, line := range Wrap(l.name, width-len(indent)) {
			w.WriteString(indent + styled(line, Dim, colour) + "\n")
		}
		head = strings.Repeat(" ", len(indent)+names+gap)
	}
	for i, line := range Wrap(l.value, width-len(indent)-names-gap) {
		if i > 0 {
			head = strings.Repeat(" ", len(indent)+names+gap)
		}
		w.WriteString(head + line + "\n")
	}
}

func styled(text string, s Style, colour bool) string {
	if colour {
		return s.paint(text)
	}
	return text
}

// Wrap breaks a line into lines of at most width columns, and at least
// [leastLast], between words where it can.
func Wrap(text string, width int) (lines []string) {
	width = max(width, leastLast)
	for {
		line := beginning(text, width)
		if len(line) == len(text) || line == "" {
			return append(lines, text)
		}
		if cut := strings.LastIndexByte(line, ' '); cut > 0 && text[len(line)] != ' ' && strings.Trim(line[:cut], " ") != "" {
			line = line[:cut]
		}
		lines = append(lines, strings.TrimRight(line, " "))
		text = strings.TrimPrefix(text[len(line):], " ")
	}
}
