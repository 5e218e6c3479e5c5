package adapter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

var (
	oldKey = bytes.Repeat([]byte("o"), 32)
	newKey = bytes.Repeat([]byte("n"), 32)
)

func sealOf(t testing.TB, keys ...[]byte) Seal {
	t.Helper()
	seal, err := Secret(keys).Seal()
	if err != nil {
		t.Fatal(err)
	}
	return seal
}

func copied() (brokers.Message, brokers.Meta) {
	return brokers.Message{ID: "7f3a", Topic: "orders", Body: []byte("body"), Headers: brokers.Headers{{Name: "content-type", Value: "text"}}},
		brokers.Meta{Attempt: 3, DueAt: time.UnixMilli(1767225600000), Class: "transient", Origin: brokers.Headers{{Name: "offset", Value: "42", Type: "long"}}}
}

// TestSeal signs headers, single and packed, and believes these alone.
func TestSeal(t *testing.T) {
	m, meta := copied()
	seal := sealOf(t, oldKey)
	single := seal.Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	user, packed := wire.EncodePacked(nil, m, meta)
	inOne := append(user, brokers.Header{Name: wire.Packed, Value: string(seal.SignPacked(packed, m.Topic, m.ID, m.Body))})
	if grown := len(inOne.Get(wire.Packed)) - len(packed); grown != SignatureSize(single) {
		t.Errorf("a signature takes %d bytes, not SignatureSize", grown)
	}
	for name, h := range map[string]brokers.Headers{"single": single, "packed": inOne} {
		believes := func(what string, want bool, h brokers.Headers, topic, id, body string) {
			t.Helper()
			if got := seal.Believes(h, topic, id, []byte(body)); got != want {
				t.Errorf("%s, %s: believed %t, want %t", name, what, got, want)
			}
		}
		believes("as it was", true, h, "orders", "7f3a", "body")
		believes("another topic", false, h, "admin", "7f3a", "body")
		believes("another ID", false, h, "orders", "7f3", "body")
		believes("another body", false, h, "orders", "7f3a", "bod")
		believes("parts moved", false, h, "orders7", "f3a", "body")
		believes("headers of the user", true, append(h[:len(h):len(h)], brokers.Header{Name: "b", Value: "1"}), "orders", "7f3a", "body")
		believes("another trace", true, append(h[:len(h):len(h)], brokers.Header{Name: wire.Traceparent, Value: "00-1-2-01"}), "orders", "7f3a", "body")
		believes("another death", true, append(h[:len(h):len(h)], brokers.Header{Name: "redrive-dlq-v", Value: "1"}), "orders", "7f3a", "body")
		for _, extra := range []string{"redrive-attempt", "redrive-origin-x", "redrive-id", SignatureHeader, wire.Packed} {
			value := map[string]string{SignatureHeader: single.Get(SignatureHeader), wire.Packed: `{"attempt":"9"}`}[extra]
			if value == "" {
				value = "9"
			}
			unread := name == "packed" && extra == wire.Packed // the last one counts
			believes(extra+" before", unread, append(brokers.Headers{{Name: extra, Value: value}}, h...), "orders", "7f3a", "body")
			believes(extra+" behind", false, append(h[:len(h):len(h)], brokers.Header{Name: extra, Value: value}), "orders", "7f3a", "body")
		}
	}
	read, got := wire.Decode(inOne, wire.Limits{Now: meta.DueAt, MaxDelay: time.Hour, Trusted: true})
	if got.Attempt != 3 || len(read.Headers) != 1 {
		t.Errorf("a signed copy reads as %+v with %v", got, read.Headers)
	}
}

// TestSealWithDamage believes no signature that is not whole, and none that others
// could have made.
func TestSealWithDamage(t *testing.T) {
	m, meta := copied()
	seal := sealOf(t, oldKey)
	h := seal.Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	good := h.Get(SignatureHeader)
	last := good[:len(good)-1]
	for _, value := range []string{
		"", "1", "1.", last, good + "A", good[2:], "2" + good[1:], " " + good, strings.ToUpper(good), "1." + strings.Repeat("A", 43),
		"1." + strings.Repeat("!", 43), last + "=", last + "\n", good + good,
		last + string(good[len(good)-1]+1), // the same bytes in lenient base64, or others
		sealOf(t, newKey).Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body).Get(SignatureHeader),
	} {
		if seal.Believes(h.With(SignatureHeader, value), m.Topic, m.ID, m.Body) {
			t.Errorf("the signature %q is believed, want only %q", value, good)
		}
	}
	if seal.Believes(h.Without(SignatureHeader), m.Topic, m.ID, m.Body) {
		t.Error("a message without a signature is believed")
	}
	for i, header := range h {
		if !strings.HasPrefix(header.Name, "redrive-") {
			continue
		}
		changed := append(brokers.Headers(nil), h...)
		changed[i].Value += "0"
		if seal.Believes(changed, m.Topic, m.ID, m.Body) {
			t.Errorf("another %s is believed", header.Name)
		}
		if seal.Believes(append(changed[:i:i], changed[i+1:]...), m.Topic, m.ID, m.Body) {
			t.Errorf("without its %s it is believed", header.Name)
		}
	}
}

// TestSealOfADeath checks that a Death has a signature of its own. A worker of a
// version without Death believes the other headers. A worker that knows Death
// believes no header if one of the signatures is wrong.
func TestSealOfADeath(t *testing.T) {
	m, meta := copied()
	seal := sealOf(t, oldKey)
	alive := seal.Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	meta.Death = &brokers.Death{Reason: "poison", ErrorText: "no article", Attempt: 1}
	single := seal.Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	user, packed := wire.EncodePacked(nil, m, meta)
	signed := seal.SignPacked(packed, m.Topic, m.ID, m.Body)
	if grown := len(signed) - len(packed); grown != SignatureSize(single) {
		t.Errorf("the signatures take %d bytes, not SignatureSize", grown)
	}
	inOne := append(user, brokers.Header{Name: wire.Packed, Value: string(signed)})
	for name, h := range map[string]brokers.Headers{"single": single, "packed": inOne} {
		if !seal.Believes(h, m.Topic, m.ID, m.Body) || seal.Believes(h, m.Topic, m.ID, []byte("other")) {
			t.Errorf("%s: want it believed for its own message, and for no other", name)
		}
	}
	if before := alive.Get(SignatureHeader); single.Get(SignatureHeader) != before {
		t.Errorf("with a death the signature is %s, but a worker of a version without Death expects %s", single.Get(SignatureHeader), before)
	}
	for i, header := range single {
		if !wire.IsDeath(header.Name) {
			continue
		}
		changed := append(brokers.Headers(nil), single...)
		changed[i].Value = "2"
		if seal.Believes(changed, m.Topic, m.ID, m.Body) || seal.Believes(append(changed[:i:i], changed[i+1:]...), m.Topic, m.ID, m.Body) {
			t.Errorf("a copy with another %s, or without it, is believed", header.Name)
		}
	}
	forged := append(alive[:len(alive):len(alive)], brokers.Header{Name: "redrive-death-reason", Value: "poison"})
	if seal.Believes(forged, m.Topic, m.ID, m.Body) {
		t.Error("an unsigned death is believed beside a signature of the other headers")
	}
	if h, ok := seal.Progress(forged, m.Topic, m.ID, m.Body); !ok || hasDeath(h) || len(h) != len(alive) {
		t.Errorf("of a signed copy with a death that nobody signed %v is read, believed %t; want the rest, believed", h, ok)
	}
	if h, ok := seal.Progress(single, m.Topic, m.ID, m.Body); !ok || len(h) != len(single) {
		t.Errorf("of a signed copy with a death %v is read, believed %t; want all, believed", h, ok)
	}
	if h, ok := seal.Progress(single, m.Topic, m.ID, []byte("other")); ok || hasDeath(h) {
		t.Errorf("of another copy %v is read, believed %t; want no death, and nothing believed", h, ok)
	}
	other := m
	other.Body = []byte("other")
	h := seal.Sign(wire.Encode(other, meta), m.Topic, m.ID, other.Body)
	if seal.Believes(h.With(wire.DeathSignature, single.Get(wire.DeathSignature)), m.Topic, m.ID, other.Body) {
		t.Error("the death of another message is believed")
	}
}

// TestRotation has no time at which a worker does not believe another one.
func TestRotation(t *testing.T) {
	m, meta := copied()
	steps := [][][]byte{{oldKey}, {oldKey, newKey}, {newKey, oldKey}, {newKey}}
	for i := range steps {
		for j := max(0, i-1); j <= min(i+1, len(steps)-1); j++ {
			h := sealOf(t, steps[i]...).Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
			if !sealOf(t, steps[j]...).Believes(h, m.Topic, m.ID, m.Body) {
				t.Errorf("a worker of step %d does not believe one of step %d", j, i)
			}
		}
	}
	h := sealOf(t, steps[3]...).Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	if sealOf(t, steps[0]...).Believes(h, m.Topic, m.ID, m.Body) {
		t.Error("a key that nobody knows is believed")
	}
}

// TestNoSecret signs nothing and believes all.
func TestNoSecret(t *testing.T) {
	m, meta := copied()
	var seal Seal
	h := wire.Encode(m, meta)
	if got := seal.Sign(h, m.Topic, m.ID, m.Body); len(got) != len(h) || seal.Signs() {
		t.Errorf("signed without a key: %v", got)
	}
	if got := seal.SignPacked([]byte("{}"), m.Topic, m.ID, m.Body); string(got) != "{}" {
		t.Errorf("signed without a key: %s", got)
	}
	if !seal.Believes(h, m.Topic, m.ID, m.Body) {
		t.Error("without a key progress is not believed")
	}
}

func TestSecretIsChecked(t *testing.T) {
	long := bytes.Repeat([]byte("k"), 32)
	for want, secret := range map[string]Secret{
		"has no key":            {},
		"Options.Secret[0] has": {nil},
		"Options.Secret[1] has": {long, []byte("hunter2")},
		"at most 8":             {long, long, long, long, long, long, long, long, long},
	} {
		_, err := secret.Seal()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%d keys: %v, want %q and no key", len(secret), err, want)
		}
	}
	key := bytes.Clone(long)
	seal := sealOf(t, key)
	m, meta := copied()
	h := seal.Sign(wire.Encode(m, meta), m.Topic, m.ID, m.Body)
	clear(key)
	if !seal.Believes(h, m.Topic, m.ID, m.Body) {
		t.Error("the seal changes with the memory of the key")
	}
}

// TestSecretIsNotPrinted by anything that prints what it is in.
func TestSecretIsNotPrinted(t *testing.T) {
	type options struct {
		Secret Secret
		seal   Seal
	}
	secret := Secret{[]byte("hunter2hunter2hunter2hunter2hunter2")}
	o := options{secret, sealOf(t, secret...)}
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o"} {
		fmt.Fprintf(&b, verb+verb+verb+verb, o, &o, o.Secret, &o.seal)
	}
	fmt.Fprint(&b, o.Secret.String())
	slog.New(slog.NewTextHandler(&b, nil)).Info("text", "options", o, "secret", secret)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("json", "options", o, "secret", secret)
	text, err := json.Marshal(o)
	b.Write(text)
	for _, leak := range []string{"hunter2", "68756e74657232", "68756E74657232", "104 117 110", "0x68", "aHVudGVyM", "150 165"} {
		if strings.Contains(b.String(), leak) || err != nil {
			t.Errorf("%q is printed (%v):\n%s", leak, err, &b)
		}
	}
}

func FuzzSeal(f *testing.F) {
	f.Add("1."+strings.Repeat("A", 43), `{"attempt":"9"}`, "redrive-attempt", "3", "orders", "id", []byte("x"))
	f.Add("1.x", `{"signature":"1.`+strings.Repeat("A", 43)+`"}`, SignatureHeader, "", "", "", []byte(nil))
	f.Fuzz(func(t *testing.T, signature, packed, name, value, topic, id string, body []byte) {
		seal := sealOf(t, oldKey)
		h := brokers.Headers{{Name: name, Value: value}, {Name: wire.Packed, Value: packed}}
		if seal.Believes(append(h, brokers.Header{Name: SignatureHeader, Value: signature}), topic, id, body) {
			t.Fatal("a forged signature is believed")
		}
		for _, header := range carried(h) {
			if header.Name == SignatureHeader || header.Name == wire.DeathSignature {
				return
			}
		}
		signed := seal.Sign(h, topic, id, body)
		if !seal.Believes(signed, topic, id, body) {
			t.Fatal("the own signature is not believed")
		}
		if seal.Believes(signed, topic+"x", id, body) || seal.Believes(signed, topic, id+"x", body) || seal.Believes(signed, topic, id, append(body, 0)) {
			t.Fatal("a signature of something else is believed")
		}
	})
}
