package kafka_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

var codecs = []compress.Compression{compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd}

// squeezed is a batch of n records, of which content is what is compressed.
func squeezed(base int64, n int, codec compress.Compression, content io.Reader) []byte {
	var out bytes.Buffer
	w := codec.Codec().NewWriter(&out)
	if _, err := io.Copy(struct{ io.Writer }{w}, content); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return batchOfCodec(base, n, codec, out.Bytes())
}

// batchOfCodec is a batch of n records that are compressed already.
func batchOfCodec(base int64, n int, codec compress.Compression, records []byte) []byte {
	batch := kmsg.RecordBatch{
		FirstOffset: base, Magic: 2, Attributes: int16(codec), LastOffsetDelta: int32(n - 1), NumRecords: int32(n),
		FirstTimestamp: stubTime, MaxTimestamp: stubTime, ProducerID: -1, Records: records,
	}
	return sealBatch(batch.AppendTo(nil))
}

// zeros is n records of size bytes of zeros each.
func zeros(n, size int) io.Reader {
	var all []io.Reader
	for i := range n {
		head := append([]byte{0, 0}, binary.AppendVarint(nil, int64(i))...)
		head = binary.AppendVarint(append(head, 1), int64(size)) // no key
		head = append(binary.AppendVarint(nil, int64(len(head)+size+1)), head...)
		all = append(all, bytes.NewReader(head), io.LimitReader(nothings{}, int64(size)), bytes.NewReader([]byte{0}))
	}
	return io.MultiReader(all...)
}

type nothings struct{}

func (nothings) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// noise is what no codec makes smaller.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func goodBatch(base int64, n int) []byte {
	b := batch{base: base, made: stubTime}
	for i := range n {
		b.records = append(b.records, record{offset: base + int64(i), value: fmt.Appendf(nil, "good %d", base+int64(i))})
	}
	return b.bytes()
}

// goods are the values that goodBatch gives to the records of these offsets.
func goods(offsets ...int) []string {
	var all []string
	for _, offset := range offsets {
		all = append(all, fmt.Sprintf("good %d", offset))
	}
	return all
}

// valuesRead are those of the records that were read.
func valuesRead(records []kafka.Read) (all []string) {
	for _, r := range records {
		if r.Unread() == nil {
			all = append(all, string(r.Message().Value))
		}
	}
	return all
}

// runnable are the bodies of the deliveries that handlers would get.
func runnable(ds []*brokers.Delivery) []string {
	var all []string
	for _, d := range ds {
		if d.Unreadable == nil {
			all = append(all, string(d.Message.Body))
		}
	}
	return all
}

// innocents demands that what was beside something hostile came, and counts what
// did not for the figures.
func innocents(t *testing.T, came []string, want ...string) {
	t.Helper()
	harmed := 0
	for _, innocent := range want {
		if !slices.Contains(came, innocent) {
			harmed++
			t.Errorf("%q did not come as it was", innocent)
		}
	}
	t.Attr("innocents_harmed", strconv.Itoa(harmed))
}

// readAll reads as fetches do, one after the other, and returns what is handed out in the
// order of the log. alloc is the most that one of them allocates, with what it grows out
// of.
func readAll(t *testing.T, room int, batches ...[]byte) (all []kafka.Read, alloc uint64) {
	t.Helper()
	d := new(kafka.Decoder)
	log, last := bytes.Join(batches, nil), batches[len(batches)-1]
	end := int64(binary.BigEndian.Uint64(last)) + 1 // of an old format
	if last[16] == 2 {
		end += int64(binary.BigEndian.Uint32(last[23:]))
	}
	for offset := int64(0); offset < end; {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, next, err := d.Read(log, offset, room)
		runtime.ReadMemStats(&after)
		if err != nil || next <= offset {
			t.Fatalf("from %d: next %d, %v", offset, next, err)
		}
		kept := 0
		for _, r := range got {
			kept += r.Cost()
		}
		if kept > room && len(got) > 1 {
			t.Errorf("from %d: %d records take %d bytes, and there is room for %d", offset, len(got), kept, room)
		}
		alloc = max(alloc, after.TotalAlloc-before.TotalAlloc)
		all, offset = append(all, got...), next
	}
	if most := 4 * kafka.LeastDecompressed; d.Scratch() > most {
		t.Errorf("the decoder keeps %d bytes, at most %d are allowed", d.Scratch(), most)
	}
	return all, alloc
}
