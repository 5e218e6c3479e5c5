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
)

var now = time.UnixMilli(1_767_225_600_123).UTC()

func limits() Limits { return Limits{Now: now, MaxDelay: 15 * time.Minute} }

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
		IdempotencyKey: "order-8471", RedriveCount: 2,
		Origin: brokers.Headers{{Name: "partition", Value: "3"}, {Name: "offset", Value: "42", Type: "long"}},
	}
	return msg, meta
}

func TestMetaRoundTrip(t *testing.T) {
	msg, meta := full()
	before := slices.Clone(msg.Headers)
	headers := AppendMeta(msg, meta)
	gotMsg, gotMeta := SplitMeta(headers, limits())
	if !reflect.DeepEqual(gotMsg, msg) {
		t.Errorf("message\n got %+v\nwant %+v", gotMsg, msg)
	}
	if !reflect.DeepEqual(gotMeta, meta) {
		t.Errorf("meta\n got %+v\nwant %+v", gotMeta, meta)
	}
	if !reflect.DeepEqual(msg.Headers, before) {
		t.Errorf("AppendMeta changed the headers it was given: %+v", msg.Headers)
	}
	for _, h := range headers[len(before):] {
		if !strings.HasPrefix(h.Name, Prefix) || h.Name != strings.ToLower(h.Name) || h.Value == "" {
			t.Errorf("header %q: %q is not in the spelling of the package", h.Name, h.Value)
		}
		if !Reserved(h.Name) {
			t.Errorf("Reserved(%q) = false for a header that AppendMeta writes", h.Name)
		}
	}
}

func TestEmptyMetaWritesNothing(t *testing.T) {
	user := brokers.Headers{{Name: "a", Value: "1"}}
	got := AppendMeta(brokers.Message{Headers: user}, brokers.Meta{})
	if !reflect.DeepEqual(got, user) {
		t.Errorf("AppendMeta of nothing = %+v, want the user's headers", got)
	}
	msg, meta := SplitMeta(user, limits())
	if !reflect.DeepEqual(msg.Headers, user) || !reflect.DeepEqual(meta, brokers.Meta{}) {
		t.Errorf("SplitMeta without framework headers = %+v, %+v", msg, meta)
	}
}

func TestMetaReplacesEarlierProgress(t *testing.T) {
	msg, meta := full()
	msg.Headers = AppendMeta(msg, meta) // as a forger would, among the user's headers
	got, after := SplitMeta(AppendMeta(msg, brokers.Meta{Attempt: 4}), limits())
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
	_, meta := SplitMeta(AppendMeta(brokers.Message{}, brokers.Meta{
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
	if _, meta := SplitMeta(AppendMeta(brokers.Message{}, brokers.Meta{DueAt: whole}), limits()); !meta.DueAt.Equal(whole) {
		t.Errorf("DueAt = %v, want %v unchanged", meta.DueAt, whole)
	}
}

func TestIdentity(t *testing.T) {
	msg, meta := full()
	forged := msg
	forged.Headers = AppendMeta(msg, meta)

	got, gotMeta := SplitIdentity(forged.Headers, limits())
	if want := (brokers.Meta{IdempotencyKey: "order-8471", RedriveCount: 2}); !reflect.DeepEqual(gotMeta, want) {
		t.Errorf("SplitIdentity reads %+v, want %+v", gotMeta, want)
	}
	want := msg
	want.Topic = ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("SplitIdentity\n got %+v\nwant %+v", got, want)
	}

	published := AppendIdentity(forged)
	if got, gotMeta := SplitMeta(published, limits()); !reflect.DeepEqual(got, want) ||
		!reflect.DeepEqual(gotMeta, brokers.Meta{IdempotencyKey: "order-8471", RedriveCount: 2}) {
		t.Errorf("AppendIdentity passes on more than the identity: %+v, %+v", got, gotMeta)
	}
}

func TestDeadLetterRecordIsPassedOn(t *testing.T) {
	dead := brokers.Headers{{Name: DeadReason, Value: "exhausted"}, {Name: DeadPrefix + "attempt", Value: "10"}, {Name: ErrorStack, Value: "main"}}
	msg, meta := SplitMeta(dead, limits())
	if !reflect.DeepEqual(msg.Headers, dead) || meta.Attempt != 0 {
		t.Errorf("a dead letter read as %+v, %+v: its record belongs to package dlq", msg, meta)
	}
	if got := AppendMeta(msg, brokers.Meta{Attempt: 1}); !reflect.DeepEqual(got[:3], dead) {
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
		{"attempt negative", h(Attempt, "-1"), brokers.Meta{}},
		{"attempt with sign", h(Attempt, "+3"), brokers.Meta{}},
		{"attempt hexadecimal", h(Attempt, "0x3"), brokers.Meta{}},
		{"attempt with spaces", h(Attempt, " 3"), brokers.Meta{}},
		{"attempt fraction", h(Attempt, "3.5"), brokers.Meta{}},
		{"attempt other digits", h(Attempt, "٣"), brokers.Meta{}},
		{"attempt empty", h(Attempt, ""), brokers.Meta{}},
		{"attempt huge", h(Attempt, "10001"), brokers.Meta{Attempt: 10000}},
		{"attempt overflow", h(Attempt, "99999999999999999999999"), brokers.Meta{Attempt: 10000}},
		{"attempt endless", h(Attempt, strings.Repeat("9", 1<<20)), brokers.Meta{}},
		{"attempt leading zeros", h(Attempt, "007"), brokers.Meta{Attempt: 7}},
		{"throttles huge", h(Throttles, "9223372036854775808"), brokers.Meta{Throttles: 10000}},
		{"redrive count huge", h(RedriveCount, "1000000"), brokers.Meta{RedriveCount: 10000}},
		{"due in year 9999", h(DueAt, "253402300799999"), brokers.Meta{DueAt: end}},
		{"due after year 9999", h(DueAt, "253402300800000"), brokers.Meta{}},
		{"due overflow", h(DueAt, "9223372036854775807"), brokers.Meta{}},
		{"due garbage", h(DueAt, "tomorrow"), brokers.Meta{}},
		{"due RFC 3339", h(DueAt, "2026-01-01T00:00:00Z"), brokers.Meta{}},
		{"due at the limit", h(DueAt, fmt.Sprint(end.UnixMilli())), brokers.Meta{DueAt: end}},
		{"due one past the limit", h(DueAt, fmt.Sprint(end.UnixMilli()+1)), brokers.Meta{DueAt: end}},
		{"delay huge", h(Delay, "9223372036854775807"), brokers.Meta{Delay: 15 * time.Minute}},
		{"delay negative", h(Delay, "-5"), brokers.Meta{}},
		{"failed in the future", h(FirstFailedAt, "253402300799999"), brokers.Meta{FirstFailedAt: now}},
		{"last failed in the future", h(LastFailedAt, "253402300799999"), brokers.Meta{LastFailedAt: now}},
		{"class unknown word", h(Class, "gold"), brokers.Meta{}},
		{"class case", h(Class, "Poison"), brokers.Meta{}},
		{"class huge", h(Class, strings.Repeat("poison", 1000)), brokers.Meta{}},
		{"key not UTF-8", h(IdempotencyKey, "a\xff"), brokers.Meta{}},
		{"key with NUL", h(IdempotencyKey, "a\x00b"), brokers.Meta{}},
		{"key with DEL", h(IdempotencyKey, "a\x7fb"), brokers.Meta{}},
		{"key with terminal escape", h(IdempotencyKey, "\x1b[31mred"), brokers.Meta{}},
		{"key with line feed", h(IdempotencyKey, "a\r\nSet-Cookie: b"), brokers.Meta{}},
		{"key with bidi override", h(IdempotencyKey, "a\u202eb"), brokers.Meta{}},
		{"key with line separator", h(IdempotencyKey, "a\u2028b"), brokers.Meta{}},
		{"key too long", h(IdempotencyKey, strings.Repeat("k", MaxName+1)), brokers.Meta{}},
		{"key of another script", h(IdempotencyKey, "заказ 一"), brokers.Meta{IdempotencyKey: "заказ 一"}},
		{"name is case-sensitive", h("Redrive-Attempt", "3"), brokers.Meta{}},
		{"repeated name", slices.Concat(h(Attempt, "3"), h(Attempt, "4")), brokers.Meta{Attempt: 4}},
		{"history empty entries", h(History, ";;;,,,,;"), brokers.Meta{}},
		{"history too few fields", h(History, "1,2,3"), brokers.Meta{}},
		{"history hostile fields", h(History, "99999999999,253402300799999,gold,a b,-1,,"), brokers.Meta{
			History: []brokers.Failure{{Attempt: 10000, At: now}}}},
		{"history long delay", h(History, "1,,,,99999999999999"), brokers.Meta{
			History: []brokers.Failure{{Attempt: 1, Delay: 15 * time.Minute}}}},
		{"history keeps what is good", h(History, "1,,poison,ab,1;bad;2,,poison,cd,2"), brokers.Meta{
			History: []brokers.Failure{
				{Attempt: 1, Class: "poison", Fingerprint: "ab", Delay: time.Millisecond},
				{Attempt: 2, Class: "poison", Fingerprint: "cd", Delay: 2 * time.Millisecond},
			}}},
		{"origin names and values", slices.Concat(
			h(Origin, "no name"), h(Origin+"a b", "space"), h(Origin+"é", "letter"), h(Origin+"a{", "bracket"), h(Origin+"nul", "\x00"), h(Origin+"empty", ""),
			h(Origin+strings.Repeat("n", MaxWord+1), "long"), h(Origin+"long", strings.Repeat("v", MaxShort+1)),
			brokers.Headers{{Name: Origin + "offset", Value: "1", Type: "\x1b"}},
		), brokers.Meta{Origin: brokers.Headers{{Name: "offset", Value: "1"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msg, got := SplitMeta(tt.headers, limits())
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("SplitMeta(%.80q)\n got %+v\nwant %+v", tt.headers, got, tt.want)
			}
			for _, header := range msg.Headers {
				if strings.HasPrefix(header.Name, Prefix) {
					t.Errorf("%q is left among the user's headers", header.Name)
				}
			}
		})
	}
}

func TestHostileMessageFields(t *testing.T) {
	msg, _ := SplitMeta(brokers.Headers{
		{Name: ID, Value: "a\x00"}, {Name: Key, Value: "\xff"}, {Name: Topic, Value: "a\nb"},
		{Name: PublishedAt, Value: "253402300799999"},
	}, limits())
	if want := (brokers.Message{PublishedAt: now}); !reflect.DeepEqual(msg, want) {
		t.Errorf("SplitMeta = %+v, want %+v", msg, want)
	}
	if got := AppendMeta(brokers.Message{ID: "a\x00", Topic: strings.Repeat("t", MaxName+1)}, brokers.Meta{}); len(got) != 0 {
		t.Errorf("AppendMeta writes what SplitMeta refuses: %q", got)
	}
}

func TestReadingIsBounded(t *testing.T) {
	var flood brokers.Headers
	for i := range 10_000 {
		flood = append(flood, brokers.Header{Name: Attempt, Value: fmt.Sprint(i)}, brokers.Header{Name: "user", Value: "x"})
	}
	msg, meta := SplitMeta(flood, limits())
	if len(msg.Headers) != 10_000 {
		t.Errorf("%d user headers are left, want 10000", len(msg.Headers))
	}
	if meta.Attempt != MaxEntries-1 {
		t.Errorf("Attempt = %d, want the last of the first %d headers", meta.Attempt, MaxEntries)
	}

	fat := brokers.Headers{{Name: History, Value: strings.Repeat(";", MaxBytes)}, {Name: Attempt, Value: "3"}}
	if _, meta := SplitMeta(fat, limits()); meta.Attempt != 3 || meta.History != nil {
		t.Errorf("a header over the byte limit: got %+v, want it skipped and the next one read", meta)
	}

	full := slices.Repeat(brokers.Headers{{Name: History, Value: strings.Repeat(";", 1<<10-len(History))}}, MaxBytes>>10)
	if _, meta := SplitMeta(append(full, brokers.Header{Name: Attempt, Value: "3"}), limits()); meta.Attempt != 0 {
		t.Errorf("after %d bytes of headers another is read: %+v", MaxBytes, meta)
	}

	var origin brokers.Headers
	for i := range 100 {
		origin = append(origin, brokers.Header{Name: fmt.Sprint("n", i), Value: "v"})
	}
	if got := AppendMeta(brokers.Message{}, brokers.Meta{Origin: origin}); len(got) != maxOrigin {
		t.Errorf("%d details of the origin are written, want %d", len(got), maxOrigin)
	}
	long := brokers.Meta{History: make([]brokers.Failure, 30)}
	for i := range long.History {
		long.History[i].Attempt = i + 1
	}
	written := AppendMeta(brokers.Message{}, long)
	if n := 1 + strings.Count(written.Get(History), ";"); n != HistoryLimit {
		t.Errorf("%d failures of 30 are written, want the last %d", n, HistoryLimit)
	}
	_, meta = SplitMeta(written, limits())
	if len(meta.History) != HistoryLimit || meta.History[0].Attempt != 21 {
		t.Errorf("history of 30 comes back as %+v, want the last %d", meta.History, HistoryLimit)
	}
}

func TestZeroLimitsHoldNothing(t *testing.T) {
	_, meta := SplitMeta(AppendMeta(brokers.Message{}, brokers.Meta{DueAt: now.Add(time.Hour), Delay: time.Hour}), Limits{Now: now, MaxDelay: -1})
	if !meta.DueAt.Equal(now) || meta.Delay != 0 {
		t.Errorf("without a MaxDelay: due %v, delay %v, want now and 0", meta.DueAt, meta.Delay)
	}
}

func TestText(t *testing.T) {
	tests := []struct {
		in, want string
		max      int
		cut      bool
	}{
		{"plain", "plain", 5, false},
		{"plain!", "pl…", 5, true},
		{"größer 一", "größer 一", 20, false},
		{"一一一", "一…", 8, true},
		{"a\nb\r\tc", `a\nb\r\tc`, 20, false},
		{"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, 30, false},
		{"nul\x00", `nul\x00`, 20, false},
		{"bad \xff\xfe", `bad \xff\xfe`, 20, false},
		{"cut \xe4\xb8", `cut \xe4\xb8`, 20, false},
		{"del \x7f", `del \x7f`, 20, false},
		{"c1 \u009b", `c1 \u009b`, 20, false},
		{"bidi \u202eevil", `bidi \u202eevil`, 20, false},
		{"line\u2028sep", `line\u2028sep`, 20, false},
		{"tag \U000e0001", `tag \U000e0001`, 20, false},
		{"\x00\x00", `…`, 6, true},
		{"abcdef", "", 2, true},
		{"", "", 0, false},
	}
	for _, tt := range tests {
		got, cut := Text(tt.in, tt.max)
		if got != tt.want || cut != tt.cut {
			t.Errorf("Text(%q, %d) = %q, %v, want %q, %v", tt.in, tt.max, got, cut, tt.want, tt.cut)
		}
		if again, _ := Text(got, tt.max); again != got {
			t.Errorf("Text(%q) = %q: it changes its own result", got, again)
		}
	}
	if got, _ := Lines("a\n\tb\r\x1b", 20); got != "a\n\tb\\r\\x1b" {
		t.Errorf("Lines = %q, want line feeds and tabs kept and the rest escaped", got)
	}
}

func TestReservedAndPartition(t *testing.T) {
	for name, want := range map[string]bool{
		ID: true, Packed: true, Attempt: true, Origin + "offset": true, DeadVersion: true,
		DeadPrefix + "attempt": true, DeadOrigin + "offset": true, ErrorStack: true,
		"redrive-": false, "redrive-color": false, "redrive-dlq-color": false, "redrive-error-color": false,
		"attempt": false, "": false, "Redrive-Id": false, "redrive-dlq-id": false, "traceparent": false,
	} {
		if got := Reserved(name); got != want {
			t.Errorf("Reserved(%q) = %v, want %v", name, got, want)
		}
	}
	h := brokers.Headers{{Name: "a", Value: "1"}, {Name: ID, Value: "2"}, {Name: "a", Value: "3"}, {Name: DeadReason, Value: "4"}}
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
		headers := AppendMeta(brokers.Message{ID: "x"}, meta)
		if _, got := SplitMeta(headers, limits()); !reflect.DeepEqual(got, meta) {
			t.Fatalf("seed %d\n got %+v\nwant %+v", seed, got, meta)
		}
		unpacked, err := Unpack(Pack(headers))
		if err != nil || !reflect.DeepEqual(unpacked, headers) {
			t.Fatalf("seed %d: packed form (%v)\n got %+v\nwant %+v", seed, err, unpacked, headers)
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
		Attempt: rng.IntN(maxCount + 1), Throttles: rng.IntN(6), FirstFailedAt: past(), LastFailedAt: past(),
		DueAt: now.Add(delay()), Delay: delay(), Class: classes[rng.IntN(len(classes))],
		IdempotencyKey: randomText(rng, 40), RedriveCount: rng.IntN(4),
	}
	for range rng.IntN(HistoryLimit + 1) {
		m.History = append(m.History, brokers.Failure{
			Attempt: rng.IntN(20), At: past(), Class: classes[rng.IntN(len(classes))], Fingerprint: fmt.Sprintf("%016x", rng.Uint64()), Delay: delay(), Ambiguous: rng.IntN(2) == 0,
		})
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
