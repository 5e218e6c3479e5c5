package main

import (
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// view is how a command shows a list.
type view struct {
	format choice
	times  choice // relative where there is no flag
}

func (v *view) register(flags *pflag.FlagSet) {
	v.format = choice{"text", []string{"text", "wide", "json", "jsonl"}}
	flags.VarP(&v.format, "output", "o", "what to print: "+anyOf(v.format.words))
}

// registerTimes is for lists with times.
func (v *view) registerTimes(flags *pflag.FlagSet) {
	v.times = choice{"relative", []string{"relative", "iso"}}
	flags.Var(&v.times, "time", "how text shows times: "+anyOf(v.times.words))
}

// time is t as the user wants it.
func (v *view) time(t time.Time) string {
	if v.times.value == "iso" {
		return term.ISO(t)
	}
	return term.Ago(t, time.Now())
}

// isTable says that people read it.
func (v *view) isTable() bool { return v.format.value == "text" || v.format.value == "wide" }

// column is a part of a row that a table shows.
type column[T any] struct {
	head  string
	right bool // numbers
	wide  bool // only in wide tables
	whole bool // never cut
	text  func(T) string
	style func(T) term.Style // nil for plain text
}

// show prints rows: text as a table that fits into the lines of the terminal, wide
// as one with all columns, of any width, JSON as an array, and jsonl with one
// object a line. JSON has the rows as they are and is written as they come; a table
// needs all of them first. An error of rows ends the output.
func show[T any](s term.Streams, v *view, columns []column[T], rows iter.Seq2[T, error]) error {
	switch v.format.value {
	case "json":
		return showJSON(s.Out, rows)
	case "jsonl":
		return showLines(s.Out, rows)
	}
	wide := v.format.value == "wide"
	var shown []column[T]
	var table term.Table
	for _, c := range columns {
		if wide || !c.wide {
			shown = append(shown, c)
			table.Columns = append(table.Columns, term.Column{Head: c.head, Right: c.right, Whole: c.whole})
		}
	}
	for row, err := range rows {
		if err != nil {
			return err
		}
		table.Add(cells(shown, row)...)
	}
	width := s.Width
	if wide {
		width = 0
	}
	return table.Write(s.Out, width, s.Colour)
}

func cells[T any](columns []column[T], row T) []term.Cell {
	all := make([]term.Cell, len(columns))
	for i, c := range columns {
		all[i].Text = c.text(row)
		if c.style != nil {
			all[i].Style = c.style(row)
		}
	}
	return all
}

func showLines[T any](to io.Writer, rows iter.Seq2[T, error]) error {
	for row, err := range rows {
		if err != nil {
			return err
		}
		line, err := term.JSON(row, "", "")
		if err != nil {
			return err
		}
		if _, err := to.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// showJSON leaves the array open after an error: what was cut off is no JSON.
func showJSON[T any](to io.Writer, rows iter.Seq2[T, error]) error {
	before := "["
	for row, err := range rows {
		if err != nil {
			return err
		}
		element, err := term.JSON(row, "  ", "  ")
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to, "%s\n  %s", before, element); err != nil {
			return err
		}
		before = ","
	}
	end := "\n]\n"
	if before == "[" {
		end = "[]\n"
	}
	_, err := io.WriteString(to, end)
	return err
}

// all are rows that cannot fail.
func all[T any](rows []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}
