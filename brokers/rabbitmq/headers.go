package rabbitmq

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
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

// The types of brokers.Header.Type that the code names: see texts for the others.
// Numbers are decimal, a timestamp is in seconds since 1970, bytes are themselves,
// and tables and arrays are JSON in which every value is a pair of type and value.
const (
	typeInt64 = "int64"
	typeBytes = "bytes"
	typeTable = "table"
	typeArray = "array"
	typeRaw   = "raw" // within JSON: text that is not UTF-8, in base64

	// typeProperty says that the header is a property of the message, such as
	// content-type.
	typeProperty = "property"
)

// texts reads the text of a value that is no table and no array, by its type.
var texts = map[string]func(text string) (any, error){
	"":          func(text string) (any, error) { return text, nil },
	"void":      func(string) (any, error) { return nil, nil },
	typeBytes:   func(text string) (any, error) { return []byte(text), nil },
	"bool":      func(text string) (any, error) { return strconv.ParseBool(text) },
	"int8":      signed[int8],
	"int16":     signed[int16],
	"int32":     signed[int32],
	typeInt64:   signed[int64],
	"uint8":     unsigned[uint8],
	"uint16":    unsigned[uint16],
	"uint32":    unsigned[uint32],
	"float64":   func(text string) (any, error) { return strconv.ParseFloat(text, 64) },
	"float32":   func(text string) (any, error) { v, err := strconv.ParseFloat(text, 32); return float32(v), err },
	"timestamp": func(text string) (any, error) { v, err := strconv.ParseInt(text, 10, 64); return time.Unix(v, 0), err },
	"decimal": func(text string) (any, error) { // value and scale: 1234e-2
		digits, scale, _ := strings.Cut(text, "e-") // no scale is no number
		v, err := strconv.ParseInt(digits, 10, 32)
		s, err2 := strconv.ParseUint(scale, 10, 8)
		return amqp.Decimal{Scale: uint8(s), Value: int32(v)}, cmp.Or(err, err2)
	},
}

func signed[T int8 | int16 | int32 | int64](text string) (any, error) {
	v, err := strconv.ParseInt(text, 10, 64)
	if int64(T(v)) != v {
		err = strconv.ErrRange
	}
	return T(v), err
}

func unsigned[T uint8 | uint16 | uint32](text string) (any, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if uint64(T(v)) != v {
		err = strconv.ErrRange
	}
	return T(v), err
}

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
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case time.Time:
		return 9
	case amqp.Table:
		return 5 + tableSize(v)
	case []any:
		size := 5
		for _, field := range v {
			size += fieldSize(field)
		}
		return size
	}
	return 1 + binary.Size(field) // numbers, and a decimal with its scale
}

func fromField(name string, field any) brokers.Header {
	typ, value := describe(field)
	return brokers.Header{Name: name, Value: value, Type: typ}
}

// describe spells a field of a table.
func describe(field any) (typ, text string) {
	switch v := field.(type) {
	case nil:
		return "void", ""
	case string:
		return "", v
	case []byte:
		return typeBytes, string(v)
	case bool, int8, uint8, int16, uint16, int32, uint32, int64, float32, float64:
		return fmt.Sprintf("%T", v), fmt.Sprint(v)
	case amqp.Decimal:
		return "decimal", fmt.Sprintf("%de-%d", v.Value, v.Scale)
	case time.Time:
		return "timestamp", strconv.FormatInt(v.Unix(), 10)
	case amqp.Table, []any:
		nested := pair(v)
		text, _ := json.Marshal(nested[1]) // maps, lists and strings can always be encoded
		return nested[0].(string), string(text)
	}
	return "", fmt.Sprint(field)
}

// toField is the value that header stands for, or its text where that cannot
// be read.
func toField(header brokers.Header) any {
	if field, err := read(header.Type, header.Value); err == nil {
		return field
	}
	return header.Value
}

func read(typ, text string) (any, error) {
	if typ == typeTable || typ == typeArray {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return nil, err
		}
		return unpair([]any{typ, value}, deepestField)
	}
	if parse := texts[typ]; parse != nil {
		return parse(text)
	}
	return nil, errType
}

var errType = errors.New("it has no type of AMQP")

// pair is the type of a field and its value within JSON, where the value of a table
// is an object of such pairs and that of an array a list of them.
func pair(field any) []any {
	switch v := field.(type) {
	case amqp.Table:
		pairs := make(map[string]any, len(v))
		for name, field := range v {
			pairs[quoteName(name)] = pair(field)
		}
		return []any{typeTable, pairs}
	case []any:
		pairs := make([]any, len(v))
		for i, field := range v {
			pairs[i] = pair(field)
		}
		return []any{typeArray, pairs}
	}
	typ, text := describe(field)
	if typ == "" && !utf8.ValidString(text) {
		typ = typeRaw
	}
	if typ == typeBytes || typ == typeRaw {
		text = base64.StdEncoding.EncodeToString([]byte(text))
	}
	return []any{typ, text}
}

// unpair undoes pair.
func unpair(pair any, depth int) (field any, err error) {
	parts, _ := pair.([]any)
	if len(parts) != 2 || depth == 0 {
		return nil, errType
	}
	typ, isType := parts[0].(string)
	pairs, isTable := parts[1].(map[string]any)
	list, isArray := parts[1].([]any)
	text, isText := parts[1].(string)
	switch {
	case !isType || isTable != (typ == typeTable) || isArray != (typ == typeArray):
		return nil, errType
	case isTable:
		table := make(amqp.Table, len(pairs))
		for name, pair := range pairs {
			name, err2 := unquoteName(name)
			field, err3 := unpair(pair, depth-1)
			table[name], err = field, cmp.Or(err, err2, err3)
		}
		return table, err
	case isArray:
		array := make([]any, len(list))
		for i, pair := range list {
			field, err2 := unpair(pair, depth-1)
			array[i], err = field, cmp.Or(err, err2)
		}
		return array, err
	case !isText:
		return nil, errType
	case typ != typeBytes && typ != typeRaw:
		return read(typ, text)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if typ == typeRaw {
		return string(raw), err
	}
	return raw, err
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

func unquoteName(name string) (string, error) {
	var err error
	if coded, ok := strings.CutPrefix(name, nameMark); ok {
		var raw []byte
		raw, err = base64.StdEncoding.DecodeString(coded)
		name = string(raw)
	}
	if len(name) > longestName {
		err = errType
	}
	return name, err
}
