package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns v as JSON without a line feed at its end: on one line if indent is
// empty, or else on several, the second and later ones of which begin with prefix.
// Characters that a terminal may obey, or that cannot be seen, are written as
// \u0000, which means the same.
func JSON(v any, prefix, indent string) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent(prefix, indent)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return escaped(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// escaped is JSON whose strings have graphic characters only: outside of strings
// there are no others.
func escaped(from []byte) []byte {
	to := make([]byte, 0, len(from)+64)
	for _, r := range string(from) {
		if r == '\n' || strconv.IsGraphic(r) {
			to = utf8.AppendRune(to, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			to = fmt.Appendf(to, `\u%04x`, unit)
		}
	}
	return to
}

// WriteJSON writes v as JSON on several lines.
func WriteJSON(to io.Writer, v any) error {
	b, err := JSON(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = to.Write(append(b, '\n'))
	return err
}
