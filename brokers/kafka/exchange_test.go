package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// frame is the answer to request 7 of which batches are the records.
func frame(batches ...[]byte) []byte {
	part := kmsg.NewFetchResponseTopicPartition()
	part.HighWatermark, part.LastStableOffset = 1000, 1000
	part.RecordBatches = bytes.Join(batches, nil)
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = "orders", []kmsg.FetchResponseTopicPartition{part}
	res := kmsg.NewPtrFetchResponse()
	res.Version, res.Topics = fetchVersion, []kmsg.FetchResponseTopic{topic}
	body := res.AppendTo(nil)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(out, 7), body...)
}

func answerOf(frame []byte) (*fetchAnswer, error) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = fetchVersion
	return readAnswer(bytes.NewReader(frame), req, 7)
}

// recount changes the number of records that a batch claims to have.
func recount(batch []byte, n uint32) []byte {
	binary.BigEndian.PutUint32(batch[57:], n)
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
	return batch
}

func TestStrangeAnswers(t *testing.T) {
	good := frame(rawBatch{records: numbered(0, 3)}.bytes())
	changed := func(at int, b byte) []byte {
		f := bytes.Clone(good)
		f[at] = b
		return f
	}
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"as it should be":           {good, nil},
		"nothing":                   {nil, io.EOF},
		"cut in its head":           {good[:6], io.ErrUnexpectedEOF},
		"cut in its body":           {good[:len(good)-1], io.ErrUnexpectedEOF},
		"of two gigabytes, it says": {changed(0, 0x7f), io.ErrUnexpectedEOF},
		"of negative size":          {changed(0, 0xff), errCorrupt},
		"shorter than its head":     {[]byte{0, 0, 0, 3, 0, 0, 0, 7}, errCorrupt},
		"to another request":        {changed(7, 8), errCorrupt},
		"with an impossible array":  {changed(18, 0x7f), errCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := answerOf(c.frame)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err == nil {
				a.release()
			}
		})
	}
	empty := &fetchAnswer{FetchResponse: &kmsg.FetchResponse{ErrorCode: int16(kafka.FetchSessionIDNotFound)}}
	if _, err := empty.partition(); !errors.Is(err, kafka.FetchSessionIDNotFound) {
		t.Errorf("an answer without the partition: %v", err)
	}
}

// What is behind records that cannot be read is never handed out, and the
// offset never moves over them.
func TestRecordsThatCannotBeRead(t *testing.T) {
	of := func(base, n int) []byte {
		records := numbered(base, n)
		for i := range records {
			records[i].offset += int64(base)
		}
		return rawBatch{base: int64(base), records: records}.bytes()
	}
	good, behind := of(5, 2), of(9, 1)
	batch := func() []byte { return of(7, 2) }
	newer := batch()
	newer[16] = 3
	damaged := batch()
	damaged[len(damaged)-1] ^= 1
	for name, bad := range map[string][]byte{
		"of a newer format":       newer,
		"damaged":                 damaged,
		"a negative number":       recount(batch(), 1<<32-1),
		"an unknown compression":  recompress(batch(), 7),
		"not what the codec says": recompress(batch(), 1),
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				batches [][]byte
				offset  int64
				found   string
				next    int64
			}{
				{[][]byte{good, bad, behind}, 5, "5 6", 7},
				{[][]byte{good, bad, behind}, 6, "6", 7},
				{[][]byte{bad, behind}, 7, "", 7},
				{[][]byte{bad, behind}, 8, "", 8},
			} {
				got, err := readBatches(c.offset, c.batches...)
				if next := max(got.next, c.offset); values(got.records) != c.found || err == nil && next != c.next {
					t.Errorf("from %d: %q, next %d, %v; want %q, next %d", c.offset, values(got.records), got.next, err, c.found, c.next)
				}
				if errors.Is(err, errCorrupt) != (c.found == "") {
					t.Errorf("from %d: %v", c.offset, err)
				}
			}
		})
	}
}

// A batch that has fewer records than it claims is read as far as it goes, and
// nothing behind it.
func TestBatchThatEndsTooEarly(t *testing.T) {
	one := func(base int64) []byte {
		return rawBatch{base: base, records: []record{{offset: base, value: fmt.Append(nil, base)}}}.bytes()
	}
	short := rawBatch{base: 3, last: 4, records: []record{{offset: 3, value: []byte("3")}}}.bytes()
	endless := bytes.Clone(short)
	endless[61] = 0x7e // the length of its first record
	for name, bad := range map[string][]byte{"after one": recount(short, 2), "at its first": recount(endless, 2)} {
		t.Run(name, func(t *testing.T) {
			found, end := "2 3", int64(4)
			if name != "after one" {
				found, end = "2", 3
			}
			got, err := readBatches(2, one(2), bad, one(5))
			if err != nil || values(got.records) != found || got.next != end {
				t.Errorf("%q, next %d, %v; want %s, next %d", values(got.records), got.next, err, found, end)
			}
			got, err = readBatches(end, bad, one(5))
			if !errors.Is(err, errCorrupt) || len(got.records) > 0 {
				t.Errorf("then: %q, %v; want an error, for nothing may be passed over", values(got.records), err)
			}
			if got, err = readBatches(5, one(5)); err != nil || values(got.records) != "5" {
				t.Errorf("what is behind, when asked for: %q, %v", values(got.records), err)
			}
		})
	}
}

func recompress(batch []byte, codec byte) []byte {
	batch[22] = batch[22]&^7 | codec
	return recount(batch, binary.BigEndian.Uint32(batch[57:]))
}

func readBatches(offset int64, batches ...[]byte) (fetched, error) {
	return read(&kmsg.FetchResponseTopicPartition{RecordBatches: bytes.Join(batches, nil)}, offset)
}

// A clone has the memory of nobody else, and what is nil or empty stays so.
func TestClone(t *testing.T) {
	for _, r := range []record{
		{},
		{key: []byte{}, value: []byte{}},
		{offset: 7, key: []byte("k"), value: []byte{}, headers: []kafka.Header{{Key: "null"}, {Key: "empty", Value: []byte{}}, {Key: "a", Value: []byte("b")}}},
		{value: []byte("v"), headers: []kafka.Header{}},
	} {
		clone := r.clone()
		if !reflect.DeepEqual(*clone, r) {
			t.Errorf("the clone of %#v is %#v", r, *clone)
		}
		if clone.key = append(clone.key, "grown"...); !bytes.Equal(clone.value, r.value) {
			t.Errorf("a key that grows writes to the value: %q", clone.value)
		}
	}
}

// Records outlive the memory that their answer was read into.
func TestRecordsAreCopies(t *testing.T) {
	want := []record{
		{key: []byte("key"), value: []byte("value"), headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "null"}, {Key: "empty", Value: []byte{}}}},
		{offset: 1, value: bytes.Repeat([]byte("large"), slabMost)},
	}
	a, err := answerOf(frame(rawBatch{records: want}.bytes()))
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.partition()
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(p, 0)
	if err != nil || len(got.records) != len(want) {
		t.Fatalf("%d records, %v", len(got.records), err)
	}
	memory := a.buffer.Bytes()
	a.release()
	clear(memory)
	clone := got.records[0].clone()
	for i, r := range []*record{got.records[0], got.records[1], clone} {
		r.time = time.Time{}
		if w := &want[i%2]; !reflect.DeepEqual(r, w) {
			t.Errorf("record %d is %+v, want %+v", i, r, w)
		}
	}
	got.records[0].headers[0].Value[0] = 'x'
	if string(clone.headers[0].Value) != "b" {
		t.Error("a clone shares the value of a header with what it was made of")
	}
}

func FuzzRead(f *testing.F) {
	for _, b := range []rawBatch{
		{records: numbered(0, 3)},
		{base: 3, records: []record{{offset: 4, key: []byte{}, headers: []kafka.Header{{Key: "h"}}}}},
		{base: 2, last: 9},
		{old: true, records: numbered(0, 1)},
		{old: true, timeless: true, records: numbered(0, 1)},
		{producer: 1, transactional: true, mark: "abort"},
	} {
		f.Add(b.bytes(), int64(0))
		f.Add(append(b.bytes(), b.bytes()...), int64(3))
	}
	f.Fuzz(func(t *testing.T, batches []byte, offset int64) {
		offset = max(offset, 0)
		got, err := readBatches(offset, batches)
		if err != nil {
			if len(got.records) > 0 {
				t.Fatalf("%d records, and %v", len(got.records), err)
			}
			return
		}
		if got.next < offset || got.next == offset && len(batches) > 0 {
			t.Fatalf("from %d: next %d", offset, got.next)
		}
		for _, r := range got.records {
			if r.offset < offset || r.offset >= got.next {
				t.Fatalf("from %d: record %d, next %d", offset, r.offset, got.next)
			}
		}
	})
}
