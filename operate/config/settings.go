package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Setting is one value that is in force.
type Setting struct {
	Key   string // such as "brokers.shop.urls"
	Value string // for people, and without secrets
	Line  int    // in the file; 0 for a default
}

// Settings are all values that are in force, in the order of the documentation.
func (c *Config) Settings() []Setting {
	var all []Setting
	walk("", reflect.ValueOf(c).Elem(), func(key string, v reflect.Value) {
		if value := show(v); value != "" {
			line := 0
			if at := c.lines[key]; at != nil {
				line = at.Line
			}
			all = append(all, Setting{key, value, line})
		}
	})
	return all
}

// CheckFiles reads every secret and every other file that the configuration names.
// The error joins every *[Fault].
func (c *Config) CheckFiles() error {
	d := &decoder{Config: c}
	walk("", reflect.ValueOf(c).Elem(), func(_ string, v reflect.Value) {
		var err error
		switch v := v.Interface().(type) {
		case interface{ Read() (string, error) }:
			_, err = v.Read()
		case interface{ Read() ([]byte, error) }:
			if v != (File{}) {
				_, err = v.Read()
			}
		}
		if f, ok := errors.AsType[*Fault](err); ok {
			d.faults = append(d.faults, f)
		}
	})
	return d.err()
}

// walk visits every value that is no collection of others.
func walk(key string, v reflect.Value, visit func(key string, v reflect.Value)) {
	_, isList := v.Interface().([]string)
	_, isValue := v.Interface().(fmt.Stringer)
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return
	case v.Kind() == reflect.Pointer:
		walk(key, v.Elem(), visit)
		return
	case isList || isValue:
		visit(key, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range fieldsOf(v) {
			walk(below(key, f.key), f.value, visit)
		}
	case reflect.Map:
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			walk(key+"."+name.String(), v.MapIndex(name), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(fmt.Sprintf("%s[%d]", key, i), v.Index(i), visit)
		}
	default:
		visit(key, v)
	}
}

// show is a value as the file would have it; empty for one that is not set.
func show(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case []string:
		return strings.Join(value, ", ")
	case time.Duration:
		return Wait(value).String()
	}
	if v.IsZero() {
		return ""
	}
	return fmt.Sprint(v)
}
