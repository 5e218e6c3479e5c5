package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// output is where results go, and how.
type output struct {
	view
	svg string
}

func (o *output) register(flags *pflag.FlagSet) {
	o.view.register(flags)
	flags.StringVar(&o.svg, "svg", "", "also draw a chart into this file")
}

// draw writes the chart, if one is asked for.
func (o *output) draw(messages io.Writer, chart func(io.Writer) error) (err error) {
	if o.svg == "" {
		return nil
	}
	file, err := os.Create(o.svg)
	if err != nil {
		return fmt.Errorf("the chart was not written: %w", err)
	}
	if err := chart(file); err != nil {
		file.Close()
		return fmt.Errorf("the chart in %s is incomplete: %w", o.svg, err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("the chart in %s is incomplete: %w", o.svg, err)
	}
	fmt.Fprintf(messages, "wrote %s\n", o.svg)
	return nil
}

// shortDuration is d to three digits or so: what matters in a plan.
func shortDuration(d time.Duration) string {
	digits := time.Duration(1)
	for magnitude := d.Abs(); magnitude/digits >= 1000; {
		digits *= 10
	}
	if d >= time.Minute {
		digits = time.Second
	}
	return d.Round(digits).String()
}

// shortNumber is f without decimals if it is large or whole.
func shortNumber(f float64) string {
	if f == math.Trunc(f) || math.Abs(f) >= 100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// percent is a share to be read, with more digits the closer it is to nothing.
func percent(share float64) string {
	return strconv.FormatFloat(share*100, 'g', 3, 64) + " %"
}
