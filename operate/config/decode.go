package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/internal/typo"
)

// decoder turns the tree of a file into a Config, by the tags of its fields:
//
//	yaml      the key
//	required  a key that must be there: "true", or "unless service" has a section
//	default   the value of a key that is not there
//	unset     what its absence means, for the documentation
//	one       the words that are allowed
//	kinds     the kinds of brokers that have the key
//
// The package yaml decodes, too, but ends at the first fault.
type decoder struct {
	*Config
	meant  map[string]bool // keys that others were taken for
	faults []*Fault
}

// reference is a value that is read later, and needs its place for errors.
type reference interface{ refer(d *decoder, key string) }

// decode puts a node into a value of any type that a configuration has.
func (d *decoder) decode(key string, n ast.Node, v reflect.Value) {
	found := len(d.faults)
	switch _, isScalar := v.Addr().Interface().(encoding.TextUnmarshaler); {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(key, n, v.Elem())
	case v.Kind() == reflect.Struct && !isScalar:
		d.mapping(key, n, v)
	case v.Kind() == reflect.Map:
		d.names(key, n, v)
	case v.Kind() == reflect.Slice:
		d.list(key, n, v)
	default:
		d.scalar(key, n, v)
	}
	if r, ok := v.Addr().Interface().(reference); ok && len(d.faults) == found {
		r.refer(d, key)
	}
}

// each calls take for the keys of a mapping, and notes those that are there twice.
// It returns how many there are; -1 if n is no mapping.
func (d *decoder) each(key string, n ast.Node, take func(key, name string, value ast.Node)) int {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(key, n, "write keys and values below it")
		return -1
	}
	for _, pair := range m.Values {
		name, at := pair.Key.GetToken().Value, pair.Key.GetToken().Position
		full := below(key, text.Line(name, text.MaxWord))
		if first := d.lines[full]; first != nil {
			d.faultAt(at, full, fmt.Sprintf("is there twice, first in line %d", first.Line), "remove one")
			continue
		}
		d.lines[full] = at
		take(full, name, pair.Value)
	}
	return len(m.Values)
}

func below(key, name string) string { return strings.TrimPrefix(key+"."+name, ".") }

// wrongType notes that a node cannot be decoded, whatever is in it.
func (d *decoder) wrongType(key string, n ast.Node, fix string) {
	problem := "has no value"
	if n.Type() != ast.NullType {
		problem = "is of the type " + n.Type().YAMLName()
	}
	d.fault(key, problem, fix)
}

func (d *decoder) names(key string, n ast.Node, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	found := d.each(key, n, func(full, name string, value ast.Node) {
		if !text.IsWord(name) || strings.Contains(name, ".") {
			d.fault(full, "is no name", "use letters, digits, - and _, at most 64")
		}
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(full, value, element)
		v.SetMapIndex(reflect.ValueOf(name), element)
	})
	if found == 0 {
		d.fault(key, "is empty", "name at least one")
	}
}

func (d *decoder) list(key string, n ast.Node, v reflect.Value) {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		d.wrongType(key, n, "write a list, each entry after a dash")
		return
	case len(list.Values) == 0:
		d.fault(key, "is empty", "add an entry, or remove the key")
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
	for i, value := range list.Values {
		full := fmt.Sprintf("%s[%d]", key, i)
		d.lines[full] = start(value)
		d.decode(full, value, v.Index(i))
	}
}

func (d *decoder) mapping(key string, n ast.Node, v reflect.Value) {
	_, isMapping := n.(*ast.MappingNode)
	_, isSecret := v.Addr().Interface().(reference)
	if isSecret && !isMapping {
		d.fault(key, "a secret never stands in this file", writeRef)
		return
	}
	kind, fields := kindIn(n), fieldsOf(v)
	var keys []string
	for _, f := range fields {
		if f.isOf(kind) || kind == "" {
			keys = append(keys, f.key)
		}
	}
	found := d.each(key, n, func(full, name string, value ast.Node) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == name })
		switch {
		case i < 0 && isSecret: // the name may be the secret
			d.fault(key, "has a key that there is not", writeRef)
		case i < 0:
			d.fault(full, "there is no such key", suggest(name, keys))
			d.meant[below(key, typo.Nearest(name, keys))] = true
		case !slices.Contains(keys, name):
			d.fault(full, fmt.Sprintf("is a key of %s, and this broker is of the kind %s", typo.AnyOf(fields[i].kinds), kind), "use "+typo.AnyOf(keys))
		default:
			d.decode(full, value, fields[i].value)
			fields[i].check(d, full)
		}
	})
	if found >= 0 {
		d.complete(key, kind, fields)
	}
}

// complete sets the defaults of keys that are not there, and notes those that must be.
func (d *decoder) complete(key, kind string, fields []field) {
	for _, f := range fields {
		full, required := below(key, f.key), f.tag.Get("required")
		switch {
		case d.lines[full] != nil || d.meant[full] || !f.isOf(kind):
		case required == "unless service" && d.lines["service"] != nil:
		case required != "":
			d.fault(full, "is required", "add it")
		case f.tag.Get("default") != "":
			if err := set(f.value, f.tag.Get("default")); err != nil {
				panic("the default of " + full + " is wrong: " + err.Error())
			}
		case f.value.Kind() == reflect.Struct:
			d.complete(full, "", fieldsOf(f.value))
		}
	}
}

func (d *decoder) scalar(key string, n ast.Node, v reflect.Value) {
	word, ok := scalar(n)
	_, isText := n.(*ast.StringNode)
	_, isBlock := n.(*ast.LiteralNode)
	switch {
	case !ok:
		d.wrongType(key, n, "write a single value")
	case v.Type() == reflect.TypeFor[string]() && !isText && !isBlock:
		d.wrongType(key, n, "put it into quotes")
	case carriesPassword(word):
		d.fault(key, "has a password in it, or an @ that must be %40", "a secret never stands in this file: write it under password")
	case !text.IsLine(word, maxText):
		d.fault(key, "is too long, or has characters that cannot be seen", fmt.Sprintf("use at most %d bytes on one line", maxText))
	default:
		if err := set(v, word); err != nil {
			d.fault(key, "is no "+err.Error(), "")
		}
	}
}

// form is the error of a value that cannot be read: what it is not, and how such a
// value is written. It never has the value in it.
type form string

func (f form) Error() string { return string(f) }

// set parses a single value.
func set(v reflect.Value, word string) error {
	switch to := v.Addr().Interface().(type) {
	case *time.Duration:
		return parseDuration(word, to)
	case encoding.TextUnmarshaler:
		return to.UnmarshalText([]byte(word))
	case *string:
		if word == "" {
			return form("text: write one, or remove the key")
		}
		*to = word
	case *bool:
		if word != "true" && word != "false" {
			return form("yes or no: use true or false")
		}
		*to = word == "true"
	case *int:
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return form("number: use a whole one from 1")
		}
		*to = n
	default:
		panic("a configuration has no " + v.Type().String())
	}
	return nil
}

// field is a key that a mapping may have.
type field struct {
	key   string
	kinds []string // of brokers that have it; empty for all
	tag   reflect.StructTag
	value reflect.Value
}

func (f field) isOf(kind string) bool { return len(f.kinds) == 0 || slices.Contains(f.kinds, kind) }

func fieldsOf(v reflect.Value) []field {
	var all []field
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			all = append(all, fieldsOf(v.Field(i))...)
		} else if key := f.Tag.Get("yaml"); key != "" {
			all = append(all, field{key, strings.Fields(f.Tag.Get("kinds")), f.Tag, v.Field(i)})
		}
	}
	return all
}

// check demands one of the words of the field, where it has such.
func (f field) check(d *decoder, key string) {
	words := strings.Fields(f.tag.Get("one"))
	if word, _ := f.value.Interface().(string); len(words) > 0 && word != "" && !slices.Contains(words, word) {
		d.fault(key, "there is no "+quoted(word), suggest(word, words))
	}
}

// kindIn is the kind of a broker, if it has a good one.
func kindIn(n ast.Node) string {
	m, _ := n.(*ast.MappingNode)
	for i := 0; m != nil && i < len(m.Values); i++ {
		if word, _ := scalar(m.Values[i].Value); m.Values[i].Key.GetToken().Value == "kind" && slices.Contains(kinds, word) {
			return word
		}
	}
	return ""
}
