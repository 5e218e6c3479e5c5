package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/goldentest"
)

// TestCharts compares charts with the pictures in testdata, which must be XML.
func TestCharts(t *testing.T) {
	values := make([]float64, 2000) // more than there are columns: the peak must stay
	values[1234] = 840
	many := Panel{Title: "many", Bin: 1, End: 3}
	for i := range 36 { // each needs a look of its own
		many.Lines = append(many.Lines, Line{fmt.Sprintf("policy number %d, budget queue", i), []float64{1, 2, 3}})
	}
	bars := []Bar{
		{Name: "attempt 2", Most: time.Second, P50: 500 * time.Millisecond, P99: 990 * time.Millisecond},
		{Name: "attempt 3", Least: time.Second, Most: 3 * time.Second, P50: 1500 * time.Millisecond, P99: 2800 * time.Millisecond},
	}
	for name, chart := range map[string]interface{ Write(io.Writer) error }{
		"load": Load{Title: "a < b & \"c\"", Panels: []Panel{
			{Title: "first", Bin: 0.05, From: 10, To: 20, End: 100, Lines: []Line{{"none", values}, {"full", []float64{1, 2, 3}}, {"late\x00", nil}}},
			{Title: "empty", Bin: 1, End: 1},
		}},
		"many":        Load{Title: "many", Panels: []Panel{many}},
		"schedule":    Schedule{Title: "plan", Bars: bars, Limit: 2 * time.Second, LimitName: "SLO"},
		"nothing":     Schedule{Title: "none"},
		"no-time":     Schedule{Bars: []Bar{{Name: "given up"}}},
		"much-time":   Schedule{Bars: []Bar{{Most: 10000 * time.Hour, P50: time.Hour, P99: 9999 * time.Hour}}},
		"early-limit": Schedule{Bars: bars, Limit: 1},
	} {
		var b strings.Builder
		if err := chart.Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal([]byte(b.String()), new(struct{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		goldentest.File(t, filepath.Join("testdata", name+".svg"), b.String())
		if err := chart.Write(full{}); err == nil {
			t.Errorf("%s: a chart on a full disk is no error", name)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

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
