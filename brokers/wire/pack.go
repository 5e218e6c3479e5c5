package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
)

// maxPacked bounds what Unpack reads: a carried set and a dead letter's
// record with escapes.
const maxPacked = 64 << 10

// Pack writes framework headers, as [Partition] returns them, as one JSON
// object: {"id":"7f3a","attempt":"3"}. Names go without "redrive-", in order; a
// value that has a type is a list of both. Headers of the user are left out.
func Pack(h brokers.Headers) string {
	b := make([]byte, 0, size(h)) // the prefixes make room for the quotes
	b = append(b, '{')
	for _, header := range h {
		if !reserved(header.Name) || header.Name == Packed {
			continue
		}
		b = appendValue(appendName(b, header.Name), header.Value, header.Type)
	}
	return string(append(b, '}'))
}

// appendName begins a member of the object that b ends in.
func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(appendString(b, name[len(prefix):]), ':')
}

func appendValue(b []byte, value, typ string) []byte {
	if typ == "" {
		return appendString(b, value)
	}
	b = append(appendString(append(b, '['), value), ',')
	return append(appendString(b, typ), ']')
}

// appendString appends s as a string of JSON. Bytes that are no UTF-8 become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	if isPlain(s) {
		return append(append(b, s...), '"')
	}
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// isPlain reports whether s is written between quotes as it is, and read so.
func isPlain(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Unpack undoes [Pack]. It takes at most 64 KiB and 64 headers, and
// skips names and values that Pack would not write; the error says what is
// wrong with a text that is no such object, and comes with the headers before
// the fault. The values are as hostile as any other header.
func Unpack(packed string) (brokers.Headers, error) { return appendUnpacked(nil, packed) }

func appendUnpacked(h brokers.Headers, packed string) (brokers.Headers, error) {
	if len(packed) > maxPacked {
		return h, fmt.Errorf("%s: %d bytes are more than the %d that redrive reads", Packed, len(packed), maxPacked)
	}
	if all, ok := appendPlain(h, packed); ok {
		return all, nil
	}
	more, err := unpackJSON(packed)
	return append(h, more...), err
}

func unpackJSON(packed string) (brokers.Headers, error) {
	dec := json.NewDecoder(strings.NewReader(packed))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, fmt.Errorf("%s: not a JSON object", Packed)
	}
	var h brokers.Headers
	for n := 0; dec.More() && n < maxEntries; n++ {
		key, err := dec.Token()
		if err != nil {
			return h, fmt.Errorf("%s: %w", Packed, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return h, fmt.Errorf("%s: %w", Packed, err)
		}
		name, _ := key.(string)
		if header, ok := unpackOne(name, value); ok {
			h = append(h, header)
		}
	}
	if end, err := dec.Token(); err != nil || end != json.Delim('}') {
		return h, errors.New(Packed + ": the object does not end, or has too many entries")
	}
	return h, nil
}

// appendPlain is appendUnpacked for what Pack writes nearly always: no types,
// nothing that is escaped, no blanks. The values share the memory of packed.
func appendPlain(h brokers.Headers, packed string) (all brokers.Headers, ok bool) {
	rest, ok := strings.CutPrefix(packed, "{")
	for n := 0; ok && n < maxEntries; n++ {
		var name, value string
		if name, rest, ok = cutString(rest, ':'); !ok {
			break
		}
		after := byte(',')
		if value, rest, ok = cutString(rest, after); !ok {
			if value, rest, ok = cutString(rest, '}'); !ok || rest != "" {
				break
			}
			after = '}'
		}
		full, known := named(prefix + name)
		if known || reserved(full) && full != Packed {
			if h == nil {
				h = make(brokers.Headers, 0, 1+strings.Count(packed, `","`))
			}
			h = append(h, brokers.Header{Name: full, Value: value})
		}
		if after == '}' {
			return h, true
		}
	}
	return nil, false
}

// cutString takes a plain string and the byte that follows it off s.
func cutString(s string, after byte) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", s, false
	}
	end := 1 + strings.IndexByte(s[1:], '"')
	if end < 1 || end+1 == len(s) || s[end+1] != after || !isPlain(s[1:end]) {
		return "", s, false
	}
	return s[1:end], s[end+2:], true
}

// named returns name, without memory for those that nearly all copies have:
// these are known, and reserved.
func named(name string) (same string, known bool) {
	for _, same := range [...]string{
		nameID, nameKey, namePublishedAt, nameIdempotencyKey, nameRedriveCount, nameSend, nameTopic, nameAttempt, nameThrottles,
		nameFirstFailedAt, nameLastFailedAt, nameDueAt, nameDelay, nameClass, nameHistory, nameTrace, nameOrigin + "topic", nameOrigin + "partition", nameOrigin + "offset",
	} {
		if same == name {
			return same, true
		}
	}
	return strings.Clone(name), false
}

// Lookup finds the value of a header in what [Pack] wrote, the first of that
// name, without reading the rest: a due time is text in milliseconds, as in
// redrive-due-at. One with escapes is returned as it is there; nil is one that is
// absent, or has a type.
func Lookup(packed []byte, name string) []byte {
	word := `"` + strings.TrimPrefix(name, prefix) + `":"`
	for from := 0; ; {
		at := bytes.Index(packed[from:], []byte(word))
		if at < 0 {
			return nil
		}
		from += at + len(word)
		// Only a name has one of these before its quote.
		if before := from - len(word) - 1; before < 0 || packed[before] != '{' && packed[before] != ',' {
			continue
		}
		value, _, _ := bytes.Cut(packed[from:], []byte(`"`))
		return value
	}
}

func unpackOne(name string, value json.RawMessage) (brokers.Header, bool) {
	header := brokers.Header{Name: prefix + name}
	if !reserved(header.Name) || header.Name == Packed {
		return header, false
	}
	if json.Unmarshal(value, &header.Value) == nil {
		return header, true
	}
	var typed []string
	if json.Unmarshal(value, &typed) != nil || len(typed) != 2 {
		return header, false
	}
	header.Value, header.Type = typed[0], typed[1]
	return header, true
}
