package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func TestPack(t *testing.T) {
	h := brokers.Headers{
		{Name: nameID, Value: "7f3a"},
		{Name: "tenant", Value: "not ours"},
		{Name: nameAttempt, Value: "3"},
		{Name: "redrive-error-message", Value: `quote " and <tag>`},
		{Name: nameOrigin + "offset", Value: "42", Type: "long"},
		{Name: Packed, Value: "{}"},
	}
	packed := Pack(h)
	want := `{"id":"7f3a","attempt":"3","error-message":"quote \" and <tag>","origin-offset":["42","long"]}`
	if packed != want {
		t.Errorf("Pack =\n%s, want\n%s", packed, want)
	}
	got, err := Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	if want := (brokers.Headers{h[0], h[2], h[3], h[4]}); !reflect.DeepEqual(got, want) {
		t.Errorf("Unpack = %+v, want %+v", got, want)
	}
	if got, err := Unpack(Pack(nil)); err != nil || got != nil {
		t.Errorf("Unpack(Pack(nil)) = %v, %v, want nothing", got, err)
	}
}

func TestUnpackHostile(t *testing.T) {
	attempt := brokers.Headers{{Name: nameAttempt, Value: "3"}}
	tests := []struct {
		name, packed string
		want         brokers.Headers
		fails        bool
	}{
		{"empty", "", nil, true},
		{"not JSON", "attempt=3", nil, true},
		{"list", `["attempt","3"]`, nil, true},
		{"null", `null`, nil, true},
		{"open end", `{"attempt":"3"`, attempt, true},
		{"cut in a value", `{"attempt":"3","class":"po`, attempt, true},
		{"cut in a name", `{"attempt":"3","cla`, attempt, true},
		{"name is no string", `{"attempt":"3",1:"2"}`, attempt, true},
		{"foreign names", `{"attempt":"3","color":"red","":"x","meta":"{}"}`, attempt, false},
		{"foreign values", `{"attempt":"3","class":1,"id":{"a":[]},"key":["a"],"topic":["a",1]}`, attempt, false},
		{"deep nesting", `{"attempt":"3","id":` + strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000) + `}`, attempt, true},
		{"too large", `{"attempt":"` + strings.Repeat("3", maxPacked) + `"}`, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Unpack(tt.packed)
			if !reflect.DeepEqual(got, tt.want) || (err != nil) != tt.fails {
				t.Errorf("Unpack(%.60q) = %+v, %v, want %+v and an error: %v", tt.packed, got, err, tt.want, tt.fails)
			}
			if err != nil && !strings.Contains(err.Error(), Packed) {
				t.Errorf("error %q does not name the attribute", err)
			}
		})
	}
	many := "{" + strings.Repeat(`"attempt":"3",`, 1000) + `"id":"x"}`
	if got, err := Unpack(many); len(got) != maxEntries || err == nil {
		t.Errorf("1001 entries: %d headers, %v, want %d and an error", len(got), err, maxEntries)
	}
}

func TestPackedMetaIsReadAsSingleHeaders(t *testing.T) {
	msg, meta := full()
	user, b := EncodePacked(nil, msg, meta)
	single, packed := Encode(msg, meta), string(b)
	framework, err := Unpack(packed)
	if err != nil || !reflect.DeepEqual(framework, single[len(user):]) || !reflect.DeepEqual(user, msg.Headers) {
		t.Fatalf("Unpack = %+v, %v\nwant %+v", framework, err, single[len(user):])
	}
	if again := Pack(framework); again != packed {
		t.Errorf("EncodePacked = %s\nwant what Pack has: %s", packed, again)
	}
	wantMsg, wantMeta := Decode(single, limits())
	forged := brokers.Header{Name: Packed, Value: `{"id":"forged"}`}
	gotMsg, gotMeta := Decode(slices.Concat(brokers.Headers{forged}, user, brokers.Headers{{Name: Packed, Value: packed}}), limits())
	if !reflect.DeepEqual(gotMsg, wantMsg) || !reflect.DeepEqual(gotMeta, wantMeta) {
		t.Errorf("Decode = %+v %+v\nwant %+v %+v", gotMsg, gotMeta, wantMsg, wantMeta)
	}
	damaged := brokers.Headers{{Name: nameID, Value: "x"}, {Name: Packed, Value: packed[:len(packed)/2]}}
	if got, _ := Decode(damaged, limits()); got.ID != msg.ID || got.Topic != msg.Topic {
		t.Errorf("of a damaged one Decode read %q of %q, want what is before the damage", got.ID, got.Topic)
	}
}

// A packed header is no way around: where anyone may write, its progress is not
// read, and together with single headers it is bounded as they are.
func TestForgedPacked(t *testing.T) {
	msg, meta := full()
	forged := packedOf(msg, meta)[len(msg.Headers):]
	gotMsg, gotMeta := Decode(forged, anyone())
	wantMsg, wantMeta := Decode(Encode(brokers.Message{ID: msg.ID, Key: msg.Key, PublishedAt: msg.PublishedAt}, meta), anyone())
	if !reflect.DeepEqual(gotMsg, wantMsg) || !reflect.DeepEqual(gotMeta, wantMeta) || gotMsg.ID != msg.ID || gotMeta.Attempt != 0 {
		t.Errorf("Decode = %+v %+v\nwant what it reads of single headers: %+v %+v", gotMsg, gotMeta, wantMsg, wantMeta)
	}
	published := EncodeIdentity(brokers.Message{Headers: forged})
	if want := (brokers.Headers{{Name: nameIdempotencyKey, Value: meta.IdempotencyKey}, {Name: nameRedriveCount, Value: "2"}, {Name: nameSend, Value: meta.Send}}); !reflect.DeepEqual(published, want) {
		t.Errorf("EncodeIdentity = %+v, want %+v", published, want)
	}
	var crowd brokers.Headers
	for range maxEntries {
		crowd = append(crowd, brokers.Header{Name: nameAttempt, Value: "3"})
	}
	if got, gotMeta := Decode(append(crowd, forged...), limits()); got.ID != "" || gotMeta.Attempt != 3 {
		t.Errorf("behind %d headers Decode reads %+v %+v", maxEntries, got, gotMeta)
	}
}

func TestLookup(t *testing.T) {
	for packed, want := range map[string]string{
		`{"due-at":"1767225600123"}`:                              "1767225600123",
		`{"id":"x","due-at":"1767225600123","class":"transient"}`: "1767225600123",
		`{"id":",\"due-at\":\"7\"","due-at":"1767225600123"}`:     "1767225600123",
		`{"id":"{\"due-at\":\"7\""}`:                              "",
		`{"failed-at":"1767225600123","id":"x"}`:                  "",
		`{"due-at":"soon"}`:                                       "soon",
		`{"due-at":"`:                                             "",
		`"due-at":"1767225600123"`:                                "",
		``:                                                        "",
	} {
		if got := Lookup([]byte(packed), "redrive-due-at"); string(got) != want {
			t.Errorf("Lookup(%s) = %q, want %q", packed, got, want)
		}
	}
}
