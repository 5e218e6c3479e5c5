package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

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
	codec := compress.Compression(attributes & codecMask)
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
			oldWrapper(1, 25, codec|brokersTime, oldMessage(1, 0), oldMessage(1, 1)),
			goodBatch(26, 1),
		}, nil)
		want := []int64{10, 12, 18, 19, 22, 24, 25, 26}
		for from := int64(0); from <= 26; from++ {
			for _, most := range []int{bufferBytes, baseCost + 10} { // all together, and one at a time
				var got []int64
				var times []int64
				for offset := from; offset < 27; {
					res, err := new(decompressor).read(&kmsg.FetchResponseTopicPartition{RecordBatches: log}, offset, room{records: most})
					if err != nil || res.next <= offset {
						t.Fatalf("codec %d, from %d: next %d, %v", codec, offset, res.next, err)
					}
					for _, r := range res.records {
						got, times = append(got, r.offset), append(times, r.time.UnixMilli()-stubTime)
					}
					offset = res.next
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
		"no codec":            oldCodec(7),
		"negative length":     oldWrapper(1, 5, gzip, binary.BigEndian.AppendUint32(make([]byte, 8, 40), 1<<31+7), make([]byte, 20)),
		"not what it says":    sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: gzip, Value: []byte("plain")}).AppendTo(nil)),
		"nothing to be wider": sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: gzip}).AppendTo(nil)),
	} {
		got, err := readBatches(3, raw, goodBatch(6, 1))
		if stuck, ok := errors.AsType[*unreadableError](err); !ok || stuck.behind != 6 || len(got.records) > 0 || !errors.Is(err, cluster.ErrCorrupt) {
			t.Errorf("%s: %d records, %v", name, len(got.records), err)
		} else if strings.Contains(err.Error(), "%!") {
			t.Error(err)
		}
	}
}

func oldCodec(codec int8) []byte {
	return sealMessage((&kmsg.MessageV1{Offset: 5, Magic: 1, Attributes: codec, Value: []byte("v")}).AppendTo(nil))
}
