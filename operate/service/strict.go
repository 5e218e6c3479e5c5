package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/operate/internal/typo"
)

// Bounds of what is read: more than any request needs.
const (
	maxNesting = 3
	maxNames   = 256 // in one object
)

// decode reads one JSON object into a struct whose fields have exactly these names.
// It refuses what encoding/json lets pass: names that are there twice, or in other
// letters, nulls, and text that is no Unicode.
func decode(raw []byte, names []string, into any) *problem {
	if !utf8.Valid(raw) {
		return malformed.because("the request is not UTF-8: send a body of bytes as bodyBase64")
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(raw, &struct{}{})); ok {
		before := raw[:min(int(syntax.Offset), len(raw))]
		return malformed.because("line %d, byte %d of it: %v", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n')-1, syntax)
	}
	w := &walker{decoder: json.NewDecoder(bytes.NewReader(raw)), known: names}
	w.decoder.UseNumber()
	if p := w.walk(); p != nil {
		return p
	}
	if err := json.Unmarshal(raw, into); err != nil {
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if !ok {
			return malformed.because("%v", err)
		}
		return &problem{kind: malformed, Field: wrong.Field, Detail: fmt.Sprintf("%s must be %s, and is another thing: %s", wrong.Field, jsonKind(wrong.Type), shortened(wrong.Value))}
	}
	return nil
}

// jsonKind says how a value of a type is written.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// namesOf are the names of a struct's fields in JSON.
func namesOf[T any]() (names []string) {
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// walker goes through the tokens of valid JSON.
type walker struct {
	decoder *json.Decoder
	known   []string // names of the outermost object
}

func (w *walker) walk() *problem {
	first, err := w.decoder.Token()
	if err != nil {
		return malformed.because("%v", err)
	}
	if first != json.Delim('{') {
		return malformed.because("the request is no object: begin with {")
	}
	return w.object("", 1)
}

func (w *walker) object(path string, depth int) *problem {
	seen := map[string]bool{}
	for w.decoder.More() {
		token, err := w.decoder.Token()
		if err != nil {
			return malformed.because("%v", err)
		}
		name := token.(string)
		switch {
		case depth == 1 && !slices.Contains(w.known, name):
			return w.unknown(name)
		case seen[name]:
			return malformed.because("%q is there twice in one object: remove one", shortened(path+name))
		case len(seen) == maxNames:
			return malformed.because("an object has more than %d names", maxNames)
		}
		seen[name] = true
		if p := w.value(path+name, depth); p != nil {
			return p
		}
	}
	_, _ = w.decoder.Token() // the brace, which was seen to be there
	return nil
}

func (w *walker) value(path string, depth int) *problem {
	token, err := w.decoder.Token()
	if err != nil {
		return malformed.because("%v", err)
	}
	text, isText := token.(string)
	switch {
	case token == nil:
		return malformed.because("%s is null: leave it out", shortened(path))
	case isText && strings.ContainsRune(text, utf8.RuneError): // which half a pair of surrogates becomes, too
		return malformed.because("%s has text that is no Unicode, or the character U+FFFD: send a body with it as bodyBase64", shortened(path))
	case token != json.Delim('{') && token != json.Delim('['):
		return nil
	case depth == maxNesting:
		return malformed.because("%s is nested too deeply: no field needs it", shortened(path))
	case token == json.Delim('{'):
		return w.object(path+".", depth+1)
	}
	for w.decoder.More() {
		if p := w.value(path, depth+1); p != nil {
			return p
		}
	}
	_, _ = w.decoder.Token()
	return nil
}

func (w *walker) unknown(name string) *problem {
	p := unknownField.because("there is no field %q: the fields are %s", shortened(name), strings.Join(w.known, ", "))
	if near := typo.Nearest(name, w.known); near != "" {
		p.Detail = fmt.Sprintf("there is no field %q: did you mean %s?", shortened(name), near)
	}
	return p
}

// shortened keeps what somebody sent out of messages but for its beginning.
func shortened(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
