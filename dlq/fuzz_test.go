package dlq

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// headersOf reads "name: value" per record; records end in a form feed, which
// no safe value contains.
func headersOf(text string) brokers.Headers {
	var h brokers.Headers
	for record := range strings.SplitSeq(text, "\f") {
		name, value, _ := strings.Cut(record, ": ")
		h = append(h, brokers.Header{Name: name, Value: value})
	}
	return h
}

func FuzzDecode(f *testing.F) {
	var seed []string
	for _, h := range full().Encode(0).Headers {
		seed = append(seed, h.Name+": "+h.Value)
	}
	f.Add(strings.Join(seed, "\f"), 0)
	f.Add("redrive-dlq-v: 1\fredrive-error-message: \x1b[31m\xff\fredrive-dlq-attempt: -1\fredrive-dlq-history: 1,,,,;;", 100)
	f.Add("redrive-dlq-v: 2\fredrive-dlq-origin-: x\fredrive-dlq-origin-a: b\fredrive-dlq-truncated: ,a,,b c", 1)
	f.Add("tenant: a", 0)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		m := brokers.Message{ID: "x", Topic: "orders.dead", Headers: headersOf(text)}
		e, err := Decode(m)
		if err != nil {
			if !reflect.DeepEqual(e.Message, m) {
				t.Fatalf("no dead letter, yet the message changed: %+v", e.Message)
			}
			return
		}
		for _, text := range []string{e.Reason, e.Message.Topic, e.ErrorType, e.ErrorCode, e.ErrorText, e.Fingerprint, e.Rule, e.Group, e.DeadBy, e.Meta.IdempotencyKey} {
			checkSafe(t, text, maxError, "")
		}
		checkSafe(t, e.Stack, maxStack, "\n\t")
		again, err := Decode(e.Encode(unlimited))
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("encoded again: %v\n got %+v\nwant %+v", err, again, e)
		}
		limit &= 1<<16 - 1
		_, story := wire.Partition(e.Encode(limit).Headers)
		if size := sizeOf(story); limit >= 4<<10 && size > limit {
			t.Fatalf("%d bytes, the limit is %d", size, limit)
		}
	})
}

func checkSafe(t *testing.T, s string, max int, allowed string) {
	t.Helper()
	if len(s) > max || !utf8.ValidString(s) {
		t.Fatalf("unsafe text %q", s)
	}
	for _, r := range s {
		if unicode.IsControl(r) && !strings.ContainsRune(allowed, r) {
			t.Fatalf("control character %q in %q", r, s)
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, seed := range []string{
		"dial tcp 127.0.0.1:5432: connect: connection refused", `pq: duplicate key "orders_pkey" (SQLSTATE 23505)`,
		"order 550e8400-e29b-41d4-a716-446655440000 at Mon, 02 Jan 2006", `{"a": "it's", 'b`, "[::1]:80 <bob@example.com>",
		"status 503", "ch_3MmlLrLkdIwHu7ix0snN0B15 [redacted] 0xff -5", "\xff\x00…“8”",
	} {
		f.Add(seed, seed, uint64(8471), uint64(9))
	}
	f.Fuzz(func(t *testing.T, before, after string, a, b uint64) {
		if len(before)+len(after) > 1<<16 {
			return
		}
		with := func(n uint64) string {
			return before + " order " + strconv.FormatUint(n, 10) + " " + after
		}
		first := fingerprint(before, after, with(a))
		if again := fingerprint(before, after, with(a)); again != first {
			t.Fatalf("%q has the fingerprints %s and %s", with(a), first, again)
		}
		if other := fingerprint(before, after, with(b)); other != first {
			t.Fatalf("another number, another group:\n%q\n%q", masked(with(a)), masked(with(b)))
		}
	})
}

func FuzzRedact(f *testing.F) {
	for _, seed := range []string{
		"password=x", `{"token": "a\"b"}`, "Authorization: Bearer x", "postgres://a:b@c/d", "a:b@c", "4111 1111 1111 1111",
		"Cookie: a=b", "key=[redacted]", `\"secret\":\"x`, "bearer token abc1234", "eyJhbGciOiJIUzI1NiJ9.a.b", "Basic [redacted]@x:y@", "[redacted]", "://0#:@",
		"mysql -px -p y", "password is a1b2c3", "password%3Dx", "Password: (string) (len=1) \"x\"", "\"password\", value: x", "key=\"a\" value=\"b\"", "api key: A1", "DE89 3704 0044 0532 0130 00", "1234567:Aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "?code=0123456789",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Redact(Redact(text)) // what was redacted may make what is before it a login of a URL
		if again := Redact(got); again != got {
			t.Fatalf("redacting a third time changes\n%q to\n%q", got, again)
		}
		if strings.TrimSpace(text) == "" || strings.ContainsAny(text, " \t\r\n\v\f\"'`\\") {
			return
		}
		if got := Redact("password=" + text + canary + " end"); strings.Contains(got, canary) {
			t.Fatalf("the secret survives in %q", got)
		}
	})
}

func sizeOf(h brokers.Headers) (n int) {
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}
