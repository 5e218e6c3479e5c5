package foreign

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/goldentest"
)

// Whoever may write to a dead-letter topic may write anything.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", 5000)
	published := time.Unix(1790000000, 0)
	d := &brokers.Delivery{Message: brokers.Message{PublishedAt: published, Headers: brokers.Headers{
		{Name: "kafka_dlt-original-topic", Value: "orders\x1b[2J"},
		{Name: "kafka_dlt-original-consumer-group", Value: long},
		{Name: "kafka_dlt-original-timestamp", Value: "\x7f\xff\xff\xff\xff\xff\xff\xff"},
		{Name: "kafka_dlt-original-partition", Value: "123456789"},
		{Name: "retry_topic-attempts", Value: "\x7f\xff\xff\xff"},
		{Name: "kafka_dlt-exception-fqcn", Value: "a\nb" + long},
		{Name: "kafka_dlt-exception-message", Value: "password=hunter2 \xff\u202e" + strings.Repeat("x ", 5000)},
		{Name: "kafka_dlt-exception-stacktrace", Value: "password=hunter2\n\x07" + strings.Repeat("at x\n", 5000)},
	}}, Carried: &brokers.Meta{Attempt: 3, Class: "poison", RedriveCount: 1 << 40, Send: "no word", IdempotencyKey: "a\nb"}}
	for i := range 40 {
		d.Carried.Origin = append(d.Carried.Origin, brokers.Header{Name: fmt.Sprint("d", i), Value: long, Type: "\x1b"})
	}
	e, format := Decode(d)
	if format != SpringKafka || len(e.Message.Headers) > 0 {
		t.Errorf("format %s with the headers %q", format, e.Message.Headers)
	}
	if e.Message.Topic != "" || e.Group != "" {
		t.Errorf("topic %q, group %q; want none, as cut or escaped they are others", e.Message.Topic, e.Group)
	}
	if e.Message.PublishedAt != published || !e.DeadAt.IsZero() {
		t.Errorf("published at %v, dead at %v; want what the adapter says, %v, and nothing", e.Message.PublishedAt, e.DeadAt, published)
	}
	origin := e.Meta.Origin
	e.Meta.Origin = nil
	if want := (brokers.Meta{Attempt: 10_000, RedriveCount: 10_000}); !reflect.DeepEqual(e.Meta, want) || len(origin) != 16 {
		t.Errorf("%d details of the origin, meta %+v; want 16, %+v", len(origin), e.Meta, want)
	}
	e.Meta.Origin = origin
	d.Message.Headers = append(d.Message.Headers[:0:0], brokers.Header{Name: "MT-Reason", Value: "two words"})
	if e, _ := Decode(d); e.Reason != "" {
		t.Errorf("reason %q, want a word or none", e.Reason)
	}
	if strings.Contains(e.ErrorText+e.Stack, "hunter2") || e.Fingerprint == "" {
		t.Errorf("a secret, or no fingerprint, in %+v", e)
	}
	checkSafe(t, e)
}

// What the table does not know goes back to the consumer as it came, and what is
// not of the peer is not looked at.
func TestOtherHeadersStay(t *testing.T) {
	others := brokers.Headers{
		{Name: "tenant", Value: "a"}, {Name: "tenant", Value: "b"}, {Name: "raw", Value: "\x00\xff", Type: "bytes"},
		{Name: "redrive-dlq-reason", Value: "without the version it is nobody's"}, {Name: "source-arn", Value: "x"}, {Name: "MT-Reason", Value: "fault"},
	}
	h := slices.Insert(slices.Clone(others), 2, brokers.Header{Name: "reason_poisoned", Value: "x"}, brokers.Header{Name: "reason_poisoned", Value: "y"})
	d := &brokers.Delivery{Message: brokers.Message{ID: "a", Topic: "poison", Key: "k", Body: []byte("b"), Headers: h}}
	e, format := Decode(d)
	want := brokers.Message{ID: "a", Key: "k", Body: []byte("b"), Headers: others}
	if format != Watermill || !reflect.DeepEqual(e.Message, want) {
		t.Errorf("%s: message %+v\nwant %+v", format, e.Message, want)
	}
	if e.ErrorText != "y" || e.Reason != "" {
		t.Errorf("error %q, reason %q; want y, the last one, and none", e.ErrorText, e.Reason)
	}
	if len(d.Message.Headers) != len(others)+2 || d.Message.Topic != "poison" {
		t.Error("the delivery is changed")
	}
}

// What came back from a dead-letter topic before says so when it is dead again.
func TestWhatTheMessageCarriesStays(t *testing.T) {
	meta := brokers.Meta{IdempotencyKey: "k", RedriveCount: 2, Send: "letter.1.x"}
	carried := meta
	carried.Attempt, carried.DueAt = 4, time.Unix(1790000000, 0) // of its deliveries from the dead-letter topic
	d := &brokers.Delivery{Carried: &carried, Message: brokers.Message{Headers: brokers.Headers{{Name: "reason_poisoned", Value: "x"}}}}
	if e, _ := Decode(d); !reflect.DeepEqual(e.Meta, meta) {
		t.Errorf("meta %+v, want %+v", e.Meta, meta)
	}
}

func TestForms(t *testing.T) {
	tests := []struct {
		name     string
		form     func(string) string
		in, want string
	}{
		{"int", bigEndian, "\x00\x00\x01\x00", "256"},
		{"long", bigEndian, "\x7f\xff\xff\xff\xff\xff\xff\xff", "9223372036854775807"},
		{"BigInteger", bigEndian, "\x00\x80", "128"},
		{"negative", bigEndian, "\xff\xff\xff\xff", ""},
		{"too long", bigEndian, "\x00\x00\x00\x00\x00\x00\x00\x00\x01", ""},
		{"none", bigEndian, "", ""},
		{"next attempt", bigEndianLessOne, "\x00\x00\x00\x04", "3"},
		{"next attempt of none", bigEndianLessOne, "\x00", "0"},
		{"next attempt, unreadable", bigEndianLessOne, "\xff", ""},
		{"retries", oneMore, "3", "4"},
		{"most retries", oneMore, "99999999999999999999", "2147483648"},
		{"no number", oneMore, "-1", ""},
		{"seconds", seconds, "1790000000", "1790000000000"},
		{"UTC", iso8601, "2026-09-21T14:13:20.1234567Z", "1790000000123"},
		{"with an offset", iso8601, "2026-09-21T16:13:20+02:00", "1790000000000"},
		{"before 1970", iso8601, "1969-09-21T16:13:20Z", ""},
		{"no time", iso8601, "yesterday", ""},
		{"queue of RabbitMQ", lastOfURL, "rabbitmq://broker/shop/orders?temporary=true", "orders"},
		{"escaped", lastOfURL, "rabbitmq://broker/shop/a%2Fb", "a/b"},
		{"host alone", lastOfURL, "rabbitmq://broker", ""},
		{"no URL", lastOfURL, "%", ""},
		{"ARN", lastOfARN, "arn:aws:sqs:eu-central-1:123456789012:orders.fifo", "orders.fifo"},
	}
	for _, tt := range tests {
		if got := tt.form(tt.in); got != tt.want {
			t.Errorf("%s: %q = %q, want %q", tt.name, tt.in, got, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range peers {
		var h strings.Builder
		for _, r := range p.rows {
			fmt.Fprintf(&h, "%s: 3\f", r.name)
		}
		f.Add(h.String(), h.String(), int64(1790000000000))
	}
	f.Add("kafka_dlt-original-timestamp: \x00\x00\x01\xa0\xa0\xa0\xa0\xa0\fx-exception-message: \x1b\xff\u202e\fMT-Reason: a b", "first-death-queue: a\nb\fsource-arn: :\x00", int64(1))
	f.Add("redrive-dlq-v: 1\fredrive-dlq-reason: exhausted\fredrive-id: x\ftenant: a", "topic: orders", int64(0))
	f.Fuzz(func(t *testing.T, headers, origin string, published int64) {
		d := &brokers.Delivery{
			Message: brokers.Message{ID: "x", Topic: "orders.dead", Body: []byte("body"), Headers: listOf(headers)},
			Carried: &brokers.Meta{Origin: listOf(origin)},
		}
		if published >= 0 && published < 1<<47 {
			d.Message.PublishedAt = time.UnixMilli(published).UTC()
		}
		e, format := Decode(d)
		checkSafe(t, e)
		if format == Raw && !reflect.DeepEqual(e.Message.Headers, d.Message.Headers) {
			t.Fatalf("raw, with the headers %q of %q", e.Message.Headers, d.Message.Headers)
		}
		again, err := dlq.Decode(e.Encode(1 << 30))
		e.Message.Headers, _ = wire.Partition(e.Message.Headers) // those of redrive are not passed on
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("%s, encoded: %v\n got %+v\nwant %+v", format, err, again, e)
		}
	})
}

// listOf reads "name: value" per header; they end in a form feed.
func listOf(text string) (h brokers.Headers) {
	for one := range strings.SplitSeq(text, "\f") {
		if name, value, ok := strings.Cut(one, ": "); ok {
			h = append(h, brokers.Header{Name: name, Value: value})
		}
	}
	return h
}

// checkSafe checks every text of the metadata.
func checkSafe(t *testing.T, e dlq.Entry) {
	t.Helper()
	check := func(s string, most int, allowed string) {
		t.Helper()
		unsafe := func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune(allowed, r) }
		if len(s) > most || !utf8.ValidString(s) || strings.ContainsFunc(s, unsafe) {
			t.Fatalf("unsafe text %q", s)
		}
	}
	for _, s := range append(e.Truncated, e.Reason, e.Message.Topic, e.ErrorType, e.ErrorCode, e.Fingerprint, e.Rule, e.Group, e.DeadBy, e.Meta.IdempotencyKey, e.Meta.Send) {
		check(s, 512, "")
	}
	check(e.ErrorText, 2<<10, "")
	check(e.Stack, 4<<10, "\n\t")
	for _, detail := range e.Meta.Origin {
		check(detail.Name, 64, "")
		check(detail.Value, 256, "")
		check(detail.Type, 64, "")
	}
}

// TestPage compares the tables of the page with those of the code.
func TestPage(t *testing.T) {
	tables := map[string]string{}
	for _, p := range peers {
		tables[string(p.format)] = table(p)
	}
	goldentest.Parts(t, "../../docs/how-to/read-other-systems-dead-letters.md", tables)
}

// table has a row for each field, with what tells it.
func table(p peer) string {
	var fields []field
	from := map[field][]string{}
	for _, r := range p.rows {
		name := "`" + r.name + "`"
		if r.when.name != "" {
			name += fmt.Sprintf(" if `%s` is `%s`", r.when.name, r.when.value)
		}
		if _, ok := from[r.field]; !ok {
			fields = append(fields, r.field)
		}
		from[r.field] = append(from[r.field], name)
	}
	var b strings.Builder
	what := "Header"
	if p.ofBroker {
		what = "Detail of `Meta.Origin`"
	}
	fmt.Fprintf(&b, "| %s | Field of `dlq.Entry` |\n|---|---|\n", what)
	for _, f := range fields {
		name := "`" + string(f) + "`"
		if detail, ok := strings.CutPrefix(string(f), string(origin)); ok {
			name = fmt.Sprintf("`Meta.Origin`, as `%s`", detail)
		}
		if f == ignored {
			name = "none, it is taken out"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(from[f], ", "), name)
	}
	return b.String()
}
