package sqs

import (
	"bytes"
	"cmp"
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

// sealed is an envelope in JSON.
type sealed struct {
	V       int      `json:"v"`
	Key     *text    `json:"key,omitempty"`
	Headers [][]text `json:"headers,omitempty"`
	Body    *text    `json:"body"`
}

// seal returns the body to send.
func (e envelope) seal() string {
	body := text(e.body)
	return `{"redrive":` + quote(sealed{V: envelopeVersion, Key: (*text)(e.key), Headers: listed(e.headers), Body: &body}) + "}"
}

// open undoes seal.
func open(body []byte) (e envelope, err error) {
	var outer struct {
		Redrive sealed `json:"redrive"`
	}
	err = decodeStrictly(body, &outer)
	in := outer.Redrive
	if err != nil || in.V != envelopeVersion || in.Body == nil || len(in.Headers) > envelopeHeaders {
		var newer struct{ Redrive struct{ V int } }
		if json.Unmarshal(body, &newer) == nil && newer.Redrive.V > envelopeVersion {
			return e, errNewer
		}
		return e, fmt.Errorf("%w: %w", errBroken, cmp.Or(err, errors.New("a part is missing, or not what it should be")))
	}
	e.key, e.body = (*string)(in.Key), []byte(*in.Body)
	e.headers, err = unlisted(in.Headers)
	return e, err
}

// listed are headers as lists of name, value and perhaps type.
func listed(h brokers.Headers) (lists [][]text) {
	for _, header := range h {
		list := []text{text(header.Name), text(header.Value), text(header.Type)}
		if header.Type == "" {
			list = list[:2]
		}
		lists = append(lists, list)
	}
	return lists
}

// unlisted undoes listed.
func unlisted(lists [][]text) (all brokers.Headers, err error) {
	for _, list := range lists {
		if len(list) != 2 && len(list) != 3 {
			return nil, fmt.Errorf("%w: a header has a name, a value and perhaps a type", errBroken)
		}
		list = append(list, "")
		all = append(all, brokers.Header{Name: string(list[0]), Value: string(list[1]), Type: string(list[2])})
	}
	return all, nil
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

// quote is v in JSON, of characters that SQS takes. No other spelling of a text is
// shorter, so that what came in an envelope goes into one that is no longer.
func quote(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // strings cannot fail
	return spelled.Replace(strings.TrimSuffix(b.String(), "\n"))
}

// spelled escapes what SQS does not take, and no line separators.
var spelled = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029", "\ufffe", `\ufffe`, "\uffff", `\uffff`)

// text is one of an envelope, as it is or in base64.
type text string

// MarshalText implements encoding.TextMarshaler.
func (t text) MarshalText() ([]byte, error) {
	s := string(t)
	coded := len(base64Mark) + base64.StdEncoding.EncodedLen(len(s))
	if utf8.ValidString(s) && !strings.HasPrefix(s, base64Mark) && len(quote(s))-len(`""`) <= coded {
		return []byte(s), nil
	}
	return base64.StdEncoding.AppendEncode([]byte(base64Mark), []byte(s)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *text) UnmarshalText(b []byte) (err error) {
	if coded, ok := bytes.CutPrefix(b, []byte(base64Mark)); ok {
		b, err = base64.StdEncoding.Strict().AppendDecode(nil, coded)
	}
	*t = text(b)
	return err
}

// takes reports whether SQS takes s as a body or as the text of an attribute:
// XML's characters, at least one.
func takes(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
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
			start += `,"moved":` + quote(listed(moved))
		}
		if packed != "{}" {
			start += ","
		}
		packed = start + packed[1:]
	}
	return spelled.Replace(packed) // what SQS does not take is in texts alone
}

// unpack returns the flags of a packed attribute, and the headers of the user that
// were moved into it, as far as they can be read.
func unpack(packed string) (flags []string, moved brokers.Headers) {
	if !strings.HasPrefix(packed, flagsStart) {
		return nil, nil
	}
	var in struct {
		SQS   string   `json:"sqs"`
		Moved [][]text `json:"moved"`
	}
	if json.Unmarshal([]byte(packed), &in) != nil {
		return nil, nil
	}
	flags = strings.Split(in.SQS, ",")
	if slices.Contains(flags, flagMoved) && len(in.Moved) <= envelopeHeaders {
		moved, _ = unlisted(in.Moved)
	}
	return flags, slices.DeleteFunc(moved, func(h brokers.Header) bool { return !takesName(h.Name) })
}
