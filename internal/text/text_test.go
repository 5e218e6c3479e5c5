package text

import (
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	tests := []struct {
		in, want string
		max      int
		cut      bool
	}{
		{"plain", "plain", 5, false},
		{"plain!", "pl…", 5, true},
		{"größer 一", "größer 一", 20, false},
		{"一一一", "一…", 8, true},
		{"a\nb\r\tc", `a\nb\r\tc`, 20, false},
		{"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, 30, false},
		{"nul\x00", `nul\x00`, 20, false},
		{"bad \xff\xfe", `bad \xff\xfe`, 20, false},
		{"cut \xe4\xb8", `cut \xe4\xb8`, 20, false},
		{"del \x7f", `del \x7f`, 20, false},
		{"c1 \u009b", `c1 \u009b`, 20, false},
		{"bidi \u202eevil", `bidi \u202eevil`, 20, false},
		{"line\u2028sep", `line\u2028sep`, 20, false},
		{"tag \U000e0001", `tag \U000e0001`, 20, false},
		{"\x00\x00", `…`, 6, true},
		{"abcdef", "", 2, true},
		{"", "", 0, false},
	}
	for _, tt := range tests {
		got, cut := Line(tt.in, tt.max)
		if got != tt.want || cut != tt.cut {
			t.Errorf("Line(%q, %d) = %q, %v, want %q, %v", tt.in, tt.max, got, cut, tt.want, tt.cut)
		}
		if again, _ := Line(got, tt.max); again != got {
			t.Errorf("Line(%q) = %q: it changes its own result", got, again)
		}
	}
	if got, _ := Lines("a\n\tb\r\x1b", 20); got != "a\n\tb\\r\\x1b" {
		t.Errorf("Lines = %q, want line feeds and tabs kept and the rest escaped", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[31m\xff\u202e一", 12)
	f.Add("", 0)
	f.Fuzz(func(t *testing.T, s string, max int) {
		max = max & 0xfff
		for _, lines := range []bool{false, true} {
			got, cut := escape(s, max, lines)
			if len(got) > max || !utf8.ValidString(got) || !plain(got, lines) {
				t.Fatalf("escape(%q, %d, %v) = %q", s, max, lines, got)
			}
			if again, cutAgain := escape(got, max, lines); again != got || cutAgain {
				t.Fatalf("escape(%q) = %q: not stable", got, again)
			}
			if !cut && plain(s, lines) && got != s {
				t.Fatalf("escape(%q) = %q: a safe text is changed", s, got)
			}
		}
	})
}
