// Package text makes texts that anybody may have written safe to show and to
// store, and checks names.
package text

import (
	"regexp"
	"strconv"
	"strings"
)

// MaxWord is the most bytes of a word.
const MaxWord = 64

const ellipsis = "…"

var (
	words = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

	// Quoting escapes these, too, where nothing makes it necessary.
	line  = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
	lines = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n", `\t`, "\t")
)

// Line returns s on one line of at most most bytes, 3 or more. Bytes and
// characters that cannot be seen, or that a terminal may obey, become escapes
// such as \n, \x1b or \u202e. A text that had to be cut ends in "…". Line leaves
// its own results as they are.
func Line(s string, most int) string {
	s = escape(s, line)
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(ellipsis)], "") + ellipsis
}

// Lines is [Line] for texts of any length: it keeps line feeds and tabs.
func Lines(s string) string { return escape(s, lines) }

func escape(s string, plain *strings.Replacer) string {
	quoted := strconv.QuoteToGraphic(s)
	return plain.Replace(quoted[1 : len(quoted)-1])
}

// IsLine reports whether [Line] would leave s as it is.
func IsLine(s string, most int) bool { return len(s) <= most && escape(s, line) == s }

// IsWord reports whether s has 1 to [MaxWord] ASCII letters, digits, "-", "_" and
// ".", and nothing else.
func IsWord(s string) bool { return words.MatchString(s) }
