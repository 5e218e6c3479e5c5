package idempotency

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
)

func TestKeyOutsideThePipeline(t *testing.T) {
	long := strings.Repeat("k", 10<<10)
	tests := []struct {
		name    string
		headers brokers.Headers
		id      string
		want    string
	}{
		{"id alone", nil, "order-7", "order-7"},
		{"header", brokers.Headers{{Name: Header, Value: "charge-7"}}, "order-7", "charge-7"},
		{"header in other letters", brokers.Headers{{Name: "idempotency-key", Value: "charge-7"}}, "order-7", "charge-7"},
		{"last header", brokers.Headers{{Name: Header, Value: "a"}, {Name: Header, Value: "b"}}, "order-7", "b"},
		{"empty header", brokers.Headers{{Name: Header, Value: "a"}, {Name: Header}}, "order-7", "a"},
		{"only an empty header", brokers.Headers{{Name: Header}}, "order-7", "order-7"},
		{"other header", brokers.Headers{{Name: "X-Idempotency-Key", Value: "a"}}, "order-7", "order-7"},
		{"other letters than Latin", nil, "заказ-7", "заказ-7"},
		{"200 bytes", nil, long[:200], long[:200]},
		{"201 bytes", nil, long[:201], hash(long[:201])},
		{"10 kB", brokers.Headers{{Name: Header, Value: long}}, "order-7", hash(long)},
		{"nothing", nil, "", ""},
	}
	for _, tt := range tests {
		if got := Key(&brokers.Message{ID: tt.id, Headers: tt.headers}, brokers.Meta{}); got != tt.want {
			t.Errorf("%s: Key = %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestScoped(t *testing.T) {
	type triple struct{ scope, namespace, key string }
	tests := []struct {
		of   triple
		want string
	}{
		{triple{"orders", "", "7"}, "orders:7"},
		{triple{"orders:7", "", "1"}, "orders%3A7:1"},
		{triple{"orders", "", "7:1"}, "orders:7:1"},
		{triple{"orders%3A7", "", "1"}, "orders%253A7:1"},
		{triple{"", "", "7"}, ":7"},
		{triple{"orders", "shop", "7"}, "orders%/shop:7"},
		{triple{"orders", "a:b%/c", "7"}, "orders%/a%3Ab%25/c:7"},
		{triple{"orders%/shop", "", "7"}, "orders%25/shop:7"},
		{triple{"a\nb", "", "7"}, hash("a\nb:7")},
		{triple{strings.Repeat("s", 54), "", strings.Repeat("k", 200)}, strings.Repeat("s", 54) + ":" + strings.Repeat("k", 200)},
		{triple{strings.Repeat("s", 55), "", strings.Repeat("k", 200)}, hash(strings.Repeat("s", 55) + ":" + strings.Repeat("k", 200))},
	}
	for _, tt := range tests {
		if got := scoped(tt.of.scope, tt.of.namespace, tt.of.key); got != tt.want {
			t.Errorf("scoped%q = %q, want %q", tt.of, got, tt.want)
		}
	}
}

// FuzzScoped demands that every key can be stored, and that no two triples of
// scope, namespace and key share one.
func FuzzScoped(f *testing.F) {
	f.Add("orders", "", "7", "orders:7", "", "")
	f.Add("a:", "", "b", "a", "", ":b")
	f.Add("a", "", "\x00", "a", "", "\xff")
	f.Add("%3A", "", "k", ":", "", "k")
	f.Add("", "", hash("a"), "", "", "a")
	f.Add("s", "", strings.Repeat("k", 300), "s", "", hash(strings.Repeat("k", 300)))
	f.Add("a", "b", "c", "a%/b", "", "c")
	f.Add("a", "b", "c", "a", "", "b:c")
	f.Add("a", "b:", "c", "a", "b", ":c")
	f.Add("a", "", "a\r\nX-Admin: 1", "a", "", "a\x7f")
	f.Add("a", "", "a\u0085b", "a", "", "заказ-7")
	f.Add("a", "", hash("a\xff"), "a", "", "a\xff")
	f.Fuzz(func(t *testing.T, scope, namespace, key, otherScope, otherNamespace, otherKey string) {
		a, b := scoped(scope, namespace, safe(key)), scoped(otherScope, otherNamespace, safe(otherKey))
		for _, k := range []string{a, b} {
			if k == "" || len(k) > maxClaim || !utf8.ValidString(k) || !printable(k) {
				t.Errorf("the key %q does not fit a store", k)
			}
		}
		if same := scope == otherScope && namespace == otherNamespace && key == otherKey; (a == b) != same {
			t.Errorf("(%q, %q, %q) has the key %q and (%q, %q, %q) has %q", scope, namespace, key, a, otherScope, otherNamespace, otherKey, b)
		}
	})
}
