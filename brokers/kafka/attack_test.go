package kafka_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/integration/livetest"
)

// A few kilobytes in a log must not become gigabytes in a worker: what is over
// the bound is one record that stands for it, and all others are handed out.
func TestAttackBombs(t *testing.T) {
	const huge = 100 << 20
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			one, many := squeezed(3, 1, codec, zeros(1, huge)), squeezed(7, 1000, codec, zeros(1000, huge/1000))
			t.Logf("%d bytes, and %d, become %d", len(one), len(many), huge)
			all, alloc := readAll(t, kafka.UsualLimits.Buffer, goodBatch(0, 3), one, goodBatch(4, 3), many, goodBatch(1007, 3), squeezed(1010, 5, codec, zeros(5, huge/5)))
			innocents(t, valuesRead(all), goods(0, 1, 2, 4, 5, 6, 1007, 1008, 1009)...)
			if most := uint64(12 * kafka.LeastDecompressed); alloc > most {
				t.Errorf("a fetch allocates %d bytes, at most %d are allowed", alloc, most)
			}
			want := []int64{0, 1, 2, 3, 4, 5, 6, 7, 1007, 1008, 1009, 1010}
			for i, r := range all {
				if at := r.Message().Offset; i >= len(want) || at != want[i] || (r.Unread() != nil) != (at == 3 || at == 7 || at == 1010) {
					t.Fatalf("record %d has offset %d, unread %+v; want %v", i, at, r.Unread(), want)
				}
			}
			if u := all[7].Unread(); len(all) != len(want) || *u != (kafka.Unread{Last: 1006, Bytes: len(many), Codec: codec.String()}) {
				t.Errorf("%d records, and for the second bomb stands %+v", len(all), u)
			}
		})
	}
}

// Many of them in one answer cost no more memory than one.
func TestAttackManyBombsInOneAnswer(t *testing.T) {
	for _, codec := range codecs {
		bomb := squeezed(0, 1, codec, zeros(1, kafka.LeastDecompressed+1))
		var batches [][]byte
		var good []string
		for i := range 20 {
			good = append(good, goods(2*i+1)...)
			b := bytes.Clone(bomb)
			binary.BigEndian.PutUint64(b, uint64(2*i)) // which the checksum does not cover
			batches = append(batches, b, goodBatch(int64(2*i+1), 1))
		}
		all, _ := readAll(t, kafka.UsualLimits.Buffer, batches...)
		innocents(t, valuesRead(all), good...)
		if len(all) != 40 {
			t.Errorf("%s: %d records, want 20 bombs and 20 good ones", codec, len(all))
		}
	}
}

// A small message in a frame with the window of the highest levels is read.
func TestZstdWithAWideWindow(t *testing.T) {
	for _, n := range []int{1, 15} {
		var out bytes.Buffer
		e, err := zstd.NewWriter(&out, zstd.WithWindowSize(128<<20), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(e, zeros(n, 1<<20)) // a stream, of which the frame does not know the size
		e.Close()
		all, _ := readAll(t, kafka.UsualLimits.Buffer, batchOfCodec(0, n, compress.Zstd, out.Bytes()))
		if len(all) != n || all[0].Unread() != nil {
			t.Errorf("%d records of %d, %+v", len(all), n, all[0].Unread())
		}
	}
	for _, size := range []int{1, kafka.LeastScratch - 20, kafka.LeastScratch, 4 << 20, kafka.LeastDecompressed - 20} { // whatever it becomes, within the bound
		for _, codec := range codecs {
			if all, _ := readAll(t, kafka.UsualLimits.Buffer, squeezed(0, 1, codec, zeros(1, size))); all[0].Unread() != nil && size < kafka.LeastDecompressed-kafka.BaseCost || len(all) != 1 {
				t.Errorf("%s, %d bytes: %+v", codec, size, all[0].Unread())
			}
		}
	}
}

// What claims to become gigabytes, without being so, costs nothing either.
func TestAttackClaims(t *testing.T) {
	claims := map[string][]byte{
		"snappy in one":    batchOfCodec(1, 1, compress.Snappy, append(binary.AppendUvarint(nil, 1<<32-1), 0, 0)),
		"snappy in chunks": batchOfCodec(1, 1, compress.Snappy, slices.Concat(kafka.ChunkMark, []byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7}, binary.AppendUvarint(nil, 1<<32-1), []byte{0, 0})),
		"zstd, its size":   batchOfCodec(1, 1, compress.Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x7f, 1, 0, 0}),
		"zstd, its window": batchOfCodec(1, 1, compress.Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 1, 0, 0}),
	}
	for name, claim := range claims {
		all, alloc := readAll(t, kafka.UsualLimits.Buffer, goodBatch(0, 1), claim, goodBatch(2, 1))
		innocents(t, valuesRead(all), goods(0, 2)...)
		if len(all) != 3 || all[1].Unread() == nil || alloc > 2*kafka.LeastDecompressed {
			t.Errorf("%s: %d records, %d bytes allocated", name, len(all), alloc)
		}
	}
}

// A record that has millions of headers is not read, those beside it in the batch
// are. Millions of tiny records are read in portions.
func TestAttackManySmallThings(t *testing.T) {
	const many = 6 << 20
	body := binary.AppendVarint([]byte{0, 0, 2, 1, 1}, many) // offset 1, no key, no value
	body = append(body, make([]byte, 2*many)...)             // empty names, empty values
	content := slices.Concat([]byte{12, 0, 0, 0, 1, 1, 0}, binary.AppendVarint(nil, int64(len(body))), body, []byte{12, 0, 0, 4, 1, 1, 0})
	all, alloc := readAll(t, kafka.UsualLimits.Buffer, squeezed(0, 3, compress.Zstd, bytes.NewReader(content)), goodBatch(3, 1))
	innocents(t, valuesRead(all), goods(3)...)
	if len(all) != 4 || all[0].Unread() != nil || all[1].Unread() == nil || all[1].Unread().Last != 1 || all[2].Unread() != nil || all[3].Unread() != nil {
		t.Errorf("%d records, want only the second to be unread", len(all))
	}
	if most := uint64(8 * kafka.LeastDecompressed); alloc > most {
		t.Errorf("%d bytes allocated, at most %d are allowed", alloc, most)
	}

	const tiny = 300_000
	all, alloc = readAll(t, kafka.UsualLimits.Buffer, squeezed(0, tiny, compress.Zstd, zeros(tiny, 0)))
	for i, r := range all {
		if r.Message().Offset != int64(i) || r.Unread() != nil {
			t.Fatalf("record %d: %+v", i, r)
		}
	}
	if most := uint64(8 * kafka.LeastDecompressed); len(all) != tiny || alloc > most {
		t.Errorf("%d records, and a portion allocates %d bytes; at most %d are allowed", len(all), alloc, most)
	}
}

// A bomb in a message set from before Kafka 0.11.
func TestAttackOldBomb(t *testing.T) {
	for _, codec := range []compress.Compression{compress.Gzip, compress.Snappy} {
		var out bytes.Buffer
		w := codec.Codec().NewWriter(&out)
		io.Copy(w, io.LimitReader(nothings{}, 100<<20))
		w.Close()
		raw := (&kmsg.MessageV1{Offset: 7, Magic: 1, Attributes: int8(codec), Timestamp: stubTime, Value: out.Bytes()}).AppendTo(nil)
		all, alloc := readAll(t, kafka.UsualLimits.Buffer, goodBatch(0, 3), sealMessage(raw), goodBatch(8, 1))
		innocents(t, valuesRead(all), goods(0, 1, 2, 8)...)
		if len(all) != 5 || all[3].Unread() == nil || all[3].Message().Offset != 3 || all[3].Unread().Last != 7 {
			t.Errorf("%s: %d records", codec, len(all))
		}
		if most := uint64(8 * kafka.LeastDecompressed); alloc > most {
			t.Errorf("%s: %d bytes allocated, at most %d are allowed", codec, alloc, most)
		}
	}
}

// The delivery that stands for a bomb says what it is, and settles all of it. No partition
// waits, and none of the good messages beside it is touched.
func TestAttackBombIsOneDelivery(t *testing.T) {
	bomb := squeezed(3, 10, compress.Zstd, zeros(10, 10<<20))
	onStub(t, func(s *stub) {
		s.log = []batch{{raw: goodBatch(0, 3), last: 2}, {base: 3, last: 12, raw: bomb}, {base: 13, raw: goodBatch(13, 3), last: 15}}
	}, func(s *stub) {
		ds := s.comes(5 * time.Second)
		innocents(s.T, runnable(ds), goods(0, 1, 2, 13, 14, 15)...)
		if len(ds) != 7 {
			s.Fatalf("%d deliveries, want 6 good ones and the bomb", len(ds))
		}
		for i, d := range ds {
			if bomb := i == 3; (d.Unreadable != nil) != bomb {
				s.Errorf("delivery %d is unreadable: %v", i, d.Unreadable)
			}
		}
		d := ds[3]
		want := brokers.Headers{{Name: "topic", Value: "orders"}, {Name: "partition", Value: "0"}, {Name: "offset", Value: "3"},
			{Name: "last-offset", Value: "12"}, {Name: "bytes", Value: fmt.Sprint(len(bomb))}, {Name: "codec", Value: "zstd"}}
		if d.Message.ID != "orders/0/3" || d.Message.Topic != "orders" || d.Message.Body != nil || !slices.Equal(d.Meta().Origin, want) {
			s.Errorf("%+v, origin %v; want %v", d.Message, d.Meta().Origin, want)
		}
		says(s.T, d.Unreadable, "3 to 12", "zstd", "MaxDecompressed", "kafka-console-consumer.sh --topic orders --partition 0 --offset 3 --max-messages 10")
		s.committed(first, 16)
	})
}

// says demands that an error says all parts.
func says(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

// In a delay topic, where only workers write, nothing is passed over: the partition waits,
// and the error says how it goes on.
func TestAttackBombInADelayTopic(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(*stub) []record { return nil }, func(s *stub) {
		s.sleep(time.Second)
		s.change(func(s *stub) {
			s.log = []batch{{last: 4, raw: squeezed(0, 5, compress.Lz4, zeros(5, 10<<20))}}
		})
		ds, err := s.src.Receive(s.Context(), 10)
		if len(ds) > 0 || !errors.Is(err, kafka.ErrBomb) || errors.Is(err, brokers.ErrMisconfigured) {
			s.Fatalf("%d deliveries, %v", len(ds), err)
		}
		says(s.T, err, "raise Options.MaxDecompressed", "kafka-consumer-groups.sh --group g --topic "+delayOfOrders+":0 --reset-offsets --to-offset 5 --execute")
		s.committed(delayPartition, 0)
	})
}

// Ten thousand of the largest messages that any topic takes by default, a hundredth of
// their size in the log, are with the worker a few at a time.
func TestAttackLargestMessages(t *testing.T) {
	livetest.Nightly(t) // ten gigabytes are decoded
	const each, batches, size, most = 2, 5000, 1_000_000, 64 << 20
	onStub(t, func(s *stub) {
		raw := squeezed(0, each, compress.Zstd, zeros(each, size))
		s.log = nil
		for i := range int64(batches) {
			b := bytes.Clone(raw)
			binary.BigEndian.PutUint64(b, uint64(i*each))
			s.log = append(s.log, batch{base: i * each, last: i*each + each - 1, raw: b})
		}
	}, func(s *stub) {
		var stats runtime.MemStats
		for seen := int64(0); seen < each*batches; {
			ds := s.take(1)
			for _, d := range ds {
				if d.Unreadable != nil || len(d.Message.Body) != size || offsetOf(d) != seen {
					s.Fatalf("message %s has %d bytes, %v", d.Message.ID, len(d.Message.Body), d.Unreadable)
				}
				seen++
			}
			if s.ack(ds...); seen%500 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&stats)
				if stats.HeapAlloc > most {
					s.Fatalf("after %d messages %d bytes are in use, at most %d are allowed", seen, stats.HeapAlloc, most)
				}
			}
		}
	})
}

// A retry of what is not read would store an empty message, which is run: it is refused,
// and the delivery is held.
func TestAttackBombIsNotCopied(t *testing.T) {
	onStub(t, func(s *stub) {
		s.log = []batch{{last: 2, raw: squeezed(0, 3, compress.Gzip, zeros(3, 10<<20))}}
	}, func(s *stub) {
		bomb := func() *brokers.Delivery {
			ds := s.ready(3)
			if len(ds) != 1 || ds[0].Unreadable == nil {
				s.Fatalf("received %v", ids(ds))
			}
			return ds[0]
		}
		d := bomb()
		if err := s.settle(brokers.Retry, d); !errors.Is(err, brokers.ErrRefused) || !strings.Contains(err.Error(), "kafka-console-consumer.sh") {
			s.Errorf("retry: %v", err)
		}
		for range 2 {
			if err := s.settle(brokers.Release, d); err != nil {
				s.Errorf("release: %v", err)
			}
			s.committed(first, 0)
			d = bomb()
		}
		s.ack(d)
		s.committed(first, 3)
		s.is("copies", s.count(protocol.Produce), 0)
	})
}
