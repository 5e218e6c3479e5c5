package rabbitmq

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

func everyType() amqp.Table {
	return amqp.Table{
		"void": nil, "bool": true, "int8": int8(-8), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(60000),
		"int32": int32(-70000), "uint32": uint32(4e9), "int64": int64(math.MinInt64), "float32": float32(0.1),
		"float64": math.SmallestNonzeroFloat64, "decimal": amqp.Decimal{Scale: 2, Value: -1234},
		"time": time.Unix(1790000000, 0), "bytes": []byte{0, 255}, "text": "żółw", "not UTF-8": "\xff\xfe", "empty": "",
		"table": amqp.Table{
			"": "", "base64:x": int64(1), "\xff": []byte{255}, "deep": amqp.Table{"list": []any{nil, "\x80", amqp.Table{}}},
		},
		"list": []any{int64(1), []any{}, "x"}, "no list": []any{},
	}
}

func TestTablesSurvive(t *testing.T) {
	want := everyType()
	if got := toTable(fromTable(want)); !reflect.DeepEqual(got, want) {
		t.Errorf("a table became\n\t%#v,\nwant\n\t%#v", got, want)
	}
	if err := toTable(fromTable(want)).Validate(); err != nil {
		t.Errorf("the library cannot write it: %v", err)
	}
}

func TestRepeatedNames(t *testing.T) {
	want := brokers.Headers{
		{Name: "a", Value: "1"}, {Name: "a", Value: "2", Type: typeInt64}, {Name: "a", Value: ""},
		{Name: "b", Value: `[["","1"],["","2"]]`, Type: typeArray},
		{Name: "c", Value: `[["","1"]]`, Type: typeArray}, {Name: "c", Value: "x"},
	}
	table := toTable(want)
	if got := fromTable(table); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := toTable(fromTable(table)); !reflect.DeepEqual(again, table) {
		t.Errorf("the table became %v, want %v", again, table)
	}
}

// A value that its type does not fit is kept as text, so that nothing is lost.
func TestUnreadableValues(t *testing.T) {
	unreadable := brokers.Headers{
		{Name: "n", Value: "many", Type: typeInt64},
		{Name: "n", Value: "300", Type: "uint8"},
		{Name: "n", Value: "{", Type: typeTable},
		{Name: "n", Value: `{"a":["int64",5]}`, Type: typeTable},
		{Name: "n", Value: `{"a":["int64"]}`, Type: typeTable},
		{Name: "n", Value: `{"base64:?":["","x"]}`, Type: typeTable},
		{Name: "n", Value: "1.5", Type: "decimal"},
		{Name: "n", Value: "x", Type: "of another broker"},
	}
	for _, h := range unreadable {
		if got := toField(h); got != h.Value {
			t.Errorf("%q became %#v, want its text", h, got)
		}
	}
	nested := `["",""]`
	for range 100 {
		nested = `["array",[` + nested + `]]`
	}
	if _, err := read(typeArray, "["+nested+"]"); err == nil {
		t.Error("an array is nested a hundred times, which the broker's frames do not allow")
	}
}

func FuzzHeaders(f *testing.F) {
	for _, h := range fromTable(everyType()) {
		f.Add(h.Name, h.Value, h.Type, "b", "x", "")
	}
	f.Add("a", `{"a":["array",[["table",{}]]]}`, typeTable, "a", "1", typeInt64)
	f.Add("redrive-repeated", `[["","a"]]`, typeArray, "a", `[["","1"],["","2"]]`, typeArray)
	f.Fuzz(func(t *testing.T, name, value, typ, name2, value2, typ2 string) {
		table := toTable(brokers.Headers{{Name: name, Value: value, Type: typ}, {Name: name2, Value: value2, Type: typ2}})
		if err := table.Validate(); err != nil {
			t.Fatalf("the library cannot write %v: %v", table, err)
		}
		if _, forged := table[repeated]; forged && (name == repeated || name2 == repeated) {
			return
		}
		h := fromTable(table)
		if again := fromTable(toTable(h)); !slices.Equal(again, h) {
			t.Errorf("headers became\n\t%q\nand then\n\t%q", h, again)
		}
	})
}

func FuzzNested(f *testing.F) {
	f.Add("name", "text", []byte{0}, int64(1), 0.5, true)
	f.Add("\xff", "\xff", []byte("x"), int64(-1), math.Inf(-1), false)
	f.Fuzz(func(t *testing.T, name, text string, raw []byte, n int64, x float64, yes bool) {
		if len(name) > longestName-8 || math.IsNaN(x) {
			return
		}
		raw = append([]byte{}, bytes.Clone(raw)...)
		inner := amqp.Table{name: text, name + ".raw": raw, name + ".n": n, name + ".list": []any{x, yes, nil, []any{text}}}
		want := amqp.Table{"outer": inner}
		if got := toTable(fromTable(want)); !reflect.DeepEqual(got, want) {
			t.Errorf("a table became\n\t%#v,\nwant\n\t%#v", got, want)
		}
	})
}
