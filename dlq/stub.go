package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// Original is what a stub says of the message that it stands for.
type Original struct {
	// BodyBytes is the size of the body, HeaderBytes that of the names and
	// values of the producer's headers.
	BodyBytes, HeaderBytes int

	// BodySHA256 is the SHA-256 of the body, in hex.
	BodySHA256 string
}

// whereabouts is the value of the header that says that a dead letter is a stub.
const whereabouts = "The original is where the broker keeps what it dead-letters itself of redrive-dlq-topic, or, if that refuses it, still there."

// Bounds in bytes of what is in a stub.
const (
	stubID     = 128 // and of the key
	stubBody   = 512
	stubText   = 256
	stubShort  = 64  // names of types, groups, instances, rules
	stubOrigin = 512 // all details together
)

// Stub returns the dead letter that stands for a message which the broker never
// takes with its story, because of its size, its headers or its characters. It
// is to be read, not to be sent back: the original has to be kept elsewhere, so
// it says where that is, how large, and what its hash is, in Entry.Original.
//
// Its Message has the ID, escaped and cut to 128 bytes; the key, if that is text
// of 128 bytes or less; the first 512 bytes of the body; and none of the
// producer's headers. Of the story, long texts are cut and the history goes.
// Encoded, all of it takes less than 4 KiB. The stub of a stub is the same.
func (e Entry) Stub() Entry {
	if e.Original != nil {
		return e
	}
	sum := sha256.Sum256(e.Message.Body)
	e.Original = &Original{BodyBytes: len(e.Message.Body), HeaderBytes: sizeOf(e.Message.Headers), BodySHA256: hex.EncodeToString(sum[:])}
	e.Truncated = nil
	m := &e.Message
	m.Headers = nil
	m.ID = e.text("id", m.ID, stubID)
	if !text.IsLine(m.Key, stubID) {
		m.Key = ""
		e.Truncated = append(e.Truncated, "key")
	}
	if len(m.Body) > stubBody {
		m.Body = m.Body[:stubBody:stubBody]
		e.Truncated = append(e.Truncated, "body")
	}
	for _, f := range e.fields() {
		switch f.header {
		case headerReason, headerTopic, headerFingerprint: // which are short, or needed
		case headerMessage:
			*f.text = e.text(f.name(), *f.text, stubText)
		default:
			*f.text = e.text(f.name(), *f.text, stubShort)
		}
	}
	if sizeOf(e.Meta.Origin) > stubOrigin {
		e.Meta.Origin = nil
		e.Truncated = append(e.Truncated, "origin")
	}
	e.Stack, e.Meta.History, e.Meta.IdempotencyKey = "", nil, ""
	return e
}

func sizeOf(h brokers.Headers) (n int) {
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}

// put writes what a stub says. A dead letter that is none says nothing.
func (o *Original) put(put func(name, value string)) {
	if o == nil {
		return
	}
	put(headerStub, whereabouts)
	put(headerBodyBytes, strconv.Itoa(max(o.BodyBytes, 0)))
	put(headerHeaderBytes, strconv.Itoa(max(o.HeaderBytes, 0)))
	if isHash(o.BodySHA256) {
		put(headerBodyHash, o.BodySHA256)
	}
}

// originalOf is what a record says of the original, nil if it is of no stub.
func originalOf(record brokers.Headers) *Original {
	if record.Get(headerStub) == "" {
		return nil
	}
	body, _ := text.Number(record.Get(headerBodyBytes))
	headers, _ := text.Number(record.Get(headerHeaderBytes))
	o := &Original{BodyBytes: int(body), HeaderBytes: int(headers)}
	if sum := record.Get(headerBodyHash); isHash(sum) {
		o.BodySHA256 = sum
	}
	return o
}

func isHash(s string) bool {
	sum, err := hex.DecodeString(s)
	return err == nil && len(sum) == sha256.Size
}
