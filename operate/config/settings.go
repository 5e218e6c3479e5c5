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
			all = append(all, Setting{key, value, c.lines[key].line})
		}
	})
	return all
}

// CheckFiles reads every secret and every other file that the configuration names.
// The error joins every *[Fault].
func (c *Config) CheckFiles() error {
	var faults []*Fault
	walk("", reflect.ValueOf(c).Elem(), func(_ string, v reflect.Value) {
		var err error
		switch v := v.Interface().(type) {
		case Secret:
			_, err = v.Read()
		case Key:
			_, err = v.Read()
		case File:
			if v.name != "" {
				_, err = v.Read()
			}
		}
		if f, ok := errors.AsType[*Fault](err); ok {
			faults = append(faults, f)
		}
	})
	return (&decoder{file: c.file, faults: faults}).err()
}

// walk visits every value that is no collection of others.
func walk(key string, v reflect.Value, visit func(key string, v reflect.Value)) {
	switch v.Interface().(type) {
	case Secret, Key, File, []string:
		visit(key, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(key, v.Elem(), visit)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v) {
			walk(strings.TrimPrefix(key+"."+f.name, "."), f.value, visit)
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
		return durationText(value)
	}
	if v.IsZero() {
		return ""
	}
	return fmt.Sprint(v)
}
