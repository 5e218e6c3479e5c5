// Package text spells values of headers: text that is safe to store and to
// show, counters and times. What cannot be read is absent, and nothing fails.
package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of values in bytes. Reading ignores what is longer.
const (
	MaxName  = 512 // ids, keys, topics
	MaxShort = 256 // groups, instances, rules, error types, origin details
	MaxWord  = 64  // reasons, fingerprints, names of origin details, numbers

	MaxError = 2 << 10 // error texts
	MaxStack = 4 << 10
)

const ellipsis = "…"

// Line makes s safe to show and to store: on one line, valid UTF-8, nothing
// but graphic characters (the rest, such as control characters, terminal
// escapes and marks that change the direction of text, turns into \n, \x1b or
// \u202e), and at most max bytes. A text that had to be cut ends in "…". Line
// leaves its own results as they are.
func Line(s string, max int) (text string, cut bool) { return escape(s, max, false) }

// Lines is [Line] for texts of several lines: it keeps line feeds and tabs.
func Lines(s string, max int) (text string, cut bool) { return escape(s, max, true) }

func escape(s string, max int, lines bool) (string, bool) {
	if len(s) <= max && plain(s, lines) {
		return s, false
	}
	b := make([]byte, 0, min(len(s)+16, max+16))
	fits := 0 // bytes of b that leave room for the ellipsis
	for i := 0; i < len(s); {
		r, width := utf8.DecodeRuneInString(s[i:])
		b = appendEscaped(b, s[i:i+width], r, lines)
		if len(b) > max {
			if max < len(ellipsis) {
				return "", true
			}
			return string(append(b[:fits], ellipsis...)), true
		}
		if len(b)+len(ellipsis) <= max {
			fits = len(b)
		}
		i += width
	}
	return string(b), false
}

func appendEscaped(b []byte, char string, r rune, lines bool) []byte {
	switch {
	case allowed(r, len(char), lines):
		return append(b, char...)
	case r == utf8.RuneError && len(char) == 1:
		return fmt.Appendf(b, `\x%02x`, char[0])
	case r == '\n':
		return append(b, `\n`...)
	case r == '\r':
		return append(b, `\r`...)
	case r == '\t':
		return append(b, `\t`...)
	case r < utf8.RuneSelf:
		return fmt.Appendf(b, `\x%02x`, r)
	case r < 1<<16:
		return fmt.Appendf(b, `\u%04x`, r)
	}
	return fmt.Appendf(b, `\U%08x`, r)
}

// IsLine reports whether [Line] would leave s as it is.
func IsLine(s string, max int) bool { return len(s) <= max && plain(s, false) }

// IsLines reports whether [Lines] would leave s as it is.
func IsLines(s string, max int) bool { return len(s) <= max && plain(s, true) }

func plain(s string, lines bool) bool {
	for i := 0; i < len(s); {
		if c := s[i]; c >= ' ' && c < 0x7f {
			i++
			continue
		}
		r, width := utf8.DecodeRuneInString(s[i:])
		if !allowed(r, width, lines) {
			return false
		}
		i += width
	}
	return true
}

func allowed(r rune, width int, lines bool) bool {
	if r == utf8.RuneError && width == 1 {
		return false
	}
	return strconv.IsGraphic(r) || lines && (r == '\n' || r == '\t')
}

// IsWord reports whether s is made of ASCII letters, digits and "-_.": at least
// one, and at most [MaxWord].
func IsWord(s string) bool {
	if s == "" || len(s) > MaxWord {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
			return false
		}
		return true
	}) < 0
}

// Words returns those of list that are words, once each and at most 16.
func Words(list []string) []string {
	var out []string
	for _, word := range list {
		if len(out) < 16 && IsWord(word) && !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	return out
}
