// Package term is how the command talks: data as tables or JSON, messages,
// progress and questions. What it writes is safe to show, whatever the values are:
// a terminal obeys none of it, and no value can pass for another line. How wide a
// table is and whether there are colours depends on where it goes.
package term

import (
	"io"
	"os"
	"runtime"

	"golang.org/x/term"

	"github.com/redrive-go/redrive/operate/internal/text"
)

// Streams are the standard streams of a process, and what is known of them.
type Streams struct {
	In  io.Reader
	Out io.Writer // data
	Err io.Writer // everything else

	// Width is how many columns of text fit into a line of Out.
	Width int

	// Terminal says that Out is one.
	Terminal bool

	// Colour says that it shows colours.
	Colour bool

	// Live is how many columns the last line of Err has, if that is a terminal
	// where the line can be written again, or else 0.
	Live int

	// Asks says that there is somebody who can be asked: In and Err are terminals.
	Asks bool
}

// plainWidth is the width where there is no terminal.
const plainWidth = 80

// Of returns the streams of a process. The environment variables NO_COLOR and
// TERM=dumb switch off colours, the latter also rewriting lines.
func Of(in, out, err *os.File, getenv func(string) string) Streams {
	// Consoles of Windows obey escapes only if they are told to.
	obeys := getenv("TERM") != "dumb" && runtime.GOOS != "windows"
	s := Streams{In: in, Out: out, Err: err, Width: plainWidth}
	if s.Terminal = term.IsTerminal(int(out.Fd())); s.Terminal {
		s.Width = widthOf(out)
		s.Colour = obeys && getenv("NO_COLOR") == ""
	}
	if term.IsTerminal(int(err.Fd())) {
		s.Asks = term.IsTerminal(int(in.Fd()))
		if obeys {
			s.Live = widthOf(err)
		}
	}
	return s
}

func widthOf(terminal *os.File) int {
	if width, _, err := term.GetSize(int(terminal.Fd())); err == nil && width > 0 {
		return width
	}
	return plainWidth
}

// longest is the most bytes of one text.
const longest = 1 << 30

// Safe is s on one line, with nothing in it that a terminal obeys.
func Safe(s string) string { return text.Line(s, longest) }

// SafeLines is Safe for texts of several lines.
func SafeLines(s string) string { return text.Lines(s) }

// Style is how a text looks where there are colours.
type Style string

// Styles. The zero value is that of plain text.
const (
	Bold   Style = "\x1b[1m"
	Dim    Style = "\x1b[2m"
	Red    Style = "\x1b[31m"
	Green  Style = "\x1b[32m"
	Yellow Style = "\x1b[33m"
)

func (s Style) paint(text string) string {
	if s == "" || text == "" {
		return text
	}
	return string(s) + text + "\x1b[0m"
}
