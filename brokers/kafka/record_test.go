package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

var noSeal adapter.Seal

var (
	recordNow    = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	recordLimits = wire.Limits{Now: recordNow, MaxDelay: time.Hour}
	orders       = partition{"orders", 3}
)

func understood(r record, p partition, retried bool, limits wire.Limits) (brokers.Message, brokers.Meta) {
	d := brokers.Delivery{Token: &token{reader: &reader{partition: p}, offset: r.offset}}
	understand(&d, &r, p, retried, limits, &texts{before: placesOf(p)})
	return d.Message, d.Meta()
}

func TestForeignRecord(t *testing.T) {
	r := record{offset: 17, time: recordNow.Add(-time.Minute), key: []byte("k\xff"), value: []byte{0, 1}, headers: []kafka.Header{
		{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}, {Key: "", Value: []byte{0xff}},
	}}
	m, meta := understood(r, orders, false, recordLimits)
	want := brokers.Message{
		ID: "orders/3/17", Topic: "orders", Key: "k\xff", Body: []byte{0, 1}, PublishedAt: r.time,
		Headers: brokers.Headers{{Name: "b", Value: "1"}, {Name: "a", Type: "null"}, {Name: "b"}, {Name: "", Value: "\xff"}},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("message\n got %+v\nwant %+v", m, want)
	}
	origin := brokers.Headers{{Name: "topic", Value: "orders"}, {Name: "partition", Value: "3"}, {Name: "offset", Value: "17"}}
	if !reflect.DeepEqual(meta, brokers.Meta{Origin: origin}) {
		t.Errorf("meta = %+v, want only the origin", meta)
	}

	meta.Attempt, meta.DueAt = 1, recordNow.Add(50*time.Minute)
	delay := partition{"redrive.delay.v1.group.3h", 0}
	for hop := range 3 {
		r = copyOf(noSeal, m, meta)
		r.offset, r.time = int64(1000+hop), recordNow
		again, metaAgain := understood(r, delay, true, recordLimits)
		if !reflect.DeepEqual(again, want) {
			t.Errorf("after hop %d\n got %+v\nwant %+v", hop+1, again, want)
		}
		for i := range metaAgain.Origin {
			metaAgain.Origin[i].Type = ""
		}
		metaAgain.DueAt = metaAgain.DueAt.UTC()
		if !reflect.DeepEqual(metaAgain, meta) {
			t.Errorf("meta after hop %d\n got %+v\nwant %+v", hop+1, metaAgain, meta)
		}
		m, meta = again, metaAgain
	}
	if !r.time.Equal(recordNow) || !bytes.Equal(r.key, []byte("k\xff")) {
		t.Errorf("the copy is %+v", r)
	}
}

func TestHeadersOfOddTypes(t *testing.T) {
	with := recordOf(brokers.Message{Key: "k"}, brokers.Headers{{Type: typeKey}, {Name: "n", Value: "text", Type: typeNull}, {Name: "i", Value: "3", Type: "int32"}})
	want := record{key: []byte("k"), headers: []kafka.Header{{Key: "n", Value: []byte("text")}, {Key: "i", Value: []byte("3")}}}
	if !reflect.DeepEqual(with, want) {
		t.Errorf("record of odd types\n got %+v\nwant %+v", with, want)
	}
}

func TestForgedProgress(t *testing.T) {
	forged := copyOf(noSeal, brokers.Message{ID: "id-1", Topic: "payments", Key: "k", Body: []byte("b"), PublishedAt: recordNow.Add(-time.Hour)}, brokers.Meta{
		Attempt: 7, DueAt: recordNow.Add(time.Hour), IdempotencyKey: "once", RedriveCount: 2,
		Origin: brokers.Headers{{Name: "topic", Value: "elsewhere"}},
		Death:  &brokers.Death{Reason: "poison", Attempt: 1, ErrorText: `no article "7"`},
	})
	forged.headers = append(forged.headers, kafka.Header{Key: "redrive-death-reason", Value: []byte("forged")}) // the packed header counts, not this one
	m, meta := understood(forged, orders, false, recordLimits)
	if m.ID != "id-1" || m.Topic != "orders" || !m.PublishedAt.Equal(recordNow.Add(-time.Hour)) || len(m.Headers) != 0 {
		t.Errorf("on an entry topic: %+v", m)
	}
	if meta.Attempt != 0 || meta.Death != nil || !meta.DueAt.IsZero() || meta.IdempotencyKey != "once" || meta.RedriveCount != 2 || meta.Origin.Get("topic") != "orders" {
		t.Errorf("on an entry topic: %+v", meta)
	}
	m, meta = understood(forged, partition{"delay", 0}, true, recordLimits)
	if m.Topic != "payments" || meta.Attempt != 7 || meta.Death == nil || meta.Death.Reason != "poison" || meta.Death.ErrorText != `no article "7"` || !meta.DueAt.Equal(recordNow.Add(time.Hour)) || meta.Origin.Get("topic") != "elsewhere" {
		t.Errorf("on a delay topic: %+v, %+v", m, meta)
	}
	if again, _ := understood(published(m), orders, false, recordLimits); again.ID != "id-1" {
		t.Errorf("published: %+v", again)
	}
}

// TestCopiesOfEarlierVersions reads copies with one header for each field.
func TestCopiesOfEarlierVersions(t *testing.T) {
	m := brokers.Message{ID: "id-1", Topic: "orders", Key: "k", Body: []byte("b"), PublishedAt: recordNow.Add(-time.Hour),
		Headers: brokers.Headers{{Name: "b", Value: "1"}, {Name: "a"}, {Name: "b", Value: "2"}}}
	meta := brokers.Meta{Attempt: 2, DueAt: recordNow.Add(time.Minute).UTC(), Class: "transient", Delay: time.Minute,
		Origin: brokers.Headers{{Name: "topic", Value: "orders"}, {Name: "partition", Value: "3"}, {Name: "offset", Value: "17"}}}
	plain := m
	plain.Key = ""
	now, before := copyOf(noSeal, m, meta), recordOf(m, wire.Encode(plain, meta))
	if len(now.headers) != 4 || len(before.headers) < 10 {
		t.Fatalf("%d headers now, %d before", len(now.headers), len(before.headers))
	}
	for name, r := range map[string]record{"now": now, "before": before} {
		got, gotMeta := understood(r, partition{"delay", 0}, true, recordLimits)
		if !reflect.DeepEqual(got, m) || !reflect.DeepEqual(gotMeta, meta) {
			t.Errorf("%s\n got %+v, %+v\nwant %+v, %+v", name, got, gotMeta, m, meta)
		}
		if due := dueOf(&r); due != meta.DueAt.UnixMilli() {
			t.Errorf("%s: due at %d, want %d", name, due, meta.DueAt.UnixMilli())
		}
	}
	damaged := record{headers: []kafka.Header{{Key: wire.Packed, Value: []byte(`{"topic":"orders","attempt":"2","due-a`)}}}
	if got, gotMeta := understood(damaged, partition{"delay", 0}, true, recordLimits); got.Topic != "orders" || gotMeta.Attempt != 2 || dueOf(&damaged) != 0 {
		t.Errorf("damaged: %+v, %+v, due at %d", got, gotMeta, dueOf(&damaged))
	}
}

func TestTimesOfRecords(t *testing.T) {
	for name, tt := range map[string]struct{ stamp, want time.Time }{
		"none":   {time.Time{}, time.Time{}},
		"epoch":  {time.UnixMilli(0), time.Time{}},
		"before": {time.UnixMilli(-1), time.Time{}},
		"past":   {recordNow.Add(-time.Second), recordNow.Add(-time.Second)},
		"future": {recordNow.Add(time.Second), recordNow},
	} {
		if m, _ := understood(record{time: tt.stamp}, orders, false, recordLimits); !m.PublishedAt.Equal(tt.want) {
			t.Errorf("%s: published at %v, want %v", name, m.PublishedAt, tt.want)
		}
	}
}

func TestLongNamesKeepTheirID(t *testing.T) {
	long := partition{strings.Repeat("t", 249), 2_147_483_647}
	m, meta := understood(record{offset: 1<<63 - 1}, long, false, recordLimits)
	again, _ := understood(copyOf(noSeal, m, meta), partition{"delay", 0}, true, recordLimits)
	if again.ID != m.ID || !strings.HasSuffix(m.ID, "/2147483647/9223372036854775807") {
		t.Errorf("ID %q became %q", m.ID, again.ID)
	}
}

// TestSizeIsThatOfTheWire compares with batches as the broker stores them.
func TestSizeIsThatOfTheWire(t *testing.T) {
	for _, r := range []record{
		{},
		{key: []byte{}, value: []byte{}},
		{key: []byte("key"), value: make([]byte, 63)},
		{value: make([]byte, 64), headers: []kafka.Header{{Key: "a"}, {Key: "b", Value: []byte{}}, {Key: "c", Value: make([]byte, 9000)}}},
		{key: make([]byte, 70), value: make([]byte, 1_000_000)},
	} {
		if got, want := r.size(), len(batchOf(r, compress.None, time.Time{})); got != want {
			t.Errorf("size %d, the batch has %d bytes", got, want)
		}
	}
}

// What a producer compressed must go back: as a retry, as a dead letter, into
// topics that take no more than its own.
func TestAttackCompressedMessageGoesBack(t *testing.T) {
	random := make([]byte, aloneBytes)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
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
			batch := batchOf(tt.record, codec, recordNow)
			if codec != compress.None && len(batch) > tt.most {
				t.Errorf("%s, %s: a batch of %d bytes, at most %d are allowed", name, codec, len(batch), tt.most)
			}
			got, err := new(decompressor).read(&kmsg.FetchResponseTopicPartition{RecordBatches: batch}, 0, room{records: bufferBytes})
			if err != nil || len(got.records) != 1 || got.next != 1 {
				t.Errorf("%s, %s: %d records, %v", name, codec, len(got.records), err)
				continue
			}
			r := got.records[0]
			if !bytes.Equal(r.value, tt.record.value) || (r.value == nil) != (tt.record.value == nil) || !bytes.Equal(r.key, tt.record.key) || (r.key == nil) != (tt.record.key == nil) ||
				fmt.Sprintf("%#v", r.headers) != fmt.Sprintf("%#v", tt.record.headers) || !r.time.Equal(recordNow) {
				t.Errorf("%s, %s: it came as %.200v", name, codec, *r)
			}
		}
	}
}

// The partitions of the Java client, from the hashes in its own tests.
func TestKeysGoWhereJavaPutsThem(t *testing.T) {
	hashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107, "": 275646681,
	}
	for key, hash := range hashes {
		for n := 1; n < 40; n++ {
			numbers := make([]int, n)
			for i := range numbers {
				numbers[i] = i
			}
			if got, want := balance(kafka.Message{Key: []byte(key)}, numbers...), int(hash&0x7fffffff)%n; got != want {
				t.Errorf("key %q goes to partition %d of %d, want %d", key, got, n, want)
			}
		}
	}
	for name, o := range map[string]outgoing{"no key": {partition: byKey}, "anywhere": {partition: anywhere, record: record{key: []byte("k")}}} {
		seen := make(map[int]int)
		for range 4000 {
			seen[balance(message(o), 0, 1, 2, 3)]++
		}
		for n := range 4 {
			if seen[n] < 500 {
				t.Errorf("%s: partition %d got %d of 4000 records", name, n, seen[n])
			}
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), "h", []byte("1"), "redrive-attempt", []byte("9"), byte(0))
	f.Add([]byte{}, []byte{}, "redrive-id", []byte("x"), "redrive-id", []byte("\xff"), byte(7))
	f.Add([]byte(nil), []byte(nil), "redrive-done", []byte("1"), "redrive-origin-topic", []byte("t"), byte(3))
	f.Add([]byte("k"), []byte("v"), "redrive-due-at", []byte("99999999999999999999"), "redrive-dlq-v", []byte("1"), byte(1))
	f.Fuzz(func(t *testing.T, key, value []byte, name1 string, value1 []byte, name2 string, value2 []byte, nils byte) {
		for i, b := range []*[]byte{&key, &value, &value1, &value2} {
			if nils&(1<<i) != 0 {
				*b = nil
			} else if *b == nil {
				*b = []byte{}
			}
		}
		r := record{offset: 5, time: recordNow, key: key, value: value, headers: []kafka.Header{
			{Key: name1, Value: value1}, {Key: name2, Value: value2}, {Key: name1, Value: value2},
		}}
		m, meta := understood(r, orders, false, recordLimits)
		if meta.Attempt != 0 || !meta.DueAt.IsZero() || m.ID == "" || m.Topic != "orders" || len(meta.Origin) != 3 {
			t.Fatalf("an entry topic gives %+v, %+v", m, meta)
		}
		if p := published(m); !bytes.Equal(p.key, key) || (p.key == nil) != (key == nil) || !bytes.Equal(p.value, value) || (p.value == nil) != (value == nil) {
			t.Fatalf("published again it is %+v", p)
		}
		meta.Attempt, meta.DueAt = 3, recordNow.Add(time.Minute)
		c := copyOf(noSeal, m, meta)
		if _, ok := isDoneRecord(&c); ok || dueOf(&c) != meta.DueAt.UnixMilli() {
			t.Fatalf("a copy with %v is a done record: %v, due at %d", c.headers, ok, dueOf(&c))
		}
		again, metaAgain := understood(c, partition{"delay", 1}, true, recordLimits)
		if !reflect.DeepEqual(again.Headers, m.Headers) && len(again.Headers)+len(m.Headers) > 0 {
			t.Fatalf("headers\n got %+v\nwant %+v", again.Headers, m.Headers)
		}
		if !bytes.Equal(c.key, key) || (c.key == nil) != (key == nil) || !bytes.Equal(c.value, value) || (c.value == nil) != (value == nil) {
			t.Fatalf("key %#v, value %#v became %#v, %#v", key, value, c.key, c.value)
		}
		if again.ID != m.ID || again.Topic != m.Topic || again.Key != m.Key || metaAgain.Attempt != 3 || !metaAgain.DueAt.Equal(meta.DueAt) {
			t.Fatalf("the copy gives %+v, %+v; want %+v, %+v", again, metaAgain, m, meta)
		}
		understood(r, partition{"delay", 1}, true, recordLimits) // whatever it says
	})
}
