package kafka

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

// The types of headers that are not text, in brokers.Header.Type.
const (
	typeNull = "null" // a header with no value, which is not an empty one
	typeKey  = "key"  // no header at all: the key is empty, which is not none
)

// understand fills in d what r, which came from p, is as a message. Only workers
// write to the delay topics, from where it is retried: elsewhere, and where it is
// not signed, anybody may have forged how far a message has come. The Topic of a
// retried one is what its copy says, for the caller to check. The text in d is
// made in t.
func understand(d *brokers.Delivery, r *record, p partition, retried bool, limits wire.Limits, t *texts) {
	m := &d.Message
	limits.Trusted = retried && !r.unsigned
	var meta brokers.Meta
	if h := headersOf(r); len(h) > 0 {
		*m, meta = wire.Decode(h, limits)
	}
	if r.unsigned {
		m.Topic = string(retriedTopic(r))
	}
	if !retried {
		m.Topic = p.topic
		if m.PublishedAt.IsZero() && r.time.UnixMilli() > 0 {
			m.PublishedAt = r.time
			if r.time.After(limits.Now) {
				m.PublishedAt = limits.Now
			}
		}
	}
	m.Key, m.Body = t.text(r.key), r.value
	if m.ID == "" && meta.Origin != nil {
		m.ID = meta.Origin.Get("topic") + "/" + meta.Origin.Get("partition") + "/" + meta.Origin.Get("offset")
	} else if m.ID == "" {
		m.ID = t.place(r.offset)
	}
	if !limits.Trusted && r.unread == nil && meta.IdempotencyKey == "" && meta.RedriveCount == 0 && meta.Send == "" {
		return // it carries nothing, and its token has the origin
	}
	if meta.Origin == nil {
		meta.Origin = originOf(p, r.offset)
		if r.unread != nil {
			meta.Origin = r.unread.origin(meta.Origin)
		}
	}
	d.Carried = new(meta)
}

// originOf says where a message came from.
func originOf(p partition, offset int64) brokers.Headers {
	return brokers.Headers{
		{Name: "topic", Value: p.topic},
		{Name: "partition", Value: strconv.Itoa(p.number)},
		{Name: "offset", Value: strconv.FormatInt(offset, 10)},
	}
}

// texts makes the strings of some messages of a partition in one piece of memory.
type texts struct {
	before  string // what places begin with
	written strings.Builder
}

// placesOf returns what the places of a partition begin with.
func placesOf(p partition) string { return p.topic + "/" + strconv.Itoa(p.number) + "/" }

// reserve makes room for the keys and the places of records.
func (t *texts) reserve(records []*record) {
	size, place := 0, len(t.before)+len(strconv.FormatInt(records[len(records)-1].offset, 10))
	for _, r := range records {
		size += len(r.key)
		if len(r.headers) == 0 { // its place is its ID
			size += place
		}
	}
	t.written.Reset() // what was written stays as it is
	t.written.Grow(size)
}

func (t *texts) text(b []byte) string {
	from := t.written.Len()
	t.written.Write(b)
	return t.written.String()[from:]
}

// place is the ID of a message that was published without one. Copies carry it
// along, or the origin that it is made of.
func (t *texts) place(offset int64) string {
	from := t.written.Len()
	var digits [20]byte
	t.written.WriteString(t.before)
	t.written.Write(strconv.AppendInt(digits[:0], offset, 10))
	return t.written.String()[from:]
}

// headersOf returns the headers of a record, in order.
func headersOf(r *record) brokers.Headers {
	var h brokers.Headers
	if n := len(r.headers); n > 0 {
		h = make(brokers.Headers, 0, n+1)
	}
	for _, header := range r.headers {
		typ := ""
		if header.Value == nil {
			typ = typeNull
		}
		h = append(h, brokers.Header{Name: header.Key, Value: string(header.Value), Type: typ})
	}
	if r.key != nil && len(r.key) == 0 {
		h = append(h, brokers.Header{Name: "key", Type: typeKey})
	}
	return h
}

// usualPacked has room for what the copy of a message carries after a failure
// or two.
const usualPacked = 448

// copyOf is the record of a retry of m, which seal signs.
func copyOf(seal adapter.Seal, m brokers.Message, meta brokers.Meta) record {
	plain := m
	plain.Key = ""
	usual := usualPacked
	if seal.Signs() {
		usual += adapter.SignatureSize(nil)
	}
	user, packed := wire.EncodePacked(make([]byte, 0, usual), plain, meta)
	packed = seal.SignPacked(packed, "", "", m.Body) // topic and ID are among what is packed
	r := recordOf(m, user)
	r.headers = append(r.headers, kafka.Header{Key: wire.Packed, Value: packed})
	return r
}

// published is the record of m as Publish stores it.
func published(m brokers.Message) record {
	plain := m
	plain.Key = ""
	return recordOf(m, wire.EncodeIdentity(plain))
}

// recordOf has the key and the body of m, and h. A nil body is a tombstone, an
// empty key is no key unless a header says so.
func recordOf(m brokers.Message, h brokers.Headers) record {
	r := record{value: m.Body}
	if m.Key != "" {
		r.key = []byte(m.Key)
	}
	r.headers = make([]kafka.Header, 0, len(h)+1) // and one for copyOf
	for _, header := range h {
		switch {
		case header.Type == typeKey:
			if m.Key == "" {
				r.key = []byte{}
			}
		case header.Type == typeNull && header.Value == "":
			r.headers = append(r.headers, kafka.Header{Key: header.Name})
		default:
			r.headers = append(r.headers, kafka.Header{Key: header.Name, Value: []byte(header.Value)})
		}
	}
	return r
}

// batchHead is what a batch takes besides its records.
const batchHead = 61

// size is what a record counts against max.message.bytes, alone in a batch and
// not compressed.
func (r record) size() int {
	n := r.length()
	return batchHead + sizeOfVarint(n) + n
}

// length is what a record takes in a batch, behind its length.
func (r record) length() int {
	const fixed = 3 // attributes, and the differences in time and offset
	n := fixed + sizeOfBytes(r.key) + sizeOfBytes(r.value) + sizeOfVarint(len(r.headers))
	for _, h := range r.headers {
		n += sizeOfVarint(len(h.Key)) + len(h.Key) + sizeOfBytes(h.Value)
	}
	return n
}

// checkSize refuses a record that is larger than limit, if there is one.
func checkSize(r record, limit int) error {
	if size := r.size(); limit > 0 && size > limit {
		return fmt.Errorf("%d bytes with key and headers, the limit is %d (max.message.bytes of the topic): %w", size, limit, brokers.ErrRefused)
	}
	return nil
}

func sizeOfBytes(b []byte) int {
	if b == nil {
		return sizeOfVarint(-1)
	}
	return sizeOfVarint(len(b)) + len(b)
}

func sizeOfVarint(n int) int {
	var buffer [binary.MaxVarintLen64]byte
	return binary.PutVarint(buffer[:], int64(n))
}
