package store

import (
	"reflect"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

func FuzzMessage(f *testing.F) {
	f.Add("id", "key", "name", "value", "", int64(1))
	f.Add("\x00\xff", "base64:", "base64:AAAA", "\u2028<&>", "\xff", int64(-1))
	f.Fuzz(func(t *testing.T, id, key, name, value, typ string, at int64) {
		m := brokers.Message{ID: id, Topic: key, Key: key, Headers: brokers.Headers{{Name: name, Value: value, Type: typ}, {Name: value}}, PublishedAt: sqldb.TimeOf(at)}
		b, err := save(m)
		if err != nil {
			t.Fatal(err)
		}
		m.PublishedAt = sqldb.TimeOf(sqldb.Millis(m.PublishedAt))
		if got, err := load(b, nil); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%q becomes %+v, %v, want %+v", b, got, err, m)
		}
		if ok, err := (HeaderFilter{Name: name, Value: &value}).matches(b); err != nil || !ok && name != "" {
			t.Errorf("the header %q is not found in %q: %v", name, b, err)
		}
	})
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"id":"base64:_","headers":[[],["a"],["a","b","c","d"]]}`))
	f.Add([]byte(`{"headers":null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := load(b, nil); err == nil {
			if _, err := save(m); err != nil {
				t.Errorf("%q is read as %+v, and cannot be saved: %v", b, m, err)
			}
		}
	})
}

func FuzzWords(f *testing.F) {
	for _, seed := range []string{"1.2", "-1.0", "9223372036854775807.9223372036854775807", "1.2.abc", "1e3.4", "٣.4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := keyOf(s); err == nil && k.String() != s {
			t.Errorf("keyOf(%q) = %v", s, k)
		}
		if id := letterOf(s); id < 0 {
			t.Errorf("letterOf(%q) = %d", s, id)
		}
	})
}
