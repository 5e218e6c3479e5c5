package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// frame is the answer to request 7 of which batches are the records.
func frame(batches ...[]byte) []byte {
	part := kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = bytes.Join(batches, nil)
	return frameOf(fetchResponse("orders", part), 7)
}

func answerOf(frame []byte) (*fetchAnswer, error) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = fetchVersion
	a := &fetchAnswer{FetchResponse: req.ResponseKind().(*kmsg.FetchResponse), buffer: new(bytes.Buffer)}
	return a, cluster.ReadInto(a.buffer, bytes.NewReader(frame), a.FetchResponse, 7)
}

// recount changes the number of records that a batch claims to have.
func recount(batch []byte, n uint32) []byte {
	binary.BigEndian.PutUint32(batch[57:], n)
	return sealBatch(batch)
}

func recompress(batch []byte, codec byte) []byte {
	batch[22] = batch[22]&^7 | codec
	return sealBatch(batch)
}

func readBatches(offset int64, batches ...[]byte) (fetched, error) {
	return new(decompressor).read(&kmsg.FetchResponseTopicPartition{RecordBatches: bytes.Join(batches, nil)}, offset, usualRoom)
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
		"of negative size":          {changed(0, 0xff), cluster.ErrCorrupt},
		"shorter than its head":     {[]byte{0, 0, 0, 3, 0, 0, 0, 7}, cluster.ErrCorrupt},
		"to another request":        {changed(7, 8), cluster.ErrCorrupt},
		"with an impossible array":  {changed(18, 0x7f), cluster.ErrCorrupt},
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
// offset never moves over them. A batch that has fewer records than it claims
// is read as far as it goes.
func TestRecordsThatCannotBeRead(t *testing.T) {
	of := func(base, n int) []byte {
		records := numbered(base, n)
		for i := range records {
			records[i].offset += int64(base)
		}
		return rawBatch{base: int64(base), records: records}.bytes()
	}
	short := func() []byte { // of one record, and it claims to have two
		return recount(rawBatch{base: 7, last: 8, records: []record{{offset: 7, value: []byte("7")}}}.bytes(), 2)
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
				got, err := readBatches(offset, of(5, 2), tt.bad, of(9, 1))
				if err != nil || values(got.records) != found+tt.found || got.next != end {
					t.Errorf("from %d: %q, next %d, %v; want %q, next %d", offset, values(got.records), got.next, err, found+tt.found, end)
				}
			}
			for _, offset := range []int64{end, 8} {
				got, err := readBatches(offset, tt.bad, of(9, 1))
				if !errors.Is(err, cluster.ErrCorrupt) || len(got.records) > 0 {
					t.Errorf("from %d: %q, %v; want an error, for nothing may be passed over", offset, values(got.records), err)
				}
			}
			if got, err := readBatches(9, of(9, 1)); err != nil || values(got.records) != "9" {
				t.Errorf("what is behind, when asked for: %q, %v", values(got.records), err)
			}
		})
	}
}

// Records outlive the memory that their answer was read into, and a clone has the
// memory of nobody else. What is nil or empty stays so.
func TestRecordsAreCopies(t *testing.T) {
	want := []record{
		{key: []byte("key"), value: []byte("value"), headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "null"}, {Key: "empty", Value: []byte{}}}},
		{offset: 1, value: bytes.Repeat([]byte("large"), slabMost)},
		{offset: 2, key: []byte{}, value: []byte{}},
		{offset: 3, key: []byte("k"), value: []byte{}},
	}
	a, err := answerOf(frame(rawBatch{records: want}.bytes()))
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.partition()
	if err != nil {
		t.Fatal(err)
	}
	got, err := new(decompressor).read(p, 0, usualRoom)
	if err != nil || len(got.records) != len(want) {
		t.Fatalf("%d records, %v", len(got.records), err)
	}
	memory := a.buffer.Bytes()
	a.release()
	clear(memory)
	for i, r := range got.records {
		r.time, r.block = time.Time{}, nil
		clone := r.clone()
		if !reflect.DeepEqual(*r, want[i]) || !reflect.DeepEqual(clone, r) {
			t.Errorf("record %d is %+v, its clone %+v; want %+v", i, *r, *clone, want[i])
		}
		if clone.key = append(clone.key, "grown"...); !bytes.Equal(clone.value, r.value) {
			t.Errorf("a key that grows writes to the value: %q", clone.value)
		}
	}
	clone := got.records[0].clone()
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
	f.Add(oldWrapper(1, 4, int8(compress.Gzip), oldMessage(1, 0), oldMessage(1, 2)), int64(3))
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
