package kafka

import (
	"strings"
	"testing"
	"time"
)

func TestWitnessText(t *testing.T) {
	w := witnessOf(&record{offset: 4711, time: time.UnixMilli(1_700_000_000_123)})
	for name, tt := range map[string]struct {
		text string
		want witness
		rest string
	}{
		"none":           {"r1:abc", witness{}, "r1:abc"},
		"empty":          {"", witness{}, ""},
		"one":            {w.text() + "r1:w;", w, "r1:w;"},
		"and no more":    {w.text(), w, ""},
		"cut off":        {w.text()[:6], witness{}, ""},
		"no time":        {"w4;x", witness{}, "x"},
		"no digits":      {"w-.!;x", witness{}, "x"},
		"negative":       {"w-4.5;x", witness{}, "x"},
		"out of range":   {"wzzzzzzzzzzzzzzzz.5;x", witness{}, "x"},
		"another's text": {"worker-7", witness{}, ""},
	} {
		if got, rest := cutWitness(tt.text); got != tt.want || rest != tt.rest {
			t.Errorf("%s: %q is %+v and %q, want %+v and %q", name, tt.text, got, rest, tt.want, tt.rest)
		}
	}
	if got := witnessOf(&record{offset: 1}); got != (witness{}) || got.text() != "" {
		t.Errorf("a record without a time is %+v, %q", got, got.text())
	}
}

func FuzzWitness(f *testing.F) {
	f.Add("w3mv.lfls6q3v;r1:abc")
	f.Add("w-1.5;")
	f.Add("worker-7")
	f.Fuzz(func(t *testing.T, text string) {
		w, rest := cutWitness(text)
		if !strings.HasSuffix(text, rest) {
			t.Fatalf("of %q is left %q", text, rest)
		}
		if w == (witness{}) {
			return
		}
		if w.offset < 0 || w.time <= 0 {
			t.Fatalf("%q is %+v", text, w)
		}
		if got, left := cutWitness(w.text() + rest); got != w || left != rest {
			t.Fatalf("%+v is written as %q, which reads as %+v and %q", w, w.text(), got, left)
		}
	})
}
