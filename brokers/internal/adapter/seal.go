package adapter

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// Secret is the keys that the workers of a topic share, for Options of an
// adapter: the first one signs, all of them verify. It is never printed, also
// not as a field of what is printed.
type Secret [][]byte

const (
	leastKey = sha256.Size // bytes
	mostKeys = 8           // each costs the reader of a forged message a hash of it

	hidden = "[hidden]"
)

// String says nothing of the keys.
func (s Secret) String() string { return hidden }

// Format implements fmt.Formatter for every verb, %#v and %x included.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, hidden) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText keeps the keys out of JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Seal returns what signs and verifies with the keys: of nil, the seal that
// believes everything. Its error says which key is no good, and not what it is.
func (s Secret) Seal() (Seal, error) {
	switch {
	case s == nil:
		return Seal{}, nil
	case len(s) == 0:
		return Seal{}, errors.New("the list Options.Secret has no key: add one, such as the output of `openssl rand 32`, or leave it nil")
	case len(s) > mostKeys:
		return Seal{}, fmt.Errorf("the list Options.Secret has %d keys: use at most %d", len(s), mostKeys)
	}
	var seal Seal
	for i, key := range s {
		if len(key) < leastKey {
			return Seal{}, fmt.Errorf("the key Options.Secret[%d] has %d bytes: use at least %d random ones, such as the output of `openssl rand 32`", i, len(key), leastKey)
		}
		key = slices.Clone(key)
		seal.keys = append(seal.keys, func(text []byte) []byte {
			mac := hmac.New(sha256.New, key)
			mac.Write(text)
			return mac.Sum(nil)
		})
	}
	return seal, nil
}

// Seal signs the progress that a worker writes into the copy of a message, and
// tells it from what others write. The zero Seal signs nothing and believes
// everything.
//
// A signature is over the topic of the message and its ID, as the adapter passes
// them, the SHA-256 of the body, and the carried headers, single or packed, in any
// order. It is not over the headers of the user, types, the trace, or the record of
// a dead letter. It does not end: whoever has seen a signed copy can send it again.
//
// The headers of a Death have a signature of their own, which covers the first
// signature, too. So a worker of a version without Death believes the other
// headers.
type Seal struct {
	keys []func(text []byte) []byte // its HMAC by each key: functions, so that no key is printed
}

// SignatureHeader is the one that Sign adds. What it holds is
//
//	"1." 43*43( ALPHA / DIGIT / "-" / "_" )
//
// the version of the grammar, and the HMAC-SHA256 in base64 for URLs.
const SignatureHeader = "redrive-signature"

const signatureVersion = "1."

// SignatureSize returns the bytes that SignPacked adds to a text with the headers
// h.
func SignatureSize(h brokers.Headers) int {
	value := len(signatureVersion) + base64.RawURLEncoding.EncodedLen(sha256.Size)
	size := len(`,"signature":""`) + value
	if hasDeath(h) {
		size += len(`,"death-signature":""`) + value
	}
	return size
}

func hasDeath(h brokers.Headers) bool {
	return slices.ContainsFunc(h, func(header brokers.Header) bool { return wire.IsDeath(header.Name) })
}

// Signs reports whether there is a key.
func (s Seal) Signs() bool { return len(s.keys) > 0 }

// Sign returns h, all carried headers of a copy as they are sent, with the
// signatures behind them. ID is "" where h alone has it.
func (s Seal) Sign(h brokers.Headers, topic, id string, body []byte) brokers.Headers {
	if !s.Signs() {
		return h
	}
	return append(slices.Clip(h), s.signatures(h, topic, id, body)...)
}

// SignPacked is Sign for what [wire.EncodePacked] has appended to nothing.
func (s Seal) SignPacked(packed []byte, topic, id string, body []byte) []byte {
	if !s.Signs() || len(packed) < 2 {
		return packed
	}
	h, _ := wire.Unpack(string(packed)) // as the reader does
	end := packed[:len(packed)-1]
	for _, signature := range s.signatures(h, topic, id, body) {
		if len(end) > 1 {
			end = append(end, ',')
		}
		end = fmt.Appendf(end, `%q:%q`, strings.TrimPrefix(signature.Name, "redrive-"), signature.Value)
	}
	return append(end, '}')
}

func (s Seal) signatures(h brokers.Headers, topic, id string, body []byte) brokers.Headers {
	notes := carried(h)
	sign := func(text []byte) string {
		return signatureVersion + base64.RawURLEncoding.EncodeToString(s.keys[0](text))
	}
	all := brokers.Headers{{Name: SignatureHeader, Value: sign(canonical(notes, topic, id, body))}}
	if hasDeath(notes) {
		all = append(all, brokers.Header{Name: wire.DeathSignature, Value: sign(canonicalDeath(notes, all[0].Value))})
	}
	return all
}

// Believes reports whether one of the keys has signed the carried headers among h
// for this message. The topic, the ID and the body are as they were passed to
// Sign. Without a key it is true.
func (s Seal) Believes(h brokers.Headers, topic, id string, body []byte) bool {
	if !s.Signs() {
		return true
	}
	notes := carried(h)
	return s.signed(notes, SignatureHeader, canonical(notes, topic, id, body)) &&
		(!hasDeath(notes) || s.signed(notes, wire.DeathSignature, canonicalDeath(notes, notes.Get(SignatureHeader))))
}

// Progress returns the headers to read of h, all single, and whether they are
// believed. A worker of an earlier version passes the headers of a death on, and
// signs only the others anew. Then the headers of the death are left out.
func (s Seal) Progress(h brokers.Headers, topic, id string, body []byte) (brokers.Headers, bool) {
	if s.Believes(h, topic, id, body) {
		return h, true
	}
	living := slices.DeleteFunc(slices.Clone(h), func(header brokers.Header) bool { return wire.IsDeath(header.Name) })
	return living, s.Believes(living, topic, id, body)
}

// signed reports whether notes have one signature of this name, and one of the
// keys has signed text with it.
func (s Seal) signed(notes brokers.Headers, name string, text []byte) bool {
	signature, ok := parseSignature(notes, name)
	return ok && slices.ContainsFunc(s.keys, func(key func([]byte) []byte) bool { return hmac.Equal(signature, key(text)) })
}

// parseSignature reads the one signature of this name among h.
func parseSignature(h brokers.Headers, name string) (sum []byte, ok bool) {
	for _, header := range h {
		if header.Name != name {
			continue
		}
		text, known := strings.CutPrefix(header.Value, signatureVersion)
		if ok || !known || len(text) != base64.RawURLEncoding.EncodedLen(sha256.Size) {
			return nil, false
		}
		var err error
		if sum, err = base64.RawURLEncoding.Strict().DecodeString(text); err != nil || len(sum) != sha256.Size {
			return nil, false
		}
		ok = true
	}
	return sum, ok
}

// carried returns the carried headers among h as [wire.Decode] finds them: single
// ones, and those of the last packed one.
func carried(h brokers.Headers) brokers.Headers {
	_, framework := wire.Partition(h)
	notes := make(brokers.Headers, 0, len(framework)+8)
	packed := ""
	add := func(header brokers.Header) {
		switch {
		case header.Name == wire.Packed:
			packed = header.Value
		case !strings.HasPrefix(header.Name, "redrive-dlq-") && !strings.HasPrefix(header.Name, "redrive-error-"):
			notes = append(notes, header)
		}
	}
	for _, header := range framework {
		add(header)
	}
	if packed != "" {
		inside, _ := wire.Unpack(packed)
		for _, header := range inside {
			add(header)
		}
	}
	return notes
}

// canonical is the text that is signed: each part after its length, so that no two
// messages have the same.
func canonical(notes brokers.Headers, topic, id string, body []byte) []byte {
	sum := sha256.Sum256(body)
	notes = slices.DeleteFunc(slices.Clone(notes), func(h brokers.Header) bool {
		return h.Name == SignatureHeader || h.Name == wire.Traceparent || wire.IsDeath(h.Name)
	})
	return joined(notes, SignatureHeader, signatureVersion, topic, id, string(sum[:]))
}

// canonicalDeath is the text that is signed for a Death: its headers, and the
// signature of the message that they belong to.
func canonicalDeath(notes brokers.Headers, signature string) []byte {
	notes = slices.DeleteFunc(slices.Clone(notes), func(h brokers.Header) bool { return h.Name == wire.DeathSignature || !wire.IsDeath(h.Name) })
	return joined(notes, wire.DeathSignature, signatureVersion, signature)
}

func joined(notes brokers.Headers, parts ...string) []byte {
	slices.SortStableFunc(notes, func(a, b brokers.Header) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Value, b.Value))
	})
	text := make([]byte, 0, 256+Size(notes)+8*len(notes))
	put := func(part string) {
		text = binary.BigEndian.AppendUint32(text, uint32(len(part)))
		text = append(text, part...)
	}
	for _, part := range parts {
		put(part)
	}
	for _, note := range notes {
		put(note.Name)
		put(note.Value)
	}
	return text
}
