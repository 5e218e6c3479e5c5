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
	want := full()
	before := slices.Clone(want.Message.Headers)
	letter := want.Encode(unlimited)
	got, err := Decode(letter)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Decode(Encode(e)): %v\n got %+v\nwant %+v", err, got, want)
	}
	if !reflect.DeepEqual(letter.Headers[:len(before)], before) {
		t.Errorf("user headers became %+v", letter.Headers[:len(before)])
	}
	if !reflect.DeepEqual(want.Message.Headers, before) {
		t.Errorf("Encode changed the headers of the message: %+v", want.Message.Headers)
	}
	if letter.ID != want.Message.ID || letter.Key != want.Message.Key || &letter.Body[0] != &want.Message.Body[0] {
		t.Errorf("ID, key or body changed: %+v", letter)
	}
	if !letter.PublishedAt.IsZero() || letter.Topic != "" {
		t.Errorf("PublishedAt %v and topic %q are those of the original", letter.PublishedAt, letter.Topic)
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

func randomEntry(rng *rand.Rand) Entry {
	maybe := func(s string) string {
		if rng.IntN(4) == 0 {
			return ""
		}
		return s
	}
	text := func(max int) string {
		alphabet := []rune(`ab 09-_.,;:"\<&>{}#ä一🙂`)
		out := make([]rune, rng.IntN(max/4))
		for i := range out {
			out[i] = alphabet[rng.IntN(len(alphabet))]
		}
		return string(out)
	}
	at := func() time.Time {
		if rng.IntN(4) == 0 {
			return time.Time{}
		}
		return time.UnixMilli(rng.Int64N(4e12)).UTC()
	}
	delay := func() time.Duration { return time.Duration(rng.Int64N(1e9)) * time.Millisecond }
	classes := []string{"", "poison", "transient", "throttled", "environment", "shutdown", "lost", "unknown"}
	e := Entry{
		Message: brokers.Message{
			ID: text(200), Topic: text(512), Key: text(200), Body: []byte(text(100)), PublishedAt: at(),
		},
		Meta: brokers.Meta{
			Attempt: rng.IntN(10_001), Throttles: rng.IntN(10), FirstFailedAt: at(), LastFailedAt: at(), DueAt: at(),
			Delay: delay(), Class: classes[rng.IntN(len(classes))], IdempotencyKey: text(512), RedriveCount: rng.IntN(4), Send: maybe("12.3.f00d"),
		},
		Reason: maybe("crash-loop"), ErrorType: text(256), ErrorCode: text(256),
		ErrorText: text(maxError), Fingerprint: maybe(fmt.Sprintf("%016x", rng.Uint64())),
		Rule: text(256), Group: text(256), DeadAt: at(), DeadBy: text(256), Abandoned: rng.IntN(10),
	}
	for range rng.IntN(5) {
		e.Message.Headers = append(e.Message.Headers, brokers.Header{
			Name: []string{"a", "b", "redrive-x", "x-death"}[rng.IntN(4)], Value: text(50), Type: []string{"", "long"}[rng.IntN(2)],
		})
	}
	for range rng.IntN(11) {
		e.Meta.History = append(e.Meta.History, brokers.Failure{
			Attempt: rng.IntN(20), At: at(), Class: classes[rng.IntN(len(classes))], Fingerprint: maybe("ab12"), Delay: delay(),
		})
	}
	for range rng.IntN(4) {
		e.Meta.Origin = append(e.Meta.Origin, brokers.Header{
			Name: []string{"offset", "partition", "routing-key"}[rng.IntN(3)], Value: "v" + text(100), Type: []string{"", "long"}[rng.IntN(2)],
		})
	}
	if rng.IntN(2) == 0 {
		e.Stack = "panic(1)\n\t" + text(maxStack-100) + "\n"
	}
	if rng.IntN(4) == 0 {
		e.Truncated = []string{"error-stack", "history"}
	}
	if rng.IntN(4) == 0 {
		e.Original = &Original{BodyBytes: rng.IntN(1 << 30), HeaderBytes: rng.IntN(1 << 20), BodySHA256: maybe(strings.Repeat("0f", 32))}
	}
	return e
}

func TestShedding(t *testing.T) {
	e := full()
	e.Truncated = nil
	e.ErrorText = strings.Repeat("e", 300)
	e.Stack = strings.Repeat("s", 300)
	size := func(e Entry) int {
		_, story := wire.Partition(e.Encode(unlimited).Headers)
		return sizeOf(story)
	}
	whole := size(e)
	without := func(fields ...func(*Entry)) int {
		less := e
		for _, drop := range fields {
			drop(&less)
		}
		return size(less)
	}
	stack := func(e *Entry) { e.Stack = "" }
	history := func(e *Entry) { e.Meta.History = nil }
	text := func(e *Entry) { e.ErrorText = "" }
	origin := func(e *Entry) { e.Meta.Origin = nil }
	rule := func(e *Entry) { e.Rule = "" }
	noted := func(truncated string) int { return len(headerTruncated) + len(truncated) }

	tests := []struct {
		name      string
		limit     int
		truncated string
		lost      []func(*Entry)
		cut       string // the field that is cut rather than lost
	}{
		{"room to spare", whole + 1, "", nil, ""},
		{"exactly fits", whole, "", nil, ""},
		{"one byte short", whole - 1, "error-stack", nil, "stack"},
		{"no stack", without(stack) + noted("error-stack"), "error-stack", []func(*Entry){stack}, ""},
		{"no history", without(stack) + noted("error-stack") - 1, "error-stack,history", []func(*Entry){stack, history}, ""},
		{"text cut", without(stack, history) + noted("error-stack,history") - 1, "error-stack,history,error-message", []func(*Entry){stack, history}, "text"},
		{"no text", without(stack, history, text) + noted("error-stack,history,error-message"), "error-stack,history,error-message", []func(*Entry){stack, history, text}, ""},
		{"no origin", without(stack, history, text) + noted("error-stack,history,error-message") - 1, "error-stack,history,error-message,origin", []func(*Entry){stack, history, text, origin}, ""},
		{"no rule", without(stack, history, text, origin) + noted("error-stack,history,error-message,origin") - 1, "error-stack,history,error-message,origin,rule", []func(*Entry){stack, history, text, origin, rule}, ""},
		{"nothing more to shed", 1, "error-stack,history,error-message,origin,rule", []func(*Entry){stack, history, text, origin, rule}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			letter := e.Encode(tt.limit)
			user, story := wire.Partition(letter.Headers)
			if got := sizeOf(story); got > tt.limit && tt.limit > 1 {
				t.Errorf("the story takes %d bytes, the limit is %d", got, tt.limit)
			}
			if !reflect.DeepEqual(user, e.Message.Headers) {
				t.Errorf("user headers became %+v", user)
			}
			got, err := Decode(letter)
			if err != nil {
				t.Fatal(err)
			}
			if names := strings.Join(got.Truncated, ","); names != tt.truncated {
				t.Errorf("Truncated = %q, want %q", names, tt.truncated)
			}
			want := e
			for _, drop := range tt.lost {
				drop(&want)
			}
			want.Truncated = got.Truncated
			switch tt.cut {
			case "stack":
				checkCut(t, got.Stack, want.Stack)
				want.Stack = got.Stack
			case "text":
				checkCut(t, got.ErrorText, want.ErrorText)
				want.ErrorText = got.ErrorText
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
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
		if !errors.Is(err, ErrNotDeadLetter) {
			t.Errorf("%s: error %v, want ErrNotDeadLetter", name, err)
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
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode(brokers.Message{Headers: tt.headers, Topic: "orders.dead"})
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Decode: %v\n got %+v\nwant %+v", err, got, tt.want)
			}
		})
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
