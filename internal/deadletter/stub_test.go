package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
)

var died = time.UnixMilli(1_767_225_600_123).UTC()

// full is an entry with what a stub keeps or cuts.
func full() dlq.Entry {
	return dlq.Entry{
		Message: brokers.Message{ID: "7f3a-1", Topic: "orders", Key: "customer-9", Headers: brokers.Headers{{Name: "tenant", Value: "a"}}},
		Meta: brokers.Meta{
			Attempt: 10, Class: "transient", IdempotencyKey: "order-8471", History: []brokers.Failure{{Attempt: 10, Class: "transient"}},
			Origin: brokers.Headers{{Name: "partition", Value: "3"}, {Name: "offset", Value: "42", Type: "long"}},
		},
		Reason: "exhausted", ErrorType: "*net.OpError", ErrorCode: "ECONNREFUSED",
		ErrorText: "dial tcp 127.0.0.1:5432: connect: connection refused",
		Stack:     "panic(...)\n", Fingerprint: "9f86d081884c7d65",
		Rule: "errno ECONNREFUSED", Group: "billing", DeadAt: died, DeadBy: "worker-1/4711", Truncated: []string{"error-code"},
	}
}

// A stub tells of its message what somebody needs who looks for it.
func TestStubTellsOfTheMessage(t *testing.T) {
	e := full()
	e.Message.Body = []byte(strings.Repeat("0123456789", 100))
	before := full()
	before.Message.Body = e.Message.Body
	got, err := dlq.Decode(Stub(e).Encode(0))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(e, before) {
		t.Errorf("Stub changed its entry: %+v", e)
	}
	sum := sha256.Sum256(e.Message.Body)
	want := dlq.Original{BodyBytes: 1000, HeaderBytes: size(e.Message.Headers), BodySHA256: hex.EncodeToString(sum[:])}
	if got.Original == nil || *got.Original != want {
		t.Errorf("Original = %+v, want %+v", got.Original, want)
	}
	if m := got.Message; m.ID != "7f3a-1" || m.Key != "customer-9" || m.Topic != "orders" || len(m.Headers) != 0 || string(m.Body) != string(e.Message.Body[:512]) {
		t.Errorf("the message is %+v", m)
	}
	if got.Reason != "exhausted" || got.Meta.Class != "transient" || got.Meta.Attempt != 10 || !reflect.DeepEqual(got.Meta.Origin, e.Meta.Origin) ||
		got.ErrorText != e.ErrorText || !got.DeadAt.Equal(died) || got.DeadBy != e.DeadBy || got.Fingerprint != e.Fingerprint {
		t.Errorf("the stub says %+v", got)
	}
	if again := Stub(got); !reflect.DeepEqual(again, got) {
		t.Errorf("the stub of a stub is %+v\nwant %+v", again, got)
	}
	if other, _ := dlq.Decode(full().Encode(0)); other.Original != nil {
		t.Errorf("a dead letter that is no stub has an Original")
	}
}

// Whatever the message, its stub is small and has nothing that a broker refuses.
func TestAttackStubsAlwaysFit(t *testing.T) {
	for _, piece := range []string{"x", "\x00", "\x1b[2J", "\xff", "\u202e", "\ufffe", "ä", "🙂", "\r\n", "%"} {
		long := strings.Repeat(piece, 1<<18)
		e := full()
		e.Message = brokers.Message{ID: long, Key: long, Topic: long, Body: []byte(long), Headers: brokers.Headers{{Name: long, Value: long}}}
		e.Reason, e.ErrorType, e.ErrorCode, e.Fingerprint, e.Rule, e.Group, e.DeadBy = long, long, long, long, long, long, long
		e.ErrorText, e.Stack, e.Meta.IdempotencyKey, e.Meta.Class = long, long, long, long
		SetError(&e, &classify.PanicError{Value: long, Stack: []byte(long)}, classify.Verdict{Code: long, Rule: long}, nil, true)
		for range 100 {
			e.Meta.Origin = append(e.Meta.Origin, brokers.Header{Name: "detail", Value: long})
			e.Meta.History = append(e.Meta.History, brokers.Failure{Class: long, Fingerprint: long})
		}
		if Stub(e).Meta.Origin != nil {
			t.Errorf("of %q: the details of the origin are not bounded", piece)
		}
		e.Meta.Origin = nil
		for range 16 {
			e.Meta.Origin = append(e.Meta.Origin, brokers.Header{Name: "detail", Value: "26 bytes of text per value"})
		}
		e.Message.Key = strings.Repeat("k", 128)
		m := Stub(e).Encode(0)
		if size := len(m.ID) + len(m.Key) + len(m.Body) + size(m.Headers); size > 4<<10 {
			t.Errorf("of %q: %d bytes, want 4096 at most", piece, size)
		}
		if len(Stub(e).Meta.Origin) != 16 || m.Key == "" {
			t.Errorf("of %q: key and origin are lost", piece)
		}
		for _, h := range append(slices.Clone(m.Headers), brokers.Header{Name: "id", Value: m.ID}, brokers.Header{Name: "key", Value: m.Key}) {
			if !utf8.ValidString(h.Value) {
				t.Errorf("of %q: %s is not UTF-8", piece, h.Name)
			}
			if len(h.Value) > 1<<10 || strings.ContainsFunc(h.Value, unicode.IsControl) {
				t.Errorf("of %q: %s is unsafe: %q", piece, h.Name, h.Value)
			}
		}
		if got, err := dlq.Decode(m); err != nil || got.Original == nil || got.Original.BodyBytes != len(long) {
			t.Errorf("of %q: Decode = %+v, %v", piece, got.Original, err)
		}
	}
}
