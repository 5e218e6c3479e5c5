package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// oldBatch reads a message in a format from before Kafka 0.11, which brokers keep
// and send as it was stored: one record, or many that are compressed within it. It
// has the offset of the last of them.
func (r *decoding) oldBatch(raw []byte) error {
	wrapper, _, err := cutMessage(raw)
	codec := compress.Compression(wrapper.Attributes & codecMask)
	switch {
	case err != nil:
		return err
	case wrapper.Offset < r.next:
		return nil
	case codec == compress.None:
		r.oldRecord(&wrapper)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	plain, err := r.decompress(wrapper.Value, codec, r.room.batch)
	if errors.Is(err, errBomb) {
		return r.leave(r.next, unread{wrapper.Offset, len(raw), codecNames[codec], r.room.batch})
	}
	base := int64(0) // in format 0 the offsets within count from the beginning of the log
	if err == nil && wrapper.Magic == 1 {
		base, err = baseOf(&wrapper, plain)
	}
	if err != nil {
		return fmt.Errorf("a message that is compressed with %s: %w", codecNames[codec], err)
	}
	for before := int64(-1); len(plain) > 0 && !r.cut; {
		var m kmsg.MessageV1
		if m, plain, err = cutMessage(plain); err != nil {
			return err
		}
		if m.Offset += base; m.Magic != wrapper.Magic || m.Attributes&codecMask != 0 || m.Offset <= before || m.Offset > wrapper.Offset {
			return fmt.Errorf("offset %d, in format %d, follows %d in a compressed message that ends at %d", m.Offset, m.Magic, before, wrapper.Offset)
		}
		before = m.Offset
		if wrapper.Attributes&brokersTime != 0 {
			m.Attributes, m.Timestamp = m.Attributes|brokersTime, wrapper.Timestamp
		}
		r.oldRecord(&m)
	}
	if !r.cut {
		r.next = wrapper.Offset + 1
	}
	return nil
}

// baseOf returns from where the offsets in a compressed message count: that of the
// last one is known.
func baseOf(wrapper *kmsg.MessageV1, plain []byte) (int64, error) {
	var last kmsg.MessageV1
	var err error
	for more := true; more; more = len(plain) > 0 {
		if last, plain, err = cutMessage(plain); err != nil {
			return 0, err
		}
	}
	return wrapper.Offset - last.Offset, nil
}

// oldRecord takes a message that is no wrapper, if there is room.
func (r *decoding) oldRecord(m *kmsg.MessageV1) {
	taken := rawRecord{key: m.Key, value: m.Value}
	if m.Offset < r.next || r.isFull(taken.cost()) {
		return
	}
	kept := r.copies.next()
	kept.offset, kept.time = m.Offset, time.UnixMilli(m.Timestamp)
	kept.key, kept.value = r.copies.copy(m.Key), r.copies.copy(m.Value)
	r.keep(kept)
}

// cutMessage takes the first message off b, and returns the rest. One of format 0
// has no time, which is -1.
func cutMessage(b []byte) (m kmsg.MessageV1, rest []byte, err error) {
	const size, sum, format, head = 8, 16, 16, 17
	length := int64(len(b))
	if len(b) >= head {
		length = int64(int32(binary.BigEndian.Uint32(b[size:]))) + 12
	}
	if length < head || length > int64(len(b)) {
		return m, nil, fmt.Errorf("a message of %d bytes is cut after %d", length, len(b))
	}
	raw := b[:length:length]
	switch raw[format] {
	case 0:
		var old kmsg.MessageV0
		err = old.ReadFrom(raw)
		m = kmsg.MessageV1{Offset: old.Offset, CRC: old.CRC, Attributes: old.Attributes &^ brokersTime, Timestamp: -1, Key: old.Key, Value: old.Value}
	case 1:
		err = m.ReadFrom(raw)
	default:
		err = fmt.Errorf("it has format %d", raw[format])
	}
	if found := int32(crc32.ChecksumIEEE(raw[sum:])); err == nil && found != m.CRC {
		err = fmt.Errorf("its checksum is %x, and it says %x", found, m.CRC)
	}
	if err != nil {
		return m, nil, fmt.Errorf("a message of %d bytes: %w", length, err)
	}
	return m, b[length:], nil
}
