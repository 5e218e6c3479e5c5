package dlq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/classify"
)

var died = time.UnixMilli(1_767_225_600_123).UTC()

// unlimited is a limit that sheds nothing.
const unlimited = 1 << 20

// full is an entry with every field set.
func full() Entry {
	return Entry{
		Message: brokers.Message{
			ID: "7f3a-1", Topic: "orders", Key: "customer-9", Body: []byte("{\x00\xff}"),
			PublishedAt: died.Add(-time.Hour),
			Headers: brokers.Headers{
				{Name: "tenant", Value: "a"},
				{Name: "redrive-color", Value: "unknown names are user data"},
				{Name: "tenant", Value: "b\x00\xff", Type: "bytes"},
				{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
				{Name: "tracestate", Value: "a=1"},
			},
		},
		Meta: brokers.Meta{
			Attempt: 10, Throttles: 2,
			FirstFailedAt: died.Add(-time.Minute), LastFailedAt: died.Add(-time.Second),
			DueAt: died.Add(-2 * time.Second), Delay: 31 * time.Second, Class: "transient",
			History: []brokers.Failure{
				{Attempt: 9, At: died.Add(-time.Minute), Class: "unknown", Fingerprint: "9f86d081884c7d65", Delay: time.Second},
				{Attempt: 10, At: died.Add(-time.Second), Class: "transient", Fingerprint: "9f86d081884c7d65"},
			},
			IdempotencyKey: "order-8471", RedriveCount: 1, Send: "12.3.f00d",
			Origin: brokers.Headers{{Name: "partition", Value: "3"}, {Name: "offset", Value: "42", Type: "long"}},
		},
		Reason: "exhausted", ErrorType: "*net.OpError", ErrorCode: "ECONNREFUSED",
		ErrorText: "dial tcp 127.0.0.1:5432: connect: connection refused",
		Stack:     "panic(...)\n\t/app/main.go:12 +0x1\nmain.charge(...)\n", Fingerprint: "9f86d081884c7d65",
		Rule: "errno ECONNREFUSED", Group: "billing", DeadAt: died, DeadBy: "worker-1/4711",
		Abandoned: 1, Truncated: []string{"error-code"},
	}
}

func TestRoundTrip(t *testing.T) {
	e := full()
	letter := e.Encode(unlimited)
	n := len(e.Message.Headers)
	if !reflect.DeepEqual(letter.Headers[:n], full().Message.Headers) || !reflect.DeepEqual(e, full()) {
		t.Errorf("user headers became %+v, and the entry %+v", letter.Headers[:n], e)
	}
	letter.Headers = nil
	if want := (brokers.Message{ID: e.Message.ID, Key: e.Message.Key, Body: e.Message.Body}); !reflect.DeepEqual(letter, want) {
		t.Errorf("the letter is %+v, want the ID, the key and the body of the original alone", letter)
	}
}

func TestMinimalEntry(t *testing.T) {
	letter := Entry{}.Encode(0)
	want := brokers.Headers{{Name: headerVersion, Value: "1"}}
	if !reflect.DeepEqual(letter.Headers, want) {
		t.Errorf("an empty entry has the headers %+v, want %+v", letter.Headers, want)
	}
	if got, err := Decode(letter); err != nil || !reflect.DeepEqual(got, Entry{}) {
		t.Errorf("Decode = %+v, %v, want an empty entry", got, err)
	}
}

// TestRandomRoundTrips also sends entries through a carrying adapter and
// through the packed form.
func TestRandomRoundTrips(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		want := randomEntry(rng)
		letter := want.Encode(unlimited)
		if got, err := Decode(letter); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v\n got %+v\nwant %+v", seed, err, got, want)
		}

		user, framework := wire.Partition(wire.EncodeIdentity(letter))
		unpacked, err := wire.Unpack(wire.Pack(framework))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		received, meta := wire.Decode(slices.Concat(user, unpacked), wire.Limits{Now: died, MaxDelay: time.Hour, Trusted: true})
		if meta.Attempt != 0 || !meta.DueAt.IsZero() {
			t.Fatalf("seed %d: the adapter takes %+v for the progress of a fresh dead letter", seed, meta)
		}
		received.Body, received.Key = letter.Body, letter.Key
		received.ID = want.Message.ID
		if got, err := Decode(received); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d, over an adapter: %v\n got %+v\nwant %+v", seed, err, got, want)
		}
	}
}

// randomEntry has some fields of a full one, and other texts in some of those.
func randomEntry(rng *rand.Rand) Entry {
	e := full()
	e.Original = &Original{BodyBytes: rng.IntN(1 << 30), HeaderBytes: rng.IntN(1 << 20), BodySHA256: strings.Repeat("0f", 32)}
	classes := []string{
		classify.ClassPoison, classify.ClassTransient, classify.ClassThrottled, classify.ClassEnvironment,
		classify.ClassShutdown, classify.ClassLost, classify.ClassUnknown,
	}
	e.Meta.Class = string(classes[rng.IntN(len(classes))])
	alphabet := []rune(`ab 09-_.,;:"\<&>{}#ä一🙂`)
	for text, most := range map[*string]int{
		&e.Message.ID: 200, &e.Message.Topic: 512, &e.Message.Key: 200, &e.Meta.IdempotencyKey: 512, &e.Meta.Origin[1].Value: 100,
		&e.ErrorType: 256, &e.ErrorCode: 256, &e.ErrorText: maxError, &e.Rule: 256, &e.Group: 256, &e.DeadBy: 256,
	} {
		var b strings.Builder
		for range rng.IntN(most / 4) {
			b.WriteRune(alphabet[rng.IntN(len(alphabet))])
		}
		*text = b.String()
	}
	e.Meta.Origin[1].Value += "v" // which must not be empty
	forget(rng, reflect.ValueOf(&e).Elem())
	return e
}

// forget empties some fields.
func forget(rng *rand.Rand, fields reflect.Value) {
	for i := range fields.NumField() {
		f := fields.Field(i)
		switch {
		case rng.IntN(4) == 0:
			f.SetZero()
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[time.Time]():
			forget(rng, f)
		case f.Kind() == reflect.Slice:
			f.SetLen(1 + rng.IntN(f.Len()))
		}
	}
}

// What a limit leaves no room for is shed, one field after the other.
func TestShedding(t *testing.T) {
	less := full()
	less.Truncated = nil
	less.ErrorText = strings.Repeat("e", 300)
	less.Stack = strings.Repeat("s", 300)
	whole := less
	fields := []struct {
		name string
		drop func(*Entry)
		cut  func(*Entry) *string // nil if it is not cut before it is lost
	}{
		{"error-stack", func(e *Entry) { e.Stack = "" }, func(e *Entry) *string { return &e.Stack }},
		{"history", func(e *Entry) { e.Meta.History = nil }, nil},
		{"error-message", func(e *Entry) { e.ErrorText = "" }, func(e *Entry) *string { return &e.ErrorText }},
		{"origin", func(e *Entry) { e.Meta.Origin = nil }, nil},
		{"rule", func(e *Entry) { e.Rule = "" }, nil},
	}
	check := func(limit int, want Entry, cut func(*Entry) *string) {
		t.Helper()
		letter := whole.Encode(limit)
		user, story := wire.Partition(letter.Headers)
		if got := sizeOf(story); got > limit {
			t.Errorf("the story takes %d bytes, the limit is %d", got, limit)
		}
		if !reflect.DeepEqual(user, whole.Message.Headers) {
			t.Errorf("user headers became %+v", user)
		}
		got, err := Decode(letter)
		if cut != nil {
			checkCut(t, *cut(&got), *cut(&whole))
			*cut(&want) = *cut(&got)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("within %d bytes: %v\n got %+v\nwant %+v", limit, err, got, want)
		}
	}
	for _, f := range fields {
		_, story := wire.Partition(less.Encode(unlimited).Headers)
		room := sizeOf(story)
		check(room, less, nil)
		next := less
		next.Truncated = append(slices.Clone(less.Truncated), f.name)
		if f.cut != nil {
			check(room-1, next, f.cut)
			f.drop(&next)
		} else {
			f.drop(&next)
			check(room-1, next, nil)
		}
		less = next
	}
	if got, err := Decode(whole.Encode(1)); err != nil || !reflect.DeepEqual(got, less) {
		t.Errorf("nothing more to shed: %v\n got %+v\nwant %+v", err, got, less)
	}
}

func checkCut(t *testing.T, got, whole string) {
	t.Helper()
	start, ok := strings.CutSuffix(got, "…")
	if !ok || start == "" || !strings.HasPrefix(whole, start) || len(got) >= len(whole) {
		t.Errorf("%q is not the beginning of %q with a mark", got, whole)
	}
}

// TestAlwaysKeptIsSmall checks what the documentation says about the least
// room that a dead letter takes.
func TestAlwaysKeptIsSmall(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	e := full()
	_, story := wire.Partition(e.Encode(1).Headers)
	if got := sizeOf(story); got > 1<<10 {
		t.Errorf("an ordinary dead letter cannot be shed below %d bytes, want at most 1024", got)
	}
	e.Message.Topic, e.Meta.IdempotencyKey = long, long[:512]
	e.Reason, e.ErrorType, e.ErrorCode, e.Fingerprint, e.Rule, e.Group, e.DeadBy = long, long, long, long, long, long, long
	e.ErrorText, e.Stack, e.Meta.Origin[0].Value = long, long, long
	_, story = wire.Partition(e.Encode(1).Headers)
	if got := sizeOf(story); got > 4<<10 {
		t.Errorf("the largest dead letter cannot be shed below %d bytes, want at most 4096", got)
	}
	_, story = wire.Partition(e.Encode(0).Headers)
	if got := sizeOf(story); got > defaultLimit {
		t.Errorf("without a limit the story takes %d bytes, want at most %d", got, defaultLimit)
	}
	got, _ := Decode(e.Encode(unlimited))
	if want := "reason,topic,group,by,error-type,error-code,error-fingerprint,rule,error-message,error-stack,origin"; !sameNames(got.Truncated, want, "error-code") {
		t.Errorf("Truncated = %q, want %q", got.Truncated, want)
	}
}

func sameNames(got []string, want string, earlier string) bool {
	names := append([]string{earlier}, strings.Split(want, ",")...)
	slices.Sort(names)
	return slices.Equal(slices.Sorted(slices.Values(got)), slices.Compact(names))
}

func TestEncodeReplacesAnEarlierStory(t *testing.T) {
	forged := full()
	first := forged.Encode(0)
	second := Entry{Message: first, Reason: "operator"}
	second.Message.Topic = "orders.dead"
	second.Message.Headers = append(slices.Clone(first.Headers), brokers.Header{Name: "redrive-attempt", Value: "9999"}, brokers.Header{Name: "redrive-due-at", Value: "1"})

	letter := second.Encode(0)
	got, err := Decode(letter)
	if err != nil {
		t.Fatal(err)
	}
	if got.Reason != "operator" || got.Meta.Attempt != 0 || got.ErrorText != "" || got.Message.Topic != "orders.dead" {
		t.Errorf("the earlier story shines through: %+v", got)
	}
	if !reflect.DeepEqual(got.Message.Headers, full().Message.Headers) {
		t.Errorf("user headers became %+v", got.Message.Headers)
	}
	seen := map[string]bool{}
	_, story := wire.Partition(letter.Headers)
	for _, h := range story {
		if seen[h.Name] {
			t.Errorf("header %s is there twice", h.Name)
		}
		seen[h.Name] = true
	}
}

func TestDecodeOfOtherMessages(t *testing.T) {
	for name, headers := range map[string]brokers.Headers{
		"no headers":         nil,
		"user headers":       {{Name: "a", Value: "1"}},
		"a retry copy":       {{Name: "redrive-id", Value: "7f3a"}, {Name: "redrive-attempt", Value: "3"}},
		"a reason only":      {{Name: headerReason, Value: "exhausted"}},
		"unreadable version": {{Name: headerVersion, Value: "one"}, {Name: headerReason, Value: "exhausted"}},
		"version zero":       {{Name: headerVersion, Value: "0"}},
	} {
		m := brokers.Message{ID: "x", Topic: "orders.dead", Body: []byte("b"), Headers: headers}
		got, err := Decode(m)
		if !errors.Is(err, errNotDeadLetter) {
			t.Errorf("%s: error %v, want that it is no dead letter", name, err)
		}
		if !reflect.DeepEqual(got, Entry{Message: m}) {
			t.Errorf("%s: %+v, want the message as it is", name, got)
		}
	}
}

func TestDecodeHostile(t *testing.T) {
	dead := func(headers ...brokers.Header) brokers.Headers {
		return append(brokers.Headers{{Name: headerVersion, Value: "1"}}, headers...)
	}
	h := func(name, value string) brokers.Header { return brokers.Header{Name: name, Value: value} }
	meta := func(word string) string { return deadPrefix + word }
	endOfTime := time.UnixMilli(253_402_300_799_999).UTC()
	tests := []struct {
		name    string
		headers brokers.Headers
		want    Entry
	}{
		{"later version", brokers.Headers{h(headerVersion, "2"), h(headerReason, "poison")}, Entry{Reason: "poison"}},
		{"attempt negative", dead(h(meta("attempt"), "-3")), Entry{}},
		{"attempt huge", dead(h(meta("attempt"), "99999999999999999999")), Entry{Meta: brokers.Meta{Attempt: 10_000}}},
		{"abandoned huge", dead(h(headerAbandoned, "2147483648")), Entry{Abandoned: 10_000}},
		{"due in year 9999", dead(h(meta("due-at"), "253402300799999")), Entry{Meta: brokers.Meta{DueAt: endOfTime}}},
		{"dead after year 9999", dead(h(headerAt, "253402300800000")), Entry{}},
		{"dead before 1970", dead(h(headerAt, "-1")), Entry{}},
		{"delay overflow", dead(h(meta("delay-ms"), "9223372036854775807")), Entry{Meta: brokers.Meta{Delay: 9_223_372_036_854 * time.Millisecond}}},
		{"not UTF-8", dead(h(headerMessage, "a\xff")), Entry{}},
		{"NUL", dead(h(headerReason, "poison\x00")), Entry{}},
		{"terminal escape", dead(h(headerMessage, "\x1b]0;owned\x07")), Entry{}},
		{"line feed", dead(h(headerGroup, "a\r\nb")), Entry{}},
		{"bidi override", dead(h(headerBy, "a\u202eb")), Entry{}},
		{"stack with escape", dead(h(headerStack, "a\n\x1b[2J")), Entry{}},
		{"huge text", dead(h(headerMessage, strings.Repeat("x", 1<<20))), Entry{}},
		{"huge topic", dead(h(headerTopic, strings.Repeat("x", 513))), Entry{}},
		{"class not on the list", dead(h(meta("class"), "gold")), Entry{}},
		{"repeated name", dead(h(headerReason, "a"), h(headerReason, "b")), Entry{Reason: "b"}},
		{"empty values", dead(h(headerReason, ""), h(meta("history"), ""), h(meta("origin-"), "")), Entry{}},
		{"truncated without sense", dead(h(headerTruncated, ",,a b,history,history,")), Entry{Truncated: []string{"history"}}},
		{"stub", dead(h(headerStub, "x"), h(headerBodyBytes, "-1"), h(headerHeaderBytes, "7"), h(headerBodyHash, "0f")), Entry{Original: &Original{HeaderBytes: 7}}},
		{"no stub", dead(h(headerBodyBytes, "1"), h(headerHeaderBytes, "7")), Entry{}},
		{"death", dead(h("redrive-dlq-death-reason", "poison")), Entry{Message: brokers.Message{Headers: brokers.Headers{h("redrive-dlq-death-reason", "poison")}}}},
		{"carried death", dead(h("redrive-death-reason", "poison")), Entry{}},
		{"other words", dead(h("redrive-dlq-color", "red")), Entry{Message: brokers.Message{Headers: brokers.Headers{h("redrive-dlq-color", "red")}}}},
	}
	for _, tt := range tests {
		got, err := Decode(brokers.Message{Headers: tt.headers, Topic: "orders.dead"})
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: Decode: %v\n got %+v\nwant %+v", tt.name, err, got, tt.want)
		}
	}
}

func TestDecodeManyHeaders(t *testing.T) {
	headers := brokers.Headers{{Name: headerVersion, Value: "1"}}
	for i := range 10_000 {
		headers = append(headers,
			brokers.Header{Name: deadPrefix + "origin-" + fmt.Sprint(i), Value: "v"},
			brokers.Header{Name: "user", Value: fmt.Sprint(i)})
	}
	got, err := Decode(brokers.Message{Headers: headers})
	if err != nil || len(got.Meta.Origin) != 16 || len(got.Message.Headers) != 10_000 {
		t.Errorf("Decode: %v, %d details and %d user headers, want 16 and 10000", err, len(got.Meta.Origin), len(got.Message.Headers))
	}
	if len(got.Encode(0).Headers) > 10_000+64 {
		t.Error("encoding what was decoded grows")
	}
}
