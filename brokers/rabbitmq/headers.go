package rabbitmq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// The types of headers that are not text, in brokers.Header.Type. Numbers are
// decimal, a timestamp is in seconds since 1970, bytes are themselves, and
// tables and arrays are JSON in which every value is a pair of type and value.
const (
	typeBool      = "bool"
	typeInt8      = "int8"
	typeUint8     = "uint8"
	typeInt16     = "int16"
	typeUint16    = "uint16"
	typeInt32     = "int32"
	typeUint32    = "uint32"
	typeInt64     = "int64"
	typeFloat32   = "float32"
	typeFloat64   = "float64"
	typeDecimal   = "decimal" // value and scale: 1234e-2
	typeTimestamp = "timestamp"
	typeBytes     = "bytes"
	typeVoid      = "void"
	typeTable     = "table"
	typeArray     = "array"
	typeRaw       = "raw" // within JSON: text that is not UTF-8, in base64

	// typeProperty says that the header is a property of the message, such as
	// content-type.
	typeProperty = "property"
)

// repeated is the header that lists the names which occurred more than once:
// an AMQP table has each name once, so the values of such a name are an array.
const repeated = "redrive-repeated"

// toTable turns headers into a table. A value that does not fit its type
// travels as text.
func toTable(h brokers.Headers) amqp.Table {
	table := make(amqp.Table, len(h))
	several := make(map[string]bool)
	for _, header := range h {
		value := toField(header)
		old, again := table[header.Name]
		switch {
		case !again:
			table[header.Name] = value
		case several[header.Name]:
			table[header.Name] = append(old.([]any), value)
		default:
			table[header.Name] = []any{old, value}
			several[header.Name] = true
		}
	}
	if len(several) > 0 {
		var names []any
		for _, name := range slices.Sorted(maps.Keys(several)) {
			names = append(names, name)
		}
		table[repeated] = names
	}
	return table
}

// fromTable undoes toTable. Names come sorted, as a table has no order.
func fromTable(table amqp.Table) brokers.Headers {
	if len(table) == 0 {
		return nil
	}
	names, _ := table[repeated].([]any)
	several := make(map[string]bool, len(names))
	for _, name := range names {
		if name, ok := name.(string); ok {
			several[name] = true
		}
	}
	h := make(brokers.Headers, 0, len(table))
	for _, name := range slices.Sorted(maps.Keys(table)) {
		values, isArray := table[name].([]any)
		switch {
		case name == repeated:
		case isArray && len(values) > 1 && several[name]:
			for _, value := range values {
				h = append(h, fromField(name, value))
			}
		default:
			h = append(h, fromField(name, table[name]))
		}
	}
	return h
}

// tableSize is what a table takes on the wire, without its own length.
func tableSize(t amqp.Table) (size int) {
	for name, field := range t {
		size += 1 + len(name) + fieldSize(field)
	}
	return size
}

// fieldSize is what a value takes with its type.
func fieldSize(field any) int {
	switch v := field.(type) {
	case nil:
		return 1
	case bool, int8, uint8:
		return 2
	case int16, uint16:
		return 3
	case int32, uint32, float32:
		return 5
	case amqp.Decimal:
		return 6
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Table:
		return 5 + tableSize(v)
	case []any:
		size := 5
		for _, field := range v {
			size += fieldSize(field)
		}
		return size
	}
	return 9 // int64, float64, time.Time
}

func fromField(name string, field any) brokers.Header {
	typ, value := describe(field)
	return brokers.Header{Name: name, Value: value, Type: typ}
}

// describe spells a field of a table.
func describe(field any) (typ, value string) {
	switch v := field.(type) {
	case nil:
		return typeVoid, ""
	case string:
		return "", v
	case []byte:
		return typeBytes, string(v)
	case bool:
		return typeBool, strconv.FormatBool(v)
	case int8:
		return typeInt8, strconv.FormatInt(int64(v), 10)
	case uint8:
		return typeUint8, strconv.FormatUint(uint64(v), 10)
	case int16:
		return typeInt16, strconv.FormatInt(int64(v), 10)
	case uint16:
		return typeUint16, strconv.FormatUint(uint64(v), 10)
	case int32:
		return typeInt32, strconv.FormatInt(int64(v), 10)
	case uint32:
		return typeUint32, strconv.FormatUint(uint64(v), 10)
	case int64:
		return typeInt64, strconv.FormatInt(v, 10)
	case float32:
		return typeFloat32, strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return typeFloat64, strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		return typeDecimal, fmt.Sprintf("%de-%d", v.Value, v.Scale)
	case time.Time:
		return typeTimestamp, strconv.FormatInt(v.Unix(), 10)
	case amqp.Table:
		return typeTable, encode(nestedTable(v))
	case []any:
		return typeArray, encode(nestedArray(v))
	}
	return "", fmt.Sprint(field)
}

// toField is the value that header stands for, or its text where that cannot
// be read.
func toField(header brokers.Header) any {
	if header.Type == "" {
		return header.Value
	}
	if field, ok := read(header.Type, header.Value); ok {
		return field
	}
	return header.Value
}

func read(typ, value string) (any, bool) {
	switch typ {
	case "":
		return value, true
	case typeVoid:
		return nil, true
	case typeBytes:
		return []byte(value), true
	case typeBool:
		v, err := strconv.ParseBool(value)
		return v, err == nil
	case typeInt8:
		v, err := strconv.ParseInt(value, 10, 8)
		return int8(v), err == nil
	case typeUint8:
		v, err := strconv.ParseUint(value, 10, 8)
		return uint8(v), err == nil
	case typeInt16:
		v, err := strconv.ParseInt(value, 10, 16)
		return int16(v), err == nil
	case typeUint16:
		v, err := strconv.ParseUint(value, 10, 16)
		return uint16(v), err == nil
	case typeInt32:
		v, err := strconv.ParseInt(value, 10, 32)
		return int32(v), err == nil
	case typeUint32:
		v, err := strconv.ParseUint(value, 10, 32)
		return uint32(v), err == nil
	case typeInt64:
		v, err := strconv.ParseInt(value, 10, 64)
		return v, err == nil
	case typeFloat32:
		v, err := strconv.ParseFloat(value, 32)
		return float32(v), err == nil
	case typeFloat64:
		v, err := strconv.ParseFloat(value, 64)
		return v, err == nil
	case typeDecimal:
		return readDecimal(value)
	case typeTimestamp:
		v, err := strconv.ParseInt(value, 10, 64)
		return time.Unix(v, 0), err == nil
	case typeTable, typeArray:
		return decode(typ, value)
	}
	return nil, false
}

func readDecimal(value string) (any, bool) {
	digits, scale, ok := strings.Cut(value, "e-")
	v, err := strconv.ParseInt(digits, 10, 32)
	s, err2 := strconv.ParseUint(scale, 10, 8)
	return amqp.Decimal{Scale: uint8(s), Value: int32(v)}, ok && err == nil && err2 == nil
}

// A nested value is [type, value], where the value of a table is an object of
// such pairs and that of an array a list of them.

func nested(field any) []any {
	switch v := field.(type) {
	case amqp.Table:
		return []any{typeTable, nestedTable(v)}
	case []any:
		return []any{typeArray, nestedArray(v)}
	}
	typ, value := describe(field)
	switch {
	case typ == typeBytes:
		value = base64.StdEncoding.EncodeToString([]byte(value))
	case typ == "" && !utf8.ValidString(value):
		typ, value = typeRaw, base64.StdEncoding.EncodeToString([]byte(value))
	}
	return []any{typ, value}
}

func nestedTable(t amqp.Table) map[string]any {
	out := make(map[string]any, len(t))
	for name, field := range t {
		out[quoteName(name)] = nested(field)
	}
	return out
}

func nestedArray(fields []any) []any {
	out := make([]any, len(fields))
	for i, field := range fields {
		out[i] = nested(field)
	}
	return out
}

// nameMark begins the names within JSON that are in base64 because they are
// not UTF-8, or because they begin with the mark.
const nameMark = "base64:"

func quoteName(name string) string {
	if utf8.ValidString(name) && !strings.HasPrefix(name, nameMark) {
		return name
	}
	return nameMark + base64.StdEncoding.EncodeToString([]byte(name))
}

func unquoteName(name string) (string, bool) {
	coded, ok := strings.CutPrefix(name, nameMark)
	if !ok {
		return name, len(name) <= longestName
	}
	raw, err := base64.StdEncoding.DecodeString(coded)
	return string(raw), err == nil && len(raw) <= longestName
}

func encode(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps, lists and strings can always be encoded
	}
	return string(out)
}

// deepest is how far tables and arrays may be nested.
const deepest = 32

func decode(typ, value string) (any, bool) {
	return decodeNested(typ, json.RawMessage(value), deepest)
}

func decodeNested(typ string, raw json.RawMessage, depth int) (any, bool) {
	if depth == 0 {
		return nil, false
	}
	switch typ {
	case typeTable:
		var pairs map[string][]json.RawMessage
		if json.Unmarshal(raw, &pairs) != nil {
			return nil, false
		}
		out := make(amqp.Table, len(pairs))
		for name, pair := range pairs {
			name, ok := unquoteName(name)
			field, ok2 := decodePair(pair, depth)
			if !ok || !ok2 {
				return nil, false
			}
			out[name] = field
		}
		return out, true
	case typeArray:
		var pairs [][]json.RawMessage
		if json.Unmarshal(raw, &pairs) != nil {
			return nil, false
		}
		out := make([]any, len(pairs))
		for i, pair := range pairs {
			field, ok := decodePair(pair, depth)
			if !ok {
				return nil, false
			}
			out[i] = field
		}
		return out, true
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		return nil, false
	}
	if typ != typeBytes && typ != typeRaw {
		return read(typ, value)
	}
	bytes, err := base64.StdEncoding.DecodeString(value)
	if typ == typeRaw {
		return string(bytes), err == nil
	}
	return bytes, err == nil
}

func decodePair(pair []json.RawMessage, depth int) (any, bool) {
	var typ string
	if len(pair) != 2 || json.Unmarshal(pair[0], &typ) != nil {
		return nil, false
	}
	return decodeNested(typ, pair[1], depth-1)
}
