package kafka_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka"
)

// readBatches reads batches from an offset on.
func readBatches(offset int64, batches ...[]byte) ([]kafka.Read, int64, error) {
	return new(kafka.Decoder).Read(bytes.Join(batches, nil), offset, kafka.UsualLimits.Buffer)
}

func values(records []kafka.Read) string { return strings.Join(valuesRead(records), " ") }

// recount changes the number of records that a batch claims to have.
func recount(batch []byte, n uint32) []byte {
	binary.BigEndian.PutUint32(batch[57:], n)
	return sealBatch(batch)
}

func recompress(batch []byte, codec byte) []byte {
	batch[22] = batch[22]&^7 | codec
	return sealBatch(batch)
}

// What is behind records that cannot be read is never handed out, and the
// offset never moves over them. A batch that has fewer records than it claims
// is read as far as it goes.
func TestRecordsThatCannotBeRead(t *testing.T) {
	of := func(base, n int) []byte {
		records := numbered(base, n)
		for i := range records {
			records[i].offset += int64(base)
		}
		return batch{base: int64(base), records: records}.bytes()
	}
	short := func() []byte { // of one record, and it claims to have two
		return recount(batch{base: 7, last: 8, records: []record{{offset: 7, value: []byte("7")}}}.bytes(), 2)
	}
	newer, damaged, endless := of(7, 2), of(7, 2), short()
	newer[16] = 3
	damaged[len(damaged)-1] ^= 1
	endless[61] = 0x7e // the length of its first record
	sealBatch(endless)
	for name, tt := range map[string]struct {
		bad   []byte
		found string // of it
	}{
		"of a newer format":       {newer, ""},
		"damaged":                 {damaged, ""},
		"a negative number":       {recount(of(7, 2), 1<<32-1), ""},
		"an unknown compression":  {recompress(of(7, 2), 7), ""},
		"not what the codec says": {recompress(of(7, 2), 1), ""},
		"too long a record":       {endless, ""},
		"one record less":         {short(), " 7"},
	} {
		t.Run(name, func(t *testing.T) {
			end := int64(7 + len(tt.found)/2)
			for offset, found := range map[int64]string{5: "5 6", 6: "6"} {
				got, next, err := readBatches(offset, of(5, 2), tt.bad, of(9, 1))
				if err != nil || values(got) != found+tt.found || next != end {
					t.Errorf("from %d: %q, next %d, %v; want %q, next %d", offset, values(got), next, err, found+tt.found, end)
				}
			}
			for _, offset := range []int64{end, 8} {
				got, _, err := readBatches(offset, tt.bad, of(9, 1))
				if !errors.Is(err, kafka.ErrCorrupt) || len(got) > 0 {
					t.Errorf("from %d: %q, %v; want an error, for nothing may be passed over", offset, values(got), err)
				}
			}
			if got, _, err := readBatches(9, of(9, 1)); err != nil || values(got) != "9" {
				t.Errorf("what is behind, when asked for: %q, %v", values(got), err)
			}
		})
	}
}

// Records outlive the memory that their answer was read into, and a clone has the memory
// of no other. What is nil or empty stays so.
func TestRecordsAreCopies(t *testing.T) {
	headers := []kafkago.Header{{Key: "a", Value: []byte("b")}, {Key: "null"}, {Key: "empty", Value: []byte{}}}
	want := []record{
		{key: []byte("key"), value: []byte("value"), headers: headers},
		{offset: 1, value: bytes.Repeat([]byte("large"), 4000)},
		{offset: 2, key: []byte{}, value: []byte{}},
		{offset: 3, key: []byte("k"), value: []byte{}},
	}
	raw := batch{records: want, made: stubTime}.bytes()
	got, _, err := new(kafka.Decoder).Read(raw, 0, kafka.UsualLimits.Buffer)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	clear(raw)
	for i, r := range got {
		w, clone := want[i], r.Clone()
		m := kafkago.Message{Offset: w.offset, Time: time.UnixMilli(stubTime), Key: w.key, Value: w.value, Headers: w.headers}
		if !reflect.DeepEqual(r.Message(), m) || !reflect.DeepEqual(clone.Message(), m) {
			t.Errorf("record %d is %+v, its clone %+v; want %+v", i, r.Message(), clone.Message(), m)
		}
		if _ = append(clone.Message().Key, "grown"...); !bytes.Equal(clone.Message().Value, w.value) {
			t.Errorf("a key that grows writes to the value: %q", clone.Message().Value)
		}
	}
	clone := got[0].Clone()
	got[0].Message().Headers[0].Value[0] = 'x'
	if string(clone.Message().Headers[0].Value) != "b" {
		t.Error("a clone shares the value of a header with what it was made of")
	}
}

func FuzzRead(f *testing.F) {
	for _, b := range []batch{
		{records: numbered(0, 3)},
		{base: 3, records: []record{{offset: 4, key: []byte{}, headers: []kafkago.Header{{Key: "h"}}}}},
		{base: 2, last: 9},
		{old: true, records: numbered(0, 1)},
		{old: true, timeless: true, records: numbered(0, 1)},
		{producer: 1, transactional: true, mark: "abort"},
	} {
		f.Add(b.bytes(), int64(0))
		f.Add(append(b.bytes(), b.bytes()...), int64(3))
	}
	f.Add(oldWrapper(1, 4, int8(compress.Gzip), oldMessage(1, 0), oldMessage(1, 2)), int64(3))
	f.Fuzz(func(t *testing.T, batches []byte, offset int64) {
		offset = max(offset, 0)
		got, next, err := readBatches(offset, batches)
		if err != nil {
			if len(got) > 0 {
				t.Fatalf("%d records, and %v", len(got), err)
			}
			return
		}
		if next < offset || next == offset && len(batches) > 0 {
			t.Fatalf("from %d: next %d", offset, next)
		}
		for _, r := range got {
			if at := r.Message().Offset; at < offset || at >= next {
				t.Fatalf("from %d: record %d, next %d", offset, at, next)
			}
		}
	})
}

// oldMessage is a message of format 0 or 1 that has its offset, and its time, as
// value.
func oldMessage(magic int8, offset int64) []byte {
	value := fmt.Append(nil, offset)
	if magic == 0 {
		return sealMessage((&kmsg.MessageV0{Offset: offset, Value: value}).AppendTo(nil))
	}
	return sealMessage((&kmsg.MessageV1{Offset: offset, Magic: magic, Timestamp: stubTime + offset, Value: value}).AppendTo(nil))
}

// oldWrapper is a message that ends at last and has inner compressed within.
func oldWrapper(magic int8, last int64, attributes int8, inner ...[]byte) []byte {
	codec := compress.Compression(attributes & 7)
	var out bytes.Buffer
	w := codec.Codec().NewWriter(&out)
	w.Write(bytes.Join(inner, nil))
	w.Close()
	if magic == 0 {
		return sealMessage((&kmsg.MessageV0{Offset: last, Attributes: attributes, Value: out.Bytes()}).AppendTo(nil))
	}
	return sealMessage((&kmsg.MessageV1{Offset: last, Magic: magic, Attributes: attributes, Timestamp: stubTime - 7, Value: out.Bytes()}).AppendTo(nil))
}

// Messages of formats 0 and 1 keep their offsets where they are compressed, and
// where compaction has removed some of them.
func TestCompressedOldFormats(t *testing.T) {
	for _, codec := range []int8{int8(compress.Gzip), int8(compress.Snappy), int8(compress.Lz4)} {
		log := bytes.Join([][]byte{
			oldWrapper(0, 12, codec, oldMessage(0, 10), oldMessage(0, 12)),
			oldWrapper(1, 22, codec, oldMessage(1, 0), oldMessage(1, 1), oldMessage(1, 4)), // 18, 19 and 22
			oldWrapper(1, 25, codec|1<<3, oldMessage(1, 0), oldMessage(1, 1)),
			goodBatch(26, 1),
		}, nil)
		want := []int64{10, 12, 18, 19, 22, 24, 25, 26}
		for from := int64(0); from <= 26; from++ {
			for _, most := range []int{kafka.UsualLimits.Buffer, kafka.BaseCost + 10} { // all together, and one at a time
				var got, times []int64
				for offset := from; offset < 27; {
					found, next, err := new(kafka.Decoder).Read(log, offset, most)
					if err != nil || next <= offset {
						t.Fatalf("codec %d, from %d: next %d, %v", codec, offset, next, err)
					}
					for _, r := range found {
						m := r.Message()
						got, times = append(got, m.Offset), append(times, m.Time.UnixMilli()-stubTime)
					}
					offset = next
				}
				if i, _ := slices.BinarySearch(want, from); !slices.Equal(got, want[i:]) {
					t.Errorf("codec %d, from %d: offsets %v, want %v", codec, from, got, want[i:])
				}
				if stamps := []int64{-1 - stubTime, -1 - stubTime, 0, 1, 4, -7, -7, 0}; from == 0 && !slices.Equal(times, stamps) {
					t.Errorf("codec %d: times %v, want %v", codec, times, stamps)
				}
			}
		}
	}
}

// What is damaged stops its partition, and says where to go on.
func TestDamagedOldFormats(t *testing.T) {
	const gzip = int8(compress.Gzip)
	wrong := oldMessage(1, 0)
	wrong[len(wrong)-1] ^= 1
	for name, raw := range map[string][]byte{
		"checksum within":     oldWrapper(1, 5, gzip, wrong),
		"another format":      oldWrapper(1, 5, gzip, oldMessage(0, 0)),
		"compressed twice":    oldWrapper(1, 5, gzip, oldWrapper(1, 0, gzip, oldMessage(1, 0))),
		"nothing within":      oldWrapper(1, 5, gzip),
		"cut within":          oldWrapper(1, 5, gzip, oldMessage(1, 0), oldMessage(1, 1)[:20]),
		"not in order":        oldWrapper(1, 5, gzip, oldMessage(1, 1), oldMessage(1, 0)),
		"ends behind":         oldWrapper(0, 5, gzip, oldMessage(0, 6)),
		"before the first":    oldWrapper(1, 5, gzip, oldMessage(1, 0), oldMessage(1, 7)),
		"no codec":            sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: 7, Value: []byte("v")}).AppendTo(nil)),
		"negative length":     oldWrapper(1, 5, gzip, binary.BigEndian.AppendUint32(make([]byte, 8, 40), 1<<31+7), make([]byte, 20)),
		"not what it says":    sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: gzip, Value: []byte("plain")}).AppendTo(nil)),
		"nothing to be wider": sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: gzip}).AppendTo(nil)),
	} {
		got, _, err := readBatches(3, raw, goodBatch(6, 1))
		if behind, ok := kafka.Behind(err); !ok || behind != 6 || len(got) > 0 || !errors.Is(err, kafka.ErrCorrupt) {
			t.Errorf("%s: %d records, %v", name, len(got), err)
		} else if strings.Contains(err.Error(), "%!") {
			t.Error(err)
		}
	}
}
