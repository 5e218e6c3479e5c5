package main

import (
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// view is how a command shows its result: as text for people, or as JSON.
type view struct{ format choice }

func (v *view) register(flags *pflag.FlagSet) {
	v.format = choice{"text", []string{"text", "json"}}
	flags.VarP(&v.format, "output", "o", "what to print: text or json")
}

func (v *view) isJSON() bool { return v.format.value == "json" }

// table is how people see rows: words that are the heads of columns, and what a row
// has below them.
type table[T any] struct {
	heads  string
	values func(T) []any
}

// cells are values as tables show them: numbers, and times as how long ago they were.
func cells(values ...any) []term.Cell {
	list := make([]term.Cell, len(values))
	for i, value := range values {
		switch v := value.(type) {
		case term.Cell:
			list[i] = v
		case instant:
			list[i] = term.Cell{Text: term.Ago(v.Time, time.Now()), Style: term.Dim, Whole: true}
		case string:
			list[i] = term.Cell{Text: v}
		default:
			list[i] = term.Cell{Text: fmt.Sprint(v), Right: true, Whole: true}
		}
	}
	return list
}

// show prints rows: text as a table that fits into the lines of the terminal, JSON
// as an array. JSON has the rows as they are and is written as they come; a table
// needs all of them first. An error of rows ends the output.
func show[T any](s term.Streams, v *view, as table[T], rows iter.Seq2[T, error]) error {
	if v.isJSON() {
		return showJSON(s.Out, rows)
	}
	table := term.NewTable(strings.Fields(as.heads)...)
	for row, err := range rows {
		if err != nil {
			return err
		}
		table.Add(cells(as.values(row)...)...)
	}
	return table.Write(s.Out, s.Width, s.Colour)
}

// print prints a thing as JSON, or as text does.
func (v *view) print(to io.Writer, thing any, text func(io.Writer) error) error {
	if v.isJSON() {
		return term.WriteJSON(to, thing)
	}
	return text(to)
}

// showOne prints one thing: JSON as an array of it, or text as it says.
func showOne[T any](s term.Streams, v *view, thing T, text func(T) string) error {
	return v.print(s.Out, []T{thing}, func(to io.Writer) error {
		_, err := fmt.Fprintln(to, term.Safe(text(thing)))
		return err
	})
}

// showSheet prints one thing: JSON as an array of it, or a sheet.
func showSheet[T interface{ sheet() *term.Sheet }](s term.Streams, v *view, thing T) error {
	return v.print(s.Out, []T{thing}, func(to io.Writer) error { return thing.sheet().Write(to, s.Width, s.Colour) })
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
