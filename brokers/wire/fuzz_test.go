package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// headersOf reads one header per line, "name: value".
func headersOf(text string) brokers.Headers {
	var h brokers.Headers
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, ": ")
		h = append(h, brokers.Header{Name: name, Value: value})
	}
	return h
}

// packedOf are the headers of a copy that [EncodePacked] makes.
func packedOf(msg brokers.Message, meta brokers.Meta) brokers.Headers {
	user, packed := EncodePacked(nil, msg, meta)
	return append(slices.Clone(user), brokers.Header{Name: Packed, Value: string(packed)})
}

func FuzzDecode(f *testing.F) {
	msg, meta := full()
	var seed strings.Builder
	for _, h := range Encode(msg, meta) {
		seed.WriteString(h.Name + ": " + h.Value + "\n")
	}
	f.Add(seed.String(), int64(900))
	f.Add("redrive-attempt: 10\nredrive-death-reason: poison\nredrive-death-error-message: no \\x1b\nredrive-death-at: 9223372036854775807\nredrive-death-attempt: 1\nredrive-death-truncated: a,,b", int64(9))
	f.Add("redrive-attempt: -1\nredrive-due-at: 9223372036854775807\nredrive-history: 1,,,,;;2,3,4,5,6", int64(-1))
	f.Add("redrive-origin-: \xff\nredrive-origin-a: b\nredrive-dlq-v: 1\nredrive-meta: {}", int64(1<<40))
	f.Fuzz(func(t *testing.T, lines string, seconds int64) {
		limits := Limits{Now: now, MaxDelay: time.Duration(seconds%(1<<30)) * time.Second, Trusted: true}
		h := headersOf(lines)
		msg, meta := Decode(h, limits)
		checkMeta(t, meta, limits)
		kept := 0
		for _, header := range h {
			if !carried(header.Name) {
				if header != msg.Headers[kept] {
					t.Fatalf("user header %q became %q", header, msg.Headers[kept])
				}
				kept++
			}
		}
		if kept != len(msg.Headers) {
			t.Fatalf("%d user headers became %d", kept, len(msg.Headers))
		}
		msgAgain, metaAgain := Decode(Encode(msg, meta), limits)
		if !reflect.DeepEqual(metaAgain, meta) || !reflect.DeepEqual(msgAgain, msg) {
			t.Fatalf("written and read again\n got %+v %+v\nwant %+v %+v", msgAgain, metaAgain, msg, meta)
		}
		packed := packedOf(msg, meta)
		if got, want := packed.Get(Packed), Pack(Encode(msg, meta)[len(msg.Headers):]); got != want {
			t.Fatalf("EncodePacked = %s\nwant %s", got, want)
		}
		msgAgain, metaAgain = Decode(packed, limits)
		if !reflect.DeepEqual(metaAgain, meta) || !reflect.DeepEqual(msgAgain, msg) {
			t.Fatalf("packed and read again\n got %+v %+v\nwant %+v %+v", msgAgain, metaAgain, msg, meta)
		}
	})
}

func checkMeta(t *testing.T, m brokers.Meta, limits Limits) {
	t.Helper()
	longest := max(limits.MaxDelay, 0)
	for name, n := range map[string]int{"attempt": m.Attempt, "throttles": m.Throttles, "crashes": m.Crashes, "redrive count": m.RedriveCount} {
		if n < 0 || n > text.MaxCount {
			t.Errorf("%s %d is out of bounds", name, n)
		}
	}
	if m.DueAt.After(limits.Now.Add(longest)) || m.Delay < 0 || m.Delay > longest {
		t.Errorf("due %v, delay %v: later than %v after %v", m.DueAt, m.Delay, longest, limits.Now)
	}
	if m.FirstFailedAt.After(limits.Now) || m.LastFailedAt.After(limits.Now) {
		t.Errorf("failures in the future: %v, %v", m.FirstFailedAt, m.LastFailedAt)
	}
	if len(m.History) > maxHistory || len(m.Origin) > maxOrigin {
		t.Errorf("%d failures and %d details are too many", len(m.History), len(m.Origin))
	}
	texts := []string{m.IdempotencyKey, m.Class, m.Send}
	if d := m.Death; d != nil {
		texts = append(texts, d.Reason, d.By, d.ErrorType, d.ErrorCode, d.Fingerprint, d.Rule)
		if d.Reason == "" || d.Attempt < 0 || d.Attempt > text.MaxCount || d.Abandoned < 0 || d.At.After(limits.Now) || d.DueAt.After(limits.Now.Add(longest)) ||
			!text.IsLine(d.ErrorText, text.MaxError) || !text.IsLines(d.Stack, text.MaxStack) || len(d.Truncated) > 16 {
			t.Errorf("death out of bounds: %+v", d)
		}
	}
	for _, h := range m.Origin {
		texts = append(texts, h.Name, h.Value, h.Type)
	}
	for _, s := range texts {
		if !text.IsLine(s, text.MaxName) {
			t.Errorf("unsafe text %q", s)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	msg, meta := full()
	f.Add(Pack(Encode(msg, meta)))
	f.Add(`{"attempt":"3","origin-offset":["42","long"],"color":"red","id":null}`)
	f.Add(`{"attempt":"3",`)
	f.Add(`[]`)
	f.Add(`{"id":"a\u0000b","key":"\"\\","due-at":"1767225600000"}`)
	f.Add("{\"id\":\"\xff\",\"due-at\":\"1\"}")
	f.Fuzz(func(t *testing.T, packed string) {
		h, err := Unpack(packed)
		if len(h) > maxEntries {
			t.Fatalf("%d headers", len(h))
		}
		for _, header := range h {
			if !reserved(header.Name) || header.Name == Packed {
				t.Fatalf("header %q is not ours", header.Name)
			}
		}
		if _, ok := appendPlain(nil, packed); ok {
			slow, slowErr := unpackJSON(packed)
			if err != nil || slowErr != nil || !reflect.DeepEqual(slow, h) {
				t.Fatalf("the two ways to read differ\n got %+v, %v\nwant %+v, %v", h, err, slow, slowErr)
			}
		}
		again, err := Unpack(Pack(h))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("packed again (%v)\n got %+v\nwant %+v", err, again, h)
		}
		due := slices.IndexFunc(h, func(header brokers.Header) bool { return header.Name == nameDueAt && header.Type == "" })
		if due < 0 {
			return
		}
		if got, want := text.Time(string(Lookup([]byte(Pack(h)), nameDueAt))), text.Time(h[due].Value); !got.Equal(want) {
			t.Fatalf("Lookup = %v, the first header that says it %v", got, want)
		}
	})
}
