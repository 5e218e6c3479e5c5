package kafka

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
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
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
			all, alloc := readAll(t, room{records: bufferBytes}, goodBatch(0, 3), one, goodBatch(4, 3), many, goodBatch(1007, 3), squeezed(1010, 5, codec, zeros(5, huge/5)))
			innocents(t, valuesRead(all), goods(0, 1, 2, 4, 5, 6, 1007, 1008, 1009)...)
			if most := uint64(12 * leastDecompressed); alloc > most {
				t.Errorf("a fetch allocates %d bytes, at most %d are allowed", alloc, most)
			}
			want := []int64{0, 1, 2, 3, 4, 5, 6, 7, 1007, 1008, 1009, 1010}
			for i, r := range all {
				if i >= len(want) || r.offset != want[i] || (r.unread != nil) != (r.offset == 3 || r.offset == 7 || r.offset == 1010) {
					t.Fatalf("record %d has offset %d, unread %+v; want %v", i, r.offset, r.unread, want)
				}
			}
			if u := all[7].unread; len(all) != len(want) || u.last != 1006 || u.bytes != len(many) || u.codec != codec.String() {
				t.Errorf("%d records, and for the second bomb stands %+v", len(all), u)
			}
		})
	}
}

// Many of them in one answer cost no more memory than one.
func TestAttackManyBombsInOneAnswer(t *testing.T) {
	for _, codec := range codecs {
		bomb := squeezed(0, 1, codec, zeros(1, leastDecompressed+1))
		var batches [][]byte
		var good []string
		for i := range 20 {
			good = append(good, goods(2*i+1)...)
			b := bytes.Clone(bomb)
			binary.BigEndian.PutUint64(b, uint64(2*i)) // which the checksum does not cover
			batches = append(batches, b, goodBatch(int64(2*i+1), 1))
		}
		d := new(decompressor)
		if _, err := d.decompress(bomb[batchHead:], codec, leastDecompressed); !errors.Is(err, errBomb) {
			t.Fatalf("%s: %v", codec, err)
		}
		all, _ := readAll(t, room{records: bufferBytes}, batches...)
		innocents(t, valuesRead(all), good...)
		if len(all) != 40 {
			t.Errorf("%s: %d records, want 20 bombs and 20 good ones", codec, len(all))
		}
		if most := 4 * leastDecompressed; cap(d.scratch) > most {
			t.Errorf("%s: the scratch has %d bytes, at most %d are allowed", codec, cap(d.scratch), most)
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
		all, _ := readAll(t, room{records: bufferBytes}, batchOfCodec(0, n, compress.Zstd, out.Bytes()))
		if len(all) != n || all[0].unread != nil {
			t.Errorf("%d records of %d, %+v", len(all), n, all[0].unread)
		}
	}
	for _, size := range []int{1, leastScratch - 20, leastScratch, 4 << 20, leastDecompressed - 20} { // whatever it becomes, within the bound
		for _, codec := range codecs {
			if all, _ := readAll(t, room{records: bufferBytes}, squeezed(0, 1, codec, zeros(1, size))); all[0].unread != nil && size < leastDecompressed-baseCost || len(all) != 1 {
				t.Errorf("%s, %d bytes: %+v", codec, size, all[0].unread)
			}
		}
	}
}

// What claims to become gigabytes, without being so, costs nothing either.
func TestAttackClaims(t *testing.T) {
	claims := map[string][]byte{
		"snappy in one":    batchOfCodec(1, 1, compress.Snappy, append(binary.AppendUvarint(nil, 1<<32-1), 0, 0)),
		"snappy in chunks": batchOfCodec(1, 1, compress.Snappy, slices.Concat(chunkMark, []byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7}, binary.AppendUvarint(nil, 1<<32-1), []byte{0, 0})),
		"zstd, its size":   batchOfCodec(1, 1, compress.Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x7f, 1, 0, 0}),
		"zstd, its window": batchOfCodec(1, 1, compress.Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 1, 0, 0}),
	}
	for name, claim := range claims {
		all, alloc := readAll(t, room{records: bufferBytes}, goodBatch(0, 1), claim, goodBatch(2, 1))
		innocents(t, valuesRead(all), goods(0, 2)...)
		if len(all) != 3 || all[1].unread == nil || alloc > 2*leastDecompressed {
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
	all, alloc := readAll(t, room{records: bufferBytes}, squeezed(0, 3, compress.Zstd, bytes.NewReader(content)), goodBatch(3, 1))
	innocents(t, valuesRead(all), goods(3)...)
	if len(all) != 4 || all[0].unread != nil || all[1].unread == nil || all[1].unread.last != 1 || all[2].unread != nil || all[3].unread != nil {
		t.Errorf("%d records, want only the second to be unread", len(all))
	}
	if most := uint64(8 * leastDecompressed); alloc > most {
		t.Errorf("%d bytes allocated, at most %d are allowed", alloc, most)
	}

	const tiny = 300_000
	all, alloc = readAll(t, room{records: bufferBytes}, squeezed(0, tiny, compress.Zstd, zeros(tiny, 0)))
	for i, r := range all {
		if r.offset != int64(i) || r.unread != nil {
			t.Fatalf("record %d: %+v", i, r)
		}
	}
	if most := uint64(8 * leastDecompressed); len(all) != tiny || alloc > most {
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
		all, alloc := readAll(t, room{records: bufferBytes}, goodBatch(0, 3), sealMessage(raw), goodBatch(8, 1))
		innocents(t, valuesRead(all), goods(0, 1, 2, 8)...)
		if len(all) != 5 || all[3].unread == nil || all[3].offset != 3 || all[3].unread.last != 7 {
			t.Errorf("%s: %d records", codec, len(all))
		}
		if most := uint64(8 * leastDecompressed); alloc > most {
			t.Errorf("%s: %d bytes allocated, at most %d are allowed", codec, alloc, most)
		}
	}
}

// The delivery that stands for a bomb says what it is, and settles all of it. No
// partition waits, and none of the good messages beside it is touched.
func TestAttackBombIsOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.log = []rawBatch{
			{base: 0, raw: goodBatch(0, 3)}, {base: 3, last: 12, raw: squeezed(3, 10, compress.Zstd, zeros(10, 10<<20))}, {base: 13, raw: goodBatch(13, 3), last: 15},
		}
		s.committing(never)
		f, err := readerOn(t, s, first, commitment{0, ownerClean}, span{0, 16}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		ds := f.collect(5 * time.Second)
		innocents(t, runnable(ds), goods(0, 1, 2, 13, 14, 15)...)
		if len(ds) != 7 {
			t.Fatalf("%d deliveries, want 6 good ones and the bomb", len(ds))
		}
		for i, d := range ds {
			if bomb := i == 3; (d.Unreadable != nil) != bomb {
				t.Errorf("delivery %d is unreadable: %v", i, d.Unreadable)
			}
		}
		d := ds[3]
		want := brokers.Headers{{Name: "topic", Value: "orders"}, {Name: "partition", Value: "0"}, {Name: "offset", Value: "3"},
			{Name: "last-offset", Value: "12"}, {Name: "bytes", Value: fmt.Sprint(len(s.log[1].raw))}, {Name: "codec", Value: "zstd"}}
		if d.Message.ID != "orders/0/3" || d.Message.Topic != "orders" || d.Message.Body != nil || !slices.Equal(d.Meta().Origin, want) {
			t.Errorf("%+v, origin %v; want %v", d.Message, d.Meta().Origin, want)
		}
		for _, text := range []string{"3 to 12", "zstd", "MaxDecompressed", "kafka-console-consumer.sh --topic orders --partition 0 --offset 3 --max-messages 10"} {
			if !strings.Contains(d.Unreadable.Error(), text) {
				t.Errorf("%q does not say %q", d.Unreadable, text)
			}
		}
		if low := f.progress.lowWater(); low != 16 {
			t.Errorf("%d is committed, want 16", low)
		}
	})
}

// In a delay topic, where only workers write, nothing is passed over: the
// partition waits, and the error says how it goes on.
func TestAttackBombInADelayTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.topics[delayOfOrders] = 1
		s.log = []rawBatch{{base: 0, last: 4, raw: squeezed(0, 5, compress.Lz4, zeros(5, 10<<20))}}
		f, err := readerOn(t, s, partition{delayOfOrders, 0}, commitment{0, ownerClean}, span{0, 5}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		ds, err := f.source.Receive(t.Context(), 10)
		if len(ds) > 0 || !errors.Is(err, errBomb) || errors.Is(err, brokers.ErrMisconfigured) {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		for _, text := range []string{"raise Options.MaxDecompressed", "kafka-consumer-groups.sh --group g --topic " + delayOfOrders + ":0 --reset-offsets --to-offset 5 --execute"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q does not say %q", err, text)
			}
		}
	})
}

// Ten thousand of the largest messages that any topic takes by default, a
// hundredth of their size in the log, are with the worker a few at a time.
func TestAttackLargestMessages(t *testing.T) {
	livetest.Nightly(t) // ten gigabytes are decoded
	const each, batches, size, most = 2, 5000, 1_000_000, 64 << 20
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		raw := squeezed(0, each, compress.Zstd, zeros(each, size))
		for i := range int64(batches) {
			b := bytes.Clone(raw)
			binary.BigEndian.PutUint64(b, uint64(i*each))
			s.log = append(s.log, rawBatch{base: i * each, last: i*each + each - 1, raw: b})
		}
		s.committing(never)
		f, err := readerOn(t, s, first, commitment{0, ownerClean}, span{0, each * batches}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		seen := int64(0)
		var stats runtime.MemStats
		for seen < each*batches {
			ds, err := f.source.Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				if d.Unreadable != nil || len(d.Message.Body) != size || d.Token.(*token).offset != seen {
					t.Fatalf("message %s has %d bytes, %v", d.Message.ID, len(d.Message.Body), d.Unreadable)
				}
				seen++
			}
			f.source.Settle(t.Context(), acks(ds))
			if seen%500 < int64(len(ds)) {
				runtime.GC()
				runtime.ReadMemStats(&stats)
				if stats.HeapAlloc > most {
					t.Fatalf("after %d messages %d bytes are in use, at most %d are allowed", seen, stats.HeapAlloc, most)
				}
			}
		}
	})
}

// What a producer compressed must go back: as a retry, as a dead letter, into
// topics that take no more than its own.
func TestAttackCompressedMessageGoesBack(t *testing.T) {
	random := noise(aloneBytes)
	headers := []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "null"}, {Key: "", Value: []byte{}}}
	for name, tt := range map[string]struct {
		record record
		most   int // bytes of its batch
	}{
		"zeros":                {record{key: []byte("k"), value: make([]byte, 3<<20), headers: headers}, 4000},
		"text":                 {record{key: []byte{}, value: bytes.Repeat([]byte(`{"order":17,"customer":"a","lines":[1,2,3]}`), 50_000), headers: headers}, 10_000},
		"what is not smaller":  {record{value: random}, record{value: random}.size()},
		"nothing":              {record{}, record{}.size()},
		"no value, but a head": {record{headers: headers}, record{headers: headers}.size()},
	} {
		for _, codec := range []compress.Compression{compress.None, compress.Gzip, compress.Zstd} {
			batch := batchOf(tt.record, codec, time.UnixMilli(stubTime))
			if codec != compress.None && len(batch) > tt.most {
				t.Errorf("%s, %s: a batch of %d bytes, at most %d are allowed", name, codec, len(batch), tt.most)
			}
			got, err := readBatches(0, batch)
			if err != nil || len(got.records) != 1 || got.next != 1 {
				t.Errorf("%s, %s: %d records, %v", name, codec, len(got.records), err)
				continue
			}
			r := got.records[0]
			if !bytes.Equal(r.value, tt.record.value) || (r.value == nil) != (tt.record.value == nil) || !bytes.Equal(r.key, tt.record.key) || (r.key == nil) != (tt.record.key == nil) ||
				fmt.Sprintf("%#v", r.headers) != fmt.Sprintf("%#v", tt.record.headers) || r.time.UnixMilli() != stubTime {
				t.Errorf("%s, %s: it came as %.200v", name, codec, *r)
			}
		}
	}
}

// A batch that is refused goes once more, one by one and compressed, also a
// single one: its topic may take less than a batch of the writer.
func TestAttackRefusedBatchIsCompressed(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, _ *client) {
		p := s.producer()
		defer p.close(t.Context())
		alone := 0
		s.answer = answering(func(req *produce.Request) protocol.Message {
			if codecIn(req) != compress.Gzip {
				return produced(req, int16(kafka.MessageSizeTooLarge))
			}
			alone++
			return produced(req, 0)
		})
		out := outgoing{topic: "orders", partition: 1, record: record{value: make([]byte, 100_000)}}
		if errs := p.produce(t.Context(), []outgoing{out}); errs != nil || alone != 1 {
			t.Errorf("%v, stored %d times", errs, alone)
		}
		if errs := p.produce(t.Context(), []outgoing{out, out}); errs != nil || alone != 3 {
			t.Errorf("%v, stored %d times", errs, alone)
		}
	})
}

func codecIn(req *produce.Request) compress.Compression {
	return req.Topics[0].Partitions[0].RecordSet.Attributes.Compression()
}

// The producer compresses a record only to fit its topic, and uses zstd only if
// gzip is too large. After a refusal it sends only a smaller batch.
func TestCodecsInTurn(t *testing.T) {
	const none, gzip, zstd = compress.None, compress.Gzip, compress.Zstd
	small, large := make([]byte, batchBytes-1000), make([]byte, batchBytes)
	for name, tt := range map[string]struct {
		value   []byte
		refused []compress.Compression // codecs that the topic refuses
		want    []compress.Compression // codecs that are sent, in turn
		err     error
	}{
		"fits":                            {small, nil, []compress.Compression{none}, nil},
		"fits as gzip":                    {small, []compress.Compression{none}, []compress.Compression{none, gzip}, nil},
		"fits as zstd":                    {small, []compress.Compression{none, gzip}, []compress.Compression{none, gzip, zstd}, nil},
		"fits never":                      {small, []compress.Compression{none, gzip, zstd}, []compress.Compression{none, gzip, zstd}, brokers.ErrRefused},
		"most topics refuse it":           {large, nil, []compress.Compression{gzip}, nil},
		"is not smaller":                  {noise(batchBytes), nil, []compress.Compression{none}, nil},
		"is not smaller, and is too much": {noise(batchBytes), []compress.Compression{none}, []compress.Compression{none}, brokers.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(t *testing.T, s *stub, _ *client) {
				p := s.producer()
				defer p.close(t.Context())
				var sent []compress.Compression
				s.answer = answering(func(req *produce.Request) protocol.Message {
					sent = append(sent, codecIn(req))
					if slices.Contains(tt.refused, codecIn(req)) {
						return produced(req, int16(kafka.MessageSizeTooLarge))
					}
					return produced(req, 0)
				})
				errs := p.produce(t.Context(), []outgoing{{topic: "orders", partition: byKey, record: record{value: tt.value}}})
				if err := errors.Join(errs...); !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) || !slices.Equal(sent, tt.want) {
					t.Errorf("sent as %v, want %v; %v", sent, tt.want, err)
				}
			})
		})
	}
}

// A retry of what is not read would store an empty message, which is run: it is
// refused, and the delivery is held.
func TestAttackBombIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.log = []rawBatch{{base: 0, last: 2, raw: squeezed(0, 3, compress.Gzip, zeros(3, 10<<20))}}
		f, err := readerOn(t, s, first, commitment{0, ownerClean}, span{0, 3}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		src := f.source
		for _, action := range []brokers.Action{brokers.Retry, brokers.Release} {
			ds, err := src.Receive(t.Context(), 3)
			if err != nil || len(ds) != 1 || ds[0].Unreadable == nil {
				t.Fatalf("%d deliveries, %v", len(ds), err)
			}
			errs := src.Settle(t.Context(), []brokers.Settlement{{Delivery: ds[0], Action: action, Delay: time.Second}})
			if action == brokers.Retry {
				if len(errs) == 0 || !errors.Is(errs[0], brokers.ErrRefused) || !strings.Contains(errs[0].Error(), "kafka-console-consumer.sh") {
					t.Errorf("retry: %v", errs)
				}
				errs = src.Settle(t.Context(), []brokers.Settlement{{Delivery: ds[0], Action: brokers.Release}})
			}
			if errs != nil || f.progress.lowWater() != 0 {
				t.Errorf("release: %v, %d is committed", errs, f.progress.lowWater())
			}
		}
		if ds, err := src.Receive(t.Context(), 3); err != nil || len(ds) != 1 || src.Settle(t.Context(), acks(ds)) != nil || f.progress.lowWater() != 3 {
			t.Errorf("%d deliveries, %v, %d is committed", len(ds), err, f.progress.lowWater())
		}
		if s.count(protocol.Produce) > 0 {
			t.Error("something was copied")
		}
	})
}

// What is rejected is done: the log keeps it. What is no action settles nothing.
func TestRejectLeavesItToTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		s.log = []rawBatch{{records: numbered(0, 3)}}
		f, err := readerOn(t, s, first, commitment{0, ownerClean}, span{0, 3}, usualLimits)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.run()
		src := f.source
		ds, err := src.Receive(t.Context(), 3)
		if err != nil || len(ds) != 3 {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		settle := func(action brokers.Action, d *brokers.Delivery) error {
			return errors.Join(src.Settle(t.Context(), []brokers.Settlement{{Delivery: d, Action: action}})...)
		}
		if err := settle(brokers.Reject, ds[0]); err != nil || f.progress.lowWater() != 1 {
			t.Errorf("reject: %v, %d is committed", err, f.progress.lowWater())
		}
		if err := settle(brokers.Reject, ds[0]); !errors.Is(err, brokers.ErrSettled) {
			t.Errorf("reject once more: %v", err)
		}
		if err := settle(brokers.Reject+1, ds[1]); err == nil || !strings.Contains(err.Error(), "still held") || f.progress.lowWater() != 1 {
			t.Errorf("no action: %v, %d is committed", err, f.progress.lowWater())
		}
		for _, d := range ds[1:] {
			if err := settle(brokers.Ack, d); err != nil {
				t.Error(err)
			}
		}
		if s.count(protocol.Produce) > 0 {
			t.Error("something was copied")
		}
	})
}
