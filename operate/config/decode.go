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
type decoder struct {
	file   string
	lines  map[string]place // of the keys that there are
	meant  map[string]bool  // keys that others were taken for
	faults []*Fault
}

// document decodes the whole file.
func (d *decoder) document(root ast.Node, c *Config) {
	if _, ok := pairs(root); !ok {
		d.fault("", start(root), "the file "+kindOf(root), "begin with brokers, topics and store")
		return
	}
	d.decode("", root, reflect.ValueOf(c).Elem())
}

// decode puts a node into a value of any type that a configuration has.
func (d *decoder) decode(key string, n ast.Node, v reflect.Value) {
	found := len(d.faults)
	d.value(key, n, v)
	if s, ok := v.Addr().Interface().(standing); ok && len(d.faults) == found {
		s.stands(d, origin{d.file, key, d.lines[key]})
	}
}

// standing is a value that is read later, and needs its place for errors.
type standing interface{ stands(*decoder, origin) }

func (d *decoder) value(key string, n ast.Node, v reflect.Value) {
	switch v.Addr().Interface().(type) {
	case *time.Duration, encoding.TextUnmarshaler:
		d.scalar(key, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(key, n, v.Elem())
	case reflect.Struct:
		d.mapping(key, n, v)
	case reflect.Map:
		d.names(key, n, v)
	case reflect.Slice:
		d.list(key, n, v)
	default:
		d.scalar(key, n, v)
	}
}

// each calls take for the keys of a mapping, and notes those that are there twice.
// It returns how many there are; -1 if n is no mapping.
func (d *decoder) each(key string, n ast.Node, take func(key, name string, value ast.Node)) int {
	values, ok := pairs(n)
	if !ok {
		d.fault(key, start(n), kindOf(n), "write keys and values below it")
		return -1
	}
	for _, pair := range values {
		name, at := pair.Key.GetToken().Value, placeOf(pair.Key.GetToken())
		full := strings.TrimPrefix(key+"."+text.Line(name, text.MaxWord), ".")
		if first, twice := d.lines[full]; twice {
			d.fault(full, at, fmt.Sprintf("is there twice, first in line %d", first.line), "remove one")
			continue
		}
		d.lines[full] = at
		take(full, name, pair.Value)
	}
	return len(values)
}

func (d *decoder) names(key string, n ast.Node, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	found := d.each(key, n, func(full, name string, value ast.Node) {
		if !text.IsWord(name) || strings.Contains(name, ".") {
			d.wrong(full, "is no name", "use letters, digits, - and _, at most 64")
		}
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(full, value, element)
		v.SetMapIndex(reflect.ValueOf(name), element)
	})
	if found == 0 {
		d.fault(key, start(n), "is empty", "name at least one")
	}
}

func (d *decoder) list(key string, n ast.Node, v reflect.Value) {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		d.fault(key, start(n), kindOf(n), "write a list, each entry after a dash")
		return
	case len(list.Values) == 0:
		d.fault(key, start(n), "is empty", "add an entry, or remove the key")
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
	for i, value := range list.Values {
		full := fmt.Sprintf("%s[%d]", key, i)
		d.lines[full] = start(value)
		d.decode(full, value, v.Index(i))
	}
}

func (d *decoder) mapping(key string, n ast.Node, v reflect.Value) {
	_, isSecret := v.Addr().Interface().(standing)
	if isSecret && !isMapping(n) {
		d.fault(key, start(n), "a secret never stands in this file", writeRef)
		return
	}
	kind, fields := kindIn(n), fieldsOf(v)
	found := d.each(key, n, func(full, name string, value ast.Node) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		switch {
		case i < 0 && isSecret: // the name may be the secret
			d.fault(key, d.lines[full], "has a key that there is not", writeRef)
		case i < 0:
			names := namesOf(fields, kind)
			d.wrong(full, "there is no such key", suggest(name, names))
			d.meant[strings.TrimPrefix(key+"."+typo.Nearest(name, names), ".")] = true
		case !fields[i].isOf(kind):
			d.wrong(full, fmt.Sprintf("is a key of %s, and this broker is of the kind %s", typo.AnyOf(fields[i].kinds), kind), "use "+typo.AnyOf(namesOf(fields, kind)))
		default:
			d.decode(full, value, fields[i].value)
			d.oneOf(full, fields[i], value)
		}
	})
	if found >= 0 {
		d.complete(key, kind, fields)
	}
}

// complete sets the defaults of keys that are not there, and notes those that must be.
func (d *decoder) complete(key, kind string, fields []field) {
	for _, f := range fields {
		full := strings.TrimPrefix(key+"."+f.name, ".")
		_, found := d.lines[full]
		switch {
		case found || d.meant[full] || len(f.kinds) > 0 && !slices.Contains(f.kinds, kind):
		case f.tag.Get("required") == "unless service" && d.lines["service"] != place{}:
		case f.tag.Get("required") != "":
			d.wrong(full, "is required", "add it")
		case f.tag.Get("default") != "":
			if err := set(f.value, f.tag.Get("default")); err != nil {
				panic("the default of " + full + " is wrong: " + err.Error())
			}
		case f.value.Kind() == reflect.Struct:
			if _, isScalar := f.value.Addr().Interface().(encoding.TextUnmarshaler); !isScalar {
				d.complete(full, "", fieldsOf(f.value))
			}
		}
	}
}

func (d *decoder) scalar(key string, n ast.Node, v reflect.Value) {
	word, ok := scalar(n)
	if !ok {
		d.fault(key, start(n), kindOf(n), "write a single value")
		return
	}
	_, isText := n.(*ast.StringNode)
	_, isBlock := n.(*ast.LiteralNode)
	switch {
	case v.Type() == reflect.TypeFor[string]() && !isText && !isBlock:
		d.fault(key, start(n), kindOf(n), "put it into quotes")
	case carriesPassword(word):
		d.fault(key, start(n), "has a password in it, or an @ that must be %40", "a secret never stands in this file: write it under password")
	case !text.IsLine(word, maxText):
		d.fault(key, start(n), "is too long, or has characters that cannot be seen", fmt.Sprintf("use at most %d bytes on one line", maxText))
	default:
		if err := set(v, word); err != nil {
			d.fault(key, start(n), "is no "+err.Error(), "")
		}
	}
}

// oneOf demands one of the words of a field's tag.
func (d *decoder) oneOf(key string, f field, n ast.Node) {
	words := strings.Fields(f.tag.Get("one"))
	if word, ok := scalar(n); ok && len(words) > 0 && !slices.Contains(words, word) {
		d.fault(key, start(n), "there is no "+quoted(word), suggest(word, words))
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
	name  string
	kinds []string // empty for all
	tag   reflect.StructTag
	value reflect.Value
}

func (f field) isOf(kind string) bool {
	return len(f.kinds) == 0 || kind == "" || slices.Contains(f.kinds, kind)
}

func fieldsOf(v reflect.Value) []field {
	var all []field
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			all = append(all, fieldsOf(v.Field(i))...)
		} else if name := f.Tag.Get("yaml"); name != "" {
			all = append(all, field{name, strings.Fields(f.Tag.Get("kinds")), f.Tag, v.Field(i)})
		}
	}
	return all
}

// namesOf returns the keys that there are for a kind of brokers.
func namesOf(fields []field, kind string) []string {
	var names []string
	for _, f := range fields {
		if f.isOf(kind) {
			names = append(names, f.name)
		}
	}
	return names
}

// kindIn is the kind of a broker, if it has a good one.
func kindIn(n ast.Node) string {
	values, _ := pairs(n)
	for _, pair := range values {
		if word, _ := scalar(pair.Value); pair.Key.GetToken().Value == "kind" && slices.Contains(kinds, word) {
			return word
		}
	}
	return ""
}

func isMapping(n ast.Node) bool {
	_, ok := pairs(n)
	return ok
}
