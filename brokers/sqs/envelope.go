package sqs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// An envelope is the body of a message that SQS would not take as it is: one
// JSON object that holds the body, and the headers that cannot be attributes.
//
//	{"redrive":{"v":1,"headers":[["name","value"],["n","42","Number"]],"body":"…"}}
//
// A text is in base64 after the mark if it is not UTF-8, if it begins with the
// mark, or if that makes it shorter. Only a message whose packed attribute has the
// flag is opened: any other body is a body, whatever it looks like. Whoever may send
// can set the flag, and says no more with it than without. What cannot be opened is
// taken for an envelope only if its packed attribute also names this queue, as
// whoever writes one has it do.

const (
	envelopeVersion = 1
	envelopeHeaders = 1000 // at most
	base64Mark      = "base64:"
)

// envelope is what goes into one.
type envelope struct {
	key     *string // nil where the message group, or a header, has it
	headers brokers.Headers
	body    []byte
}

var (
	errNewer  = errors.New("the message is in an envelope of a newer version of redrive: update this worker, or find out who may send to the queue")
	errBroken = errors.New("the message is no envelope, though its attribute says so: find out who may send to the queue")
)

// seal returns the body to send.
func (e envelope) seal() string {
	size := len(e.body) + len(e.body)/2 + 64
	for _, h := range e.headers {
		size += len(h.Name) + len(h.Value) + len(h.Type) + 16
	}
	b := make([]byte, 0, size)
	b = append(b, `{"redrive":{"v":1`...)
	if e.key != nil {
		b = append(b, `,"key":`...)
		b = appendText(b, *e.key)
	}
	if len(e.headers) > 0 {
		b = appendHeaders(append(b, `,"headers":`...), e.headers)
	}
	b = append(b, `,"body":`...)
	b = appendText(b, string(e.body))
	return string(append(b, "}}"...))
}

// appendHeaders appends h, which is not empty, as lists of name, value and perhaps
// type.
func appendHeaders(b []byte, h brokers.Headers) []byte {
	for i, header := range h {
		b = append(b, "[,"[min(i, 1)], '[')
		b = append(appendText(b, header.Name), ',')
		b = appendText(b, header.Value)
		if header.Type != "" {
			b = appendText(append(b, ','), header.Type)
		}
		b = append(b, ']')
	}
	return append(b, ']')
}

// plainHeaders undoes appendHeaders.
func plainHeaders(lists [][]string) (all brokers.Headers, err error) {
	for _, list := range lists {
		if len(list) != 2 && len(list) != 3 {
			return nil, fmt.Errorf("%w: a header has a name, a value and perhaps a type", errBroken)
		}
		h := brokers.Header{}
		for i, to := range []*string{&h.Name, &h.Value, &h.Type}[:len(list)] {
			if *to, err = plainText(list[i]); err != nil {
				return nil, err
			}
		}
		all = append(all, h)
	}
	return all, nil
}

// open undoes seal.
func open(body []byte) (envelope, error) {
	var outer struct {
		Redrive json.RawMessage `json:"redrive"`
	}
	if err := decodeStrictly(body, &outer); err != nil {
		return envelope{}, fmt.Errorf("%w: %w", errBroken, err)
	}
	var version struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(outer.Redrive, &version); err != nil {
		return envelope{}, fmt.Errorf("%w: %w", errBroken, err)
	}
	if version.V > envelopeVersion {
		return envelope{}, errNewer
	}
	var inner struct {
		V       int        `json:"v"`
		Key     *string    `json:"key"`
		Headers [][]string `json:"headers"`
		Body    *string    `json:"body"`
	}
	err := decodeStrictly(outer.Redrive, &inner)
	switch {
	case err != nil:
		return envelope{}, fmt.Errorf("%w: %w", errBroken, err)
	case inner.V != envelopeVersion || inner.Body == nil || len(inner.Headers) > envelopeHeaders:
		return envelope{}, errBroken
	}
	return unwrap(inner.Key, inner.Headers, *inner.Body)
}

func unwrap(key *string, headers [][]string, body string) (e envelope, err error) {
	plain, err := plainText(body)
	if err != nil {
		return envelope{}, err
	}
	e.body = []byte(plain)
	if key != nil {
		if plain, err = plainText(*key); err != nil {
			return envelope{}, err
		}
		e.key = &plain
	}
	if e.headers, err = plainHeaders(headers); err != nil {
		return envelope{}, err
	}
	return e, nil
}

// decodeStrictly decodes one JSON value, all of whose fields are known.
func decodeStrictly(text []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("there is more behind it")
	}
	return nil
}

// appendText appends s as a JSON string of characters that SQS takes.
func appendText(b []byte, s string) []byte {
	if strings.HasPrefix(s, base64Mark) || !utf8.ValidString(s) || len(s)+escapes(s) > base64.StdEncoding.EncodedLen(len(s))+len(base64Mark) {
		b = append(append(b, '"'), base64Mark...)
		b = base64.StdEncoding.AppendEncode(b, []byte(s))
		return append(b, '"')
	}
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case short(c) != 0:
			b = append(append(b, s[from:i]...), '\\', short(c))
		case c < ' ':
			b = append(append(b, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c == 0xef && strings.HasPrefix(s[i:], "\uffff"), c == 0xef && strings.HasPrefix(s[i:], "\ufffe"):
			b = append(append(b, s[from:i]...), `\uff`...)
			b = append(b, 'f', "ef"[s[i+2]&1])
			i += 2
		default:
			continue
		}
		from = i + 1
	}
	return append(append(b, s[from:]...), '"')
}

// short is the letter of JSON's escape of two characters for c, 0 where there is
// none. Nobody's spelling of a text is shorter then, so that what came in an
// envelope goes into one that is no longer.
func short(c byte) byte {
	switch c {
	case '"', '\\':
		return c
	case '\b':
		return 'b'
	case '\t':
		return 't'
	case '\n':
		return 'n'
	case '\f':
		return 'f'
	case '\r':
		return 'r'
	}
	return 0
}

// escapes is by how much the escapes of appendText make s longer.
func escapes(s string) int {
	n := 3 * (strings.Count(s, "\ufffe") + strings.Count(s, "\uffff"))
	for _, c := range []byte(s) {
		switch {
		case short(c) != 0:
			n++
		case c < ' ':
			n += len(`\u0000`) - 1
		}
	}
	return n
}

func plainText(s string) (string, error) {
	coded, ok := strings.CutPrefix(s, base64Mark)
	if !ok {
		return s, nil
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(coded)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errBroken, err)
	}
	return string(raw), nil
}

// takes reports whether SQS takes s as a body or as the text of an attribute:
// XML's characters, at least one.
func takes(s string) bool {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
				return false
			}
			i++
			continue
		}
		r, width := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && width == 1 || r == 0xfffe || r == 0xffff {
			return false
		}
		i += width
	}
	return s != ""
}

// The packed attribute begins with flags where the body, the headers or the key
// are not simply those of the message: {"sqs":"envelope,keyless",…}, and with the
// attribute whose place it took: {"sqs":"moved","moved":[["name","value"]],…}.
// wire.Unpack skips both.

const (
	flagEnvelope = "envelope" // the body is one
	flagMoved    = "moved"    // an attribute is here
	flagKeyless  = "keyless"  // the message has no key, though a FIFO queue wants a group

	flagsStart = `{"sqs":"`
)

// pack spells framework headers, moved ones of the user, and flags, as the value of
// an attribute.
func pack(h, moved brokers.Headers, flags ...string) string {
	packed := wire.Pack(h)
	if len(moved) > 0 {
		flags = append(slices.Clip(flags), flagMoved)
	}
	if len(flags) > 0 {
		start := flagsStart + strings.Join(flags, ",") + `"`
		if len(moved) > 0 {
			start += string(appendHeaders([]byte(`,"moved":`), moved))
		}
		if packed != "{}" {
			start += ","
		}
		packed = start + packed[1:]
	}
	if strings.Contains(packed, "\ufffe") || strings.Contains(packed, "\uffff") {
		// Only strings have them, and there they can be escaped.
		packed = strings.NewReplacer("\ufffe", `\ufffe`, "\uffff", `\uffff`).Replace(packed)
	}
	return packed
}

// unpack undoes pack. What is before a fault counts.
func unpack(packed string) brokers.Headers {
	h, _ := wire.Unpack(packed)
	return h
}

// movedIn returns the headers of the user in a packed attribute, none if they
// cannot be read.
func movedIn(packed string) brokers.Headers {
	if !hasFlag(packed, flagMoved) {
		return nil
	}
	var in struct {
		Moved [][]string `json:"moved"`
	}
	if err := json.Unmarshal([]byte(packed), &in); err != nil || len(in.Moved) > envelopeHeaders {
		return nil
	}
	h, _ := plainHeaders(in.Moved)
	return slices.DeleteFunc(h, func(h brokers.Header) bool { return !takesName(h.Name) })
}

// hasFlag reports whether a packed attribute has a flag.
func hasFlag(packed, flag string) bool {
	flags, ok := strings.CutPrefix(packed, flagsStart)
	if !ok || !strings.HasSuffix(packed, "}") {
		return false
	}
	flags, _, _ = strings.Cut(flags, `"`)
	for one := range strings.SplitSeq(flags, ",") {
		if one == flag {
			return true
		}
	}
	return false
}
