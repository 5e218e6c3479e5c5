package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for _, tt := range []struct {
		in, want string
		most     int
	}{
		{"plain", "plain", 5},
		{"plain!", "pl…", 5},
		{"größer 一", "größer 一", 20},
		{"一一一", "一…", 8},
		{"a\nb\r\tc", `a\nb\r\tc`, 20},
		{`C:\new "one" \\`, `C:\new "one" \\`, 20},
		{"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, 30},
		{"nul\x00, del \x7f", `nul\x00, del \x7f`, 20},
		{"bad \xff\xfe", `bad \xff\xfe`, 20},
		{"cut \xe4\xb8", `cut \xe4\xb8`, 20},
		{"c1 \u009b", `c1 \u009b`, 20},
		{"bidi \u202eevil", `bidi \u202eevil`, 20},
		{"line\u2028sep", `line\u2028sep`, 20},
		{"tag \U000e0001", `tag \U000e0001`, 20},
		{"", "", 3},
	} {
		if got := Line(tt.in, tt.most); got != tt.want {
			t.Errorf("Line(%q, %d) = %q, want %q", tt.in, tt.most, got, tt.want)
		}
	}
	if got, want := Lines("a\n\tb\r\x1b\\n"), "a\n\tb\\r\\x1b\\n"; got != want {
		t.Errorf("Lines = %q, want %q", got, want)
	}
}

func TestIsWord(t *testing.T) {
	for word, want := range map[string]bool{"a": true, "A-9_.": true, strings.Repeat("x", MaxWord): true, strings.Repeat("x", MaxWord+1): false, "": false, "a b": false, "a\n": false, "é": false} {
		if IsWord(word) != want {
			t.Errorf("IsWord(%q) = %v, want %v", word, !want, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b[31m\xff\u202e一\\n\"", 12)
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = max(3, most&0xfff)
		got := Line(s, most)
		if len(got) > most || !utf8.ValidString(got) || !IsLine(got, most) || Line(got, most) != got || IsLine(s, most) != (got == s) {
			t.Fatalf("Line(%q, %d) = %q", s, most, got)
		}
		if lines := Lines(s); Lines(lines) != lines {
			t.Fatalf("Lines(%q) = %q: it changes its own result", s, lines)
		}
	})
}
