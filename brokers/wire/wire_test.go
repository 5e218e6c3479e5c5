package wire

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

var now = time.UnixMilli(1_767_225_600_123).UTC()

func limits() Limits { return Limits{Now: now, MaxDelay: 15 * time.Minute, Trusted: true} }

// anyone are the limits where anyone may write.
func anyone() Limits { return Limits{Now: now, MaxDelay: 15 * time.Minute} }

// full is a message and a Meta with every field set.
func full() (brokers.Message, brokers.Meta) {
	msg := brokers.Message{
		ID: "7f3a-1", Topic: "orders", Key: "customer 9", PublishedAt: now.Add(-time.Hour),
		Headers: brokers.Headers{
			{Name: "tenant", Value: "a"},
			{Name: "redrive-color", Value: "unknown names are user data"},
			{Name: "tenant", Value: "b\x00\xff", Type: "bytes"},
			{Name: "traceparent", Value: "00-4bf92f-00f0-01"},
		},
	}
	meta := brokers.Meta{
		Attempt: 3, Throttles: 1,
		FirstFailedAt: now.Add(-time.Minute), LastFailedAt: now.Add(-time.Second),
		DueAt: now.Add(30 * time.Second), Delay: 31 * time.Second, Class: "transient",
		History: []brokers.Failure{
			{Attempt: 1, At: now.Add(-time.Minute), Class: "unknown", Fingerprint: "9f86d081884c7d65", Delay: time.Second},
			{Attempt: 2, At: now.Add(-time.Second), Class: "transient", Ambiguous: true},
		},
		IdempotencyKey: "order-8471", RedriveCount: 2, Send: "12.3.f00d",
		Origin: brokers.Headers{{Name: "partition", Value: "3"}, {Name: "offset", Value: "42", Type: "long"}},
	}
	return msg, meta
}

// waiting is a message that waits for its dead letter, with every field set.
func waiting() (brokers.Message, brokers.Meta) {
	msg, meta := full()
	meta.Attempt, meta.Class = 10, "poison"
	meta.Death = &brokers.Death{
		Reason: "poison", At: now.Add(-time.Second), By: "worker-1/4711", Abandoned: 2, Attempt: 3, DueAt: now.Add(-2 * time.Second),
		ErrorType: "*orders.NoArticle", ErrorCode: "404", ErrorText: `no article "7": заказ\n`, Stack: "orders.handle(…)\n\t/src/orders.go:7", Fingerprint: "9f86d081884c7d65", Rule: "permanent",
		Truncated: []string{"error-stack", "history"},
	}
	return msg, meta
}

func TestMetaRoundTrip(t *testing.T) {
	msg, meta := full()
	before := slices.Clone(msg.Headers)
	headers := Encode(msg, meta)
	gotMsg, gotMeta := Decode(headers, limits())
	if !reflect.DeepEqual(gotMsg, msg) {
		t.Errorf("message\n got %+v\nwant %+v", gotMsg, msg)
	}
	if !reflect.DeepEqual(gotMeta, meta) {
		t.Errorf("meta\n got %+v\nwant %+v", gotMeta, meta)
	}
	if !reflect.DeepEqual(msg.Headers, before) {
		t.Errorf("Encode changed the headers it was given: %+v", msg.Headers)
	}
	for _, h := range headers[len(before):] {
		if !strings.HasPrefix(h.Name, prefix) || h.Name != strings.ToLower(h.Name) || h.Value == "" {
			t.Errorf("header %q: %q is not in the spelling of the package", h.Name, h.Value)
		}
		if !reserved(h.Name) {
			t.Errorf("reserved(%q) = false for a header that Encode writes", h.Name)
		}
	}
}

func TestEmptyMetaWritesNothing(t *testing.T) {
	user := brokers.Headers{{Name: "a", Value: "1"}}
	got := Encode(brokers.Message{Headers: user}, brokers.Meta{})
	if !reflect.DeepEqual(got, user) {
		t.Errorf("Encode of nothing = %+v, want the user's headers", got)
	}
	msg, meta := Decode(user, limits())
	if !reflect.DeepEqual(msg.Headers, user) || !reflect.DeepEqual(meta, brokers.Meta{}) {
		t.Errorf("Decode without framework headers = %+v, %+v", msg, meta)
	}
}

func TestMetaReplacesEarlierProgress(t *testing.T) {
	msg, meta := waiting()
	msg.Headers = Encode(msg, meta) // as a forger would, among the user's headers
	got, after := Decode(Encode(msg, brokers.Meta{Attempt: 4}), limits())
	if want := (brokers.Meta{Attempt: 4}); !reflect.DeepEqual(after, want) {
		t.Errorf("meta after a second write = %+v, want %+v", after, want)
	}
	want, _ := full()
	if !reflect.DeepEqual(got.Headers, want.Headers) {
		t.Errorf("user headers after a second write = %+v", got.Headers)
	}
}

func TestNothingComesEarly(t *testing.T) {
	due := now.Add(1500 * time.Microsecond)
	_, meta := Decode(Encode(brokers.Message{}, brokers.Meta{
		DueAt:   due,
		Delay:   1500 * time.Microsecond,
		History: []brokers.Failure{{Attempt: 1, Delay: time.Nanosecond}},
	}), limits())
	if meta.DueAt.Before(due) || meta.DueAt.Sub(due) >= time.Millisecond {
		t.Errorf("DueAt = %v, want %v rounded up to the millisecond", meta.DueAt, due)
	}
	if meta.Delay != 2*time.Millisecond || meta.History[0].Delay != time.Millisecond {
		t.Errorf("Delay = %v and %v, want 2ms and 1ms", meta.Delay, meta.History[0].Delay)
	}
	whole := now.Add(time.Second)
	if _, meta := Decode(Encode(brokers.Message{}, brokers.Meta{DueAt: whole}), limits()); !meta.DueAt.Equal(whole) {
		t.Errorf("DueAt = %v, want %v unchanged", meta.DueAt, whole)
	}
}

func TestIdentity(t *testing.T) {
	msg, meta := waiting()
	forged := msg
	forged.Headers = Encode(msg, meta)

	got, gotMeta := Decode(forged.Headers, anyone())
	if want := (brokers.Meta{IdempotencyKey: "order-8471", RedriveCount: 2, Send: "12.3.f00d"}); !reflect.DeepEqual(gotMeta, want) {
		t.Errorf("Decode reads of anyone %+v, want %+v", gotMeta, want)
	}
	want := msg
	want.Topic = ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Decode\n got %+v\nwant %+v", got, want)
	}

	published := EncodeIdentity(forged)
	if got, gotMeta := Decode(published, limits()); !reflect.DeepEqual(got, want) ||
		!reflect.DeepEqual(gotMeta, brokers.Meta{IdempotencyKey: "order-8471", RedriveCount: 2, Send: "12.3.f00d"}) {
		t.Errorf("EncodeIdentity passes on more than the identity: %+v, %+v", got, gotMeta)
	}
}

func TestIdentify(t *testing.T) {
	newID := func() string { return "new" }
	m := brokers.Message{Headers: brokers.Headers{
		{Name: nameID, Value: "id-7"}, {Name: namePublishedAt, Value: "1700000000000"}, {Name: nameRedriveCount, Value: "2"},
		{Name: nameSend, Value: "1.1.x"}, {Name: nameAttempt, Value: "3"},
	}}
	said := m
	if meta := Identify(&said, now, newID); said.ID != "id-7" || said.PublishedAt.UnixMilli() != 1700000000000 || !reflect.DeepEqual(meta, brokers.Meta{RedriveCount: 2, Send: "1.1.x"}) {
		t.Errorf("of the headers: %q, published at %v, %+v", said.ID, said.PublishedAt, meta)
	}
	set := brokers.Message{ID: "own", PublishedAt: now.Add(-time.Hour), Headers: m.Headers}
	if Identify(&set, now, newID); set.ID != "own" || !set.PublishedAt.Equal(now.Add(-time.Hour)) {
		t.Errorf("what was set became %q, published at %v", set.ID, set.PublishedAt)
	}
	none := brokers.Message{}
	if Identify(&none, now, newID); none.ID != "new" || !none.PublishedAt.Equal(now) {
		t.Errorf("of nothing: %q, published at %v, want new and now", none.ID, none.PublishedAt)
	}
}

func TestDeadLetterRecordIsPassedOn(t *testing.T) {
	dead := brokers.Headers{{Name: "redrive-dlq-reason", Value: "exhausted"}, {Name: deadPrefix + "attempt", Value: "10"}, {Name: "redrive-error-stack", Value: "main"}}
	msg, meta := Decode(dead, limits())
	if !reflect.DeepEqual(msg.Headers, dead) || meta.Attempt != 0 {
		t.Errorf("a dead letter read as %+v, %+v: its record belongs to package dlq", msg, meta)
	}
	if got := Encode(msg, brokers.Meta{Attempt: 1}); !reflect.DeepEqual(got[:3], dead) {
		t.Errorf("a retry of a dead letter carries %+v", got)
	}
}

func TestHostileHeaders(t *testing.T) {
	h := func(name, value string) brokers.Headers { return brokers.Headers{{Name: name, Value: value}} }
	end := now.Add(15 * time.Minute)
	tests := []struct {
		name    string
		headers brokers.Headers
		want    brokers.Meta
	}{
		{"attempt negative", h(nameAttempt, "-1"), brokers.Meta{}},
		{"attempt with sign", h(nameAttempt, "+3"), brokers.Meta{}},
		{"attempt hexadecimal", h(nameAttempt, "0x3"), brokers.Meta{}},
		{"attempt with spaces", h(nameAttempt, " 3"), brokers.Meta{}},
		{"attempt fraction", h(nameAttempt, "3.5"), brokers.Meta{}},
		{"attempt other digits", h(nameAttempt, "٣"), brokers.Meta{}},
		{"attempt empty", h(nameAttempt, ""), brokers.Meta{}},
		{"attempt huge", h(nameAttempt, "10001"), brokers.Meta{Attempt: 10000}},
		{"attempt overflow", h(nameAttempt, "99999999999999999999999"), brokers.Meta{Attempt: 10000}},
		{"attempt endless", h(nameAttempt, strings.Repeat("9", 1<<20)), brokers.Meta{}},
		{"attempt leading zeros", h(nameAttempt, "007"), brokers.Meta{Attempt: 7}},
		{"excused before any failure", h(nameExcused, "60000"), brokers.Meta{}},
		{"excused for too long", append(h(nameFirstFailedAt, fmt.Sprint(now.Add(-time.Minute).UnixMilli())), h(nameExcused, "60001")...),
			brokers.Meta{FirstFailedAt: now.Add(-time.Minute), Excused: time.Minute}},
		{"crashes huge", h(nameCrashes, "9223372036854775808"), brokers.Meta{Crashes: 10000}},
		{"throttles huge", h(nameThrottles, "9223372036854775808"), brokers.Meta{Throttles: 10000}},
		{"redrive count huge", h(nameRedriveCount, "1000000"), brokers.Meta{RedriveCount: 10000}},
		{"send no word", h(nameSend, "two words"), brokers.Meta{}},
		{"send of other letters", h(nameSend, "ключ"), brokers.Meta{}},
		{"send too long", h(nameSend, strings.Repeat("s", 65)), brokers.Meta{}},
		{"send as long as a word", h(nameSend, strings.Repeat("s", 64)), brokers.Meta{Send: strings.Repeat("s", 64)}},
		{"due in year 9999", h(nameDueAt, "253402300799999"), brokers.Meta{DueAt: end}},
		{"due after year 9999", h(nameDueAt, "253402300800000"), brokers.Meta{}},
		{"due overflow", h(nameDueAt, "9223372036854775807"), brokers.Meta{}},
		{"due garbage", h(nameDueAt, "tomorrow"), brokers.Meta{}},
		{"due RFC 3339", h(nameDueAt, "2026-01-01T00:00:00Z"), brokers.Meta{}},
		{"due at the limit", h(nameDueAt, fmt.Sprint(end.UnixMilli())), brokers.Meta{DueAt: end}},
		{"due one past the limit", h(nameDueAt, fmt.Sprint(end.UnixMilli()+1)), brokers.Meta{DueAt: end}},
		{"delay huge", h(nameDelay, "9223372036854775807"), brokers.Meta{Delay: 15 * time.Minute}},
		{"delay negative", h(nameDelay, "-5"), brokers.Meta{}},
		{"failed in the future", h(nameFirstFailedAt, "253402300799999"), brokers.Meta{FirstFailedAt: now}},
		{"last failed in the future", h(nameLastFailedAt, "253402300799999"), brokers.Meta{LastFailedAt: now}},
		{"class unknown word", h(nameClass, "gold"), brokers.Meta{}},
		{"class case", h(nameClass, "Poison"), brokers.Meta{}},
		{"class huge", h(nameClass, strings.Repeat("poison", 1000)), brokers.Meta{}},
		{"key not UTF-8", h(nameIdempotencyKey, "a\xff"), brokers.Meta{}},
		{"key with NUL", h(nameIdempotencyKey, "a\x00b"), brokers.Meta{}},
		{"key with DEL", h(nameIdempotencyKey, "a\x7fb"), brokers.Meta{}},
		{"key with terminal escape", h(nameIdempotencyKey, "\x1b[31mred"), brokers.Meta{}},
		{"key with line feed", h(nameIdempotencyKey, "a\r\nSet-Cookie: b"), brokers.Meta{}},
		{"key with bidi override", h(nameIdempotencyKey, "a\u202eb"), brokers.Meta{}},
		{"key with line separator", h(nameIdempotencyKey, "a\u2028b"), brokers.Meta{}},
		{"key too long", h(nameIdempotencyKey, strings.Repeat("k", text.MaxName+1)), brokers.Meta{}},
		{"key of another script", h(nameIdempotencyKey, "заказ 一"), brokers.Meta{IdempotencyKey: "заказ 一"}},
		{"name is case-sensitive", h("Redrive-Attempt", "3"), brokers.Meta{}},
		{"repeated name", slices.Concat(h(nameAttempt, "3"), h(nameAttempt, "4")), brokers.Meta{Attempt: 4}},
		{"history empty entries", h(nameHistory, ";;;,,,,;"), brokers.Meta{}},
		{"history too few fields", h(nameHistory, "1,2,3"), brokers.Meta{}},
		{"history hostile fields", h(nameHistory, "99999999999,253402300799999,gold,a b,-1,,"), brokers.Meta{
			History: []brokers.Failure{{Attempt: 10000, At: now}}}},
		{"history long delay", h(nameHistory, "1,,,,99999999999999"), brokers.Meta{
			History: []brokers.Failure{{Attempt: 1, Delay: 15 * time.Minute}}}},
		{"history keeps what is good", h(nameHistory, "1,,poison,ab,1;bad;2,,poison,cd,2"), brokers.Meta{
			History: []brokers.Failure{
				{Attempt: 1, Class: "poison", Fingerprint: "ab", Delay: time.Millisecond},
				{Attempt: 2, Class: "poison", Fingerprint: "cd", Delay: 2 * time.Millisecond},
			}}},
		{"death without a reason", slices.Concat(h(nameDeathMessage, "forged"), h(nameDeathAttempt, "1")), brokers.Meta{}},
		{"death for no reason", h(nameDeathReason, "poison\x00"), brokers.Meta{}},
		{"death for a long reason", h(nameDeathReason, strings.Repeat("r", text.MaxWord+1)), brokers.Meta{}},
		{"death of hostile fields", slices.Concat(
			h(nameDeathReason, "poison"), h(nameDeathAt, "253402300799999"), h(nameDeathDueAt, "253402300799999"), h(nameDeathAttempt, "99999999999999999999"), h(nameDeathAbandoned, "-1"),
			h(nameDeathBy, "a\r\nb"), h(nameDeathType, strings.Repeat("t", text.MaxShort+1)), h(nameDeathCode, "\x1b[31m"), h(nameDeathMessage, strings.Repeat("m", text.MaxError+1)),
			h(nameDeathPrint, "\u202e"), h(nameDeathStack, "a\n\x1b[2J"), h(nameDeathRule, "\xff"), h(nameDeathTruncated, ",,a b,history,history,"), h(DeathSignature, "1.x"),
		), brokers.Meta{Death: &brokers.Death{Reason: "poison", At: now, DueAt: end, Attempt: 10000, Truncated: []string{"history"}}}},
		{"origin names and values", slices.Concat(
			h(nameOrigin, "no name"), h(nameOrigin+"a b", "space"), h(nameOrigin+"é", "letter"), h(nameOrigin+"a{", "bracket"), h(nameOrigin+"nul", "\x00"), h(nameOrigin+"empty", ""),
			h(nameOrigin+strings.Repeat("n", text.MaxWord+1), "long"), h(nameOrigin+"long", strings.Repeat("v", text.MaxShort+1)),
			brokers.Headers{{Name: nameOrigin + "offset", Value: "1", Type: "\x1b"}},
		), brokers.Meta{Origin: brokers.Headers{{Name: "offset", Value: "1"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msg, got := Decode(tt.headers, limits())
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Decode(%.80q)\n got %+v\nwant %+v", tt.headers, got, tt.want)
			}
			for _, header := range msg.Headers {
				if strings.HasPrefix(header.Name, prefix) {
					t.Errorf("%q is left among the user's headers", header.Name)
				}
			}
		})
	}
}

func TestHostileMessageFields(t *testing.T) {
	msg, _ := Decode(brokers.Headers{
		{Name: nameID, Value: "a\x00"}, {Name: nameKey, Value: "\xff"}, {Name: nameTopic, Value: "a\nb"},
		{Name: namePublishedAt, Value: "253402300799999"},
	}, limits())
	if want := (brokers.Message{PublishedAt: now}); !reflect.DeepEqual(msg, want) {
		t.Errorf("Decode = %+v, want %+v", msg, want)
	}
	if got := Encode(brokers.Message{ID: "a\x00", Topic: strings.Repeat("t", text.MaxName+1)}, brokers.Meta{}); len(got) != 0 {
		t.Errorf("Encode writes what Decode refuses: %q", got)
	}
}

func TestReadingIsBounded(t *testing.T) {
	var flood brokers.Headers
	for i := range 10_000 {
		flood = append(flood, brokers.Header{Name: nameAttempt, Value: fmt.Sprint(i)}, brokers.Header{Name: "user", Value: "x"})
	}
	msg, meta := Decode(flood, limits())
	if len(msg.Headers) != 10_000 {
		t.Errorf("%d user headers are left, want 10000", len(msg.Headers))
	}
	if meta.Attempt != maxEntries-1 {
		t.Errorf("Attempt = %d, want the last of the first %d headers", meta.Attempt, maxEntries)
	}

	fat := brokers.Headers{{Name: nameHistory, Value: strings.Repeat(";", maxBytes)}, {Name: nameAttempt, Value: "3"}}
	if _, meta := Decode(fat, limits()); meta.Attempt != 3 || meta.History != nil {
		t.Errorf("a header over the byte limit: got %+v, want it skipped and the next one read", meta)
	}

	full := slices.Repeat(brokers.Headers{{Name: nameHistory, Value: strings.Repeat(";", 1<<10-len(nameHistory))}}, maxBytes>>10)
	if _, meta := Decode(append(full, brokers.Header{Name: nameAttempt, Value: "3"}), limits()); meta.Attempt != 0 {
		t.Errorf("after %d bytes of headers another is read: %+v", maxBytes, meta)
	}

	var origin brokers.Headers
	for i := range 100 {
		origin = append(origin, brokers.Header{Name: fmt.Sprint("n", i), Value: "v"})
	}
	if got := Encode(brokers.Message{}, brokers.Meta{Origin: origin}); len(got) != maxOrigin {
		t.Errorf("%d details of the origin are written, want %d", len(got), maxOrigin)
	}
	long := brokers.Meta{History: make([]brokers.Failure, 30)}
	for i := range long.History {
		long.History[i].Attempt = i + 1
	}
	written := Encode(brokers.Message{}, long)
	if n := 1 + strings.Count(written.Get(nameHistory), ";"); n != maxHistory {
		t.Errorf("%d failures of 30 are written, want the last %d", n, maxHistory)
	}
	_, meta = Decode(written, limits())
	if len(meta.History) != maxHistory || meta.History[0].Attempt != 21 {
		t.Errorf("history of 30 comes back as %+v, want the last %d", meta.History, maxHistory)
	}
}

func TestZeroLimitsHoldNothing(t *testing.T) {
	_, meta := Decode(Encode(brokers.Message{}, brokers.Meta{DueAt: now.Add(time.Hour), Delay: time.Hour}), Limits{Now: now, MaxDelay: -1, Trusted: true})
	if !meta.DueAt.Equal(now) || meta.Delay != 0 {
		t.Errorf("without a MaxDelay: due %v, delay %v, want now and 0", meta.DueAt, meta.Delay)
	}
}

func TestReservedAndPartition(t *testing.T) {
	for name, want := range map[string]bool{
		nameID: true, Packed: true, nameAttempt: true, nameOrigin + "offset": true, deadVersion: true,
		deadPrefix + "attempt": true, "redrive-dlq-origin-offset": true, "redrive-error-stack": true,
		nameDeathReason: true, nameDeathStack: true, DeathSignature: true, nameDeath: false, "redrive-death-color": false, "redrive-dlq-death-reason": false,
		"redrive-": false, "redrive-color": false, "redrive-dlq-color": false, "redrive-error-color": false,
		"attempt": false, "": false, "Redrive-Id": false, "redrive-dlq-id": false, "traceparent": false,
	} {
		if got := reserved(name); got != want {
			t.Errorf("reserved(%q) = %v, want %v", name, got, want)
		}
	}
	h := brokers.Headers{{Name: "a", Value: "1"}, {Name: nameID, Value: "2"}, {Name: "a", Value: "3"}, {Name: "redrive-dlq-reason", Value: "4"}}
	user, framework := Partition(h)
	if !reflect.DeepEqual(user, brokers.Headers{h[0], h[2]}) || !reflect.DeepEqual(framework, brokers.Headers{h[1], h[3]}) {
		t.Errorf("Partition = %v, %v", user, framework)
	}
	if user, _ := Partition(h[1:2]); user != nil {
		t.Errorf("Partition of framework headers alone leaves %v, want nil", user)
	}
}

// TestRandomRoundTrips writes and reads random metas, and reads them again
// through the packed form.
func TestRandomRoundTrips(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		meta := randomMeta(rng)
		headers := Encode(brokers.Message{ID: "x"}, meta)
		if _, got := Decode(headers, limits()); !reflect.DeepEqual(got, meta) {
			t.Fatalf("seed %d\n got %+v\nwant %+v", seed, got, meta)
		}
		unpacked, err := Unpack(Pack(headers))
		if err != nil || !reflect.DeepEqual(unpacked, headers) {
			t.Fatalf("seed %d: packed form (%v)\n got %+v\nwant %+v", seed, err, unpacked, headers)
		}
	}
}

// Readers take the longest copy that a worker writes as a whole, single and packed.
func TestLongestCopyIsRead(t *testing.T) {
	name, short, word := strings.Repeat("n", text.MaxName), strings.Repeat("s", text.MaxShort), strings.Repeat("w", text.MaxWord)
	msg := brokers.Message{ID: name, Topic: name, Key: name, PublishedAt: now}
	_, meta := waiting()
	meta.IdempotencyKey, meta.Send, meta.Origin, meta.History = name, word, nil, nil
	for i := range maxOrigin {
		meta.Origin = append(meta.Origin, brokers.Header{Name: fmt.Sprintf("%s%02d", word[:text.MaxWord-2], i), Value: short})
	}
	for i := range maxHistory {
		meta.History = append(meta.History, brokers.Failure{Attempt: text.MaxCount - maxHistory + i, At: now, Class: "environment", Fingerprint: word, Delay: 15 * time.Minute, Ambiguous: true})
	}
	d := meta.Death
	d.Reason, d.By, d.ErrorType, d.ErrorCode, d.Rule, d.Fingerprint = word, short, short, short, short, word
	d.ErrorText, d.Stack = strings.Repeat("e", text.MaxError), strings.Repeat("\n", text.MaxStack)
	for _, h := range []brokers.Headers{Encode(msg, meta), packedOf(msg, meta)} {
		gotMsg, got := Decode(h, limits())
		if !reflect.DeepEqual(got, meta) || !reflect.DeepEqual(gotMsg, msg) {
			t.Errorf("a copy of %d bytes is read as\n%+v\nwant\n%+v", size(h), got, meta)
		}
	}
}

func randomMeta(rng *rand.Rand) brokers.Meta {
	classes := []string{"", "poison", "transient", "throttled", "environment", "shutdown", "lost", "unknown"}
	past := func() time.Time {
		if rng.IntN(4) == 0 {
			return time.Time{}
		}
		return now.Add(-time.Duration(rng.Int64N(1e9)) * time.Millisecond)
	}
	delay := func() time.Duration { return time.Duration(rng.IntN(900_001)) * time.Millisecond }
	m := brokers.Meta{
		Attempt: rng.IntN(text.MaxCount + 1), Throttles: rng.IntN(6), FirstFailedAt: past(), LastFailedAt: past(), Crashes: rng.IntN(4),
		DueAt: now.Add(delay()), Delay: delay(), Class: classes[rng.IntN(len(classes))],
		IdempotencyKey: randomText(rng, 40), RedriveCount: rng.IntN(4), Send: []string{"", "12.3.f00d"}[rng.IntN(2)],
	}
	if !m.FirstFailedAt.IsZero() {
		m.Excused = now.Sub(m.FirstFailedAt) / 3 * 2 / time.Millisecond * time.Millisecond
	}
	for range rng.IntN(maxHistory + 1) {
		m.History = append(m.History, brokers.Failure{
			Attempt: rng.IntN(20), At: past(), Class: classes[rng.IntN(len(classes))], Fingerprint: fmt.Sprintf("%016x", rng.Uint64()), Delay: delay(), Ambiguous: rng.IntN(2) == 0,
		})
	}
	if rng.IntN(4) == 0 {
		m.Death = &brokers.Death{
			Reason: "poison", At: past(), By: randomText(rng, 20), Abandoned: rng.IntN(4), Attempt: rng.IntN(12), DueAt: past(), ErrorType: randomText(rng, 20), ErrorCode: randomText(rng, 5),
			ErrorText: randomText(rng, text.MaxError/4), Stack: "a\n\tb" + randomText(rng, text.MaxStack/5), Fingerprint: fmt.Sprintf("%016x", rng.Uint64()), Rule: randomText(rng, 20),
		}
	}
	for range rng.IntN(4) {
		m.Origin = append(m.Origin, brokers.Header{Name: fmt.Sprint("n", rng.IntN(3)), Value: "v" + randomText(rng, 20), Type: []string{"", "long"}[rng.IntN(2)]})
	}
	return m
}

func randomText(rng *rand.Rand, max int) string {
	alphabet := []rune(`ab 09-_.,;"\<&>{}ä一🙂`)
	out := make([]rune, rng.IntN(max+1))
	for i := range out {
		out[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(out)
}
