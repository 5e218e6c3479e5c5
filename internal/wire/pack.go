package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// maxPacked bounds what Unpack reads: a carried set and a dead letter's
// record with escapes.
const maxPacked = 64 << 10

// Pack writes framework headers, as [Partition] returns them, as one JSON
// object: {"id":"7f3a","attempt":"3"}. Names go without [Prefix], in order; a
// value that has a type is a list of both. Headers that are not [Reserved] are
// left out.
func Pack(h brokers.Headers) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	write := func(v any) {
		_ = enc.Encode(v)       // strings in memory cannot fail
		b.Truncate(b.Len() - 1) // the line feed
	}
	b.WriteByte('{')
	for _, header := range h {
		if !Reserved(header.Name) || header.Name == Packed {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		write(header.Name[len(Prefix):])
		b.WriteByte(':')
		if header.Type == "" {
			write(header.Value)
		} else {
			write([]string{header.Value, header.Type})
		}
	}
	b.WriteByte('}')
	return b.String()
}

// Unpack undoes [Pack]. It takes at most 64 KiB and [MaxEntries] headers, and
// skips names and values that Pack would not write; the error says what is
// wrong with a text that is no such object, and comes with the headers before
// the fault. The values are as hostile as any other header.
func Unpack(packed string) (brokers.Headers, error) {
	if len(packed) > maxPacked {
		return nil, fmt.Errorf("%s: %d bytes are more than the %d that redrive reads", Packed, len(packed), maxPacked)
	}
	dec := json.NewDecoder(strings.NewReader(packed))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, fmt.Errorf("%s: not a JSON object", Packed)
	}
	var h brokers.Headers
	for n := 0; dec.More() && n < MaxEntries; n++ {
		key, err := dec.Token()
		if err != nil {
			return h, fmt.Errorf("%s: %w", Packed, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return h, fmt.Errorf("%s: %w", Packed, err)
		}
		name, _ := key.(string)
		if header, ok := unpackOne(name, value); ok {
			h = append(h, header)
		}
	}
	if end, err := dec.Token(); err != nil || end != json.Delim('}') {
		return h, errors.New(Packed + ": the object does not end, or has too many entries")
	}
	return h, nil
}

func unpackOne(name string, value json.RawMessage) (brokers.Header, bool) {
	header := brokers.Header{Name: Prefix + name}
	if !Reserved(header.Name) || header.Name == Packed {
		return header, false
	}
	if json.Unmarshal(value, &header.Value) == nil {
		return header, true
	}
	var typed []string
	if json.Unmarshal(value, &typed) != nil || len(typed) != 2 {
		return header, false
	}
	header.Value, header.Type = typed[0], typed[1]
	return header, true
}
