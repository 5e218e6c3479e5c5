package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/livetest"
)

// patience is the deadline of calls that tests are not about: a broker that has
// just started on a busy machine takes its time.
const patience = time.Minute

// live runs a test on every real broker, with a client and a fresh topic of
// one partition, at the same time as others.
func live(t *testing.T, test func(t *testing.T, c *client, topic string)) {
	t.Helper()
	t.Parallel()
	liveAlone(t, test)
}

// liveAlone runs test like live, but not at the same time as others.
func liveAlone(t *testing.T, test func(t *testing.T, c *client, topic string)) {
	t.Helper()
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		o := clientOptions{brokers: strings.Split(target.URL, ","), clientID: "redrive-test"}
		c := newClient(o)
		t.Cleanup(c.close)
		o.timeout = patience
		topic := uniqueName("calls")
		janitor := newClient(o)
		err := janitor.create(t.Context(), topic, 1, 1, nil)
		janitor.close() // a test may look for what is left open
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			janitor := newClient(o)
			defer janitor.close()
			drop(t, janitor, topic)
		})
		test(t, c, topic)
	})
}

// onFake reports whether the broker is one that takes any name and setting.
func onFake() bool { return os.Getenv("REDRIVE_KAFKA_FAKE") == "true" }

func drop(t *testing.T, c *client, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := c.calls.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
		t.Errorf("delete topic %q: %v", topic, err)
	}
}

func mustFetch(t *testing.T, c *client, p partition, offset int64, maxBytes int, wait time.Duration) fetched {
	t.Helper()
	got, err := c.fetch(withinTime(t), p, offset, maxBytes, wait)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// drain fetches from offset until there is nothing more, and fails if that
// does not come nearer with every call.
func drain(t *testing.T, c *client, p partition, offset int64) (records []*record, next int64, calls int) {
	t.Helper()
	for {
		got := mustFetch(t, c, p, offset, 1<<20, 20*time.Millisecond)
		calls++
		records = append(records, got.records...)
		if got.next < offset {
			t.Fatalf("fetch from %d says to go on from %d", offset, got.next)
		}
		if got.next == offset {
			if got.stable > offset {
				t.Fatalf("fetch from %d does not come further, and the log goes to %d", offset, got.stable)
			}
			return records, got.next, calls
		}
		offset = got.next
	}
}

func TestFetchFromWithinABatch(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		for i, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
			base := store(t, c, p, codec, numbered(100*i, 100)...)
			got := mustFetch(t, c, p, base+57, 1<<20, 0)
			if len(got.records) != 43 || got.records[0].offset != base+57 || string(got.records[0].value) != fmt.Sprint(100*i+57) {
				t.Fatalf("codec %d: %d records, the first is %+v; want 43 from offset %d", codec, len(got.records), got.records[:1], base+57)
			}
			if got.next != base+100 || got.highWater != base+100 || got.stable != base+100 || got.logStart != 0 {
				t.Errorf("codec %d: next %d, high water %d, stable %d, start %d", codec, got.next, got.highWater, got.stable, got.logStart)
			}
			if d := time.Since(got.records[0].time); d < 0 || d > time.Minute {
				t.Errorf("codec %d: the record was made %v ago", codec, d)
			}
		}
		end := mustFetch(t, c, p, 500, 1<<20, 0)
		if len(end.records) != 0 || end.next != 500 {
			t.Errorf("at the end: %d records, next %d", len(end.records), end.next)
		}
	})
}

func TestFetchWaits(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		go func() {
			pause(50 * time.Millisecond)
			c.calls.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("x"))})})
		}()
		for start := time.Now(); ; {
			if got := mustFetch(t, c, p, 0, 1<<20, time.Hour); len(got.records) == 1 {
				break
			}
			if time.Since(start) > patience {
				t.Fatal("the record does not come")
			}
		}
		start := time.Now()
		mustFetch(t, c, p, 1, 1<<20, time.Hour) // in vain, if it waits for more than longestWait
		if d := time.Since(start); d < 300*time.Millisecond {
			t.Errorf("a fetch at the end waited %v, want %v", d, longestWait)
		}
	})
}

func TestTransactions(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		x, y := begin(t, c, topic), begin(t, c, topic)
		x.write(t, "x1", "x2")
		store(t, c, p, 0, record{value: []byte("plain1")})
		y.write(t, "y1")
		x.end(t, false)
		x.begin(t)
		x.write(t, "x3")
		store(t, c, p, 0, record{value: []byte("plain2")})
		got, next, _ := drain(t, c, p, 0)
		if values(got) != "plain1" || next != 3 {
			t.Errorf("with a transaction open since offset 3: %q, next %d", values(got), next)
		}
		y.end(t, true)
		x.end(t, true)
		x.begin(t)
		x.write(t, "x4")
		x.end(t, false)
		got, next, calls := drain(t, c, p, 0)
		if want := "plain1 y1 x3 plain2"; values(got) != want {
			t.Errorf("records %q, want %q", values(got), want)
		}
		// x1 x2 plain1 y1 abort x3 plain2 commit commit x4 abort
		if next != 11 || calls > 3 {
			t.Errorf("next %d after %d calls, want 11 in at most 3: a mark is at the tail", next, calls)
		}
		for offset := range int64(11) { // from wherever one begins
			got, next, _ := drain(t, c, p, offset)
			if next != 11 || len(got) > 4 || strings.Contains(values(got), "x1") || strings.Contains(values(got), "x2") || strings.Contains(values(got), "x4") {
				t.Errorf("from offset %d: %q, next %d", offset, values(got), next)
			}
		}
	})
}

type transaction struct {
	c        *client
	id       string
	topic    string
	producer int
	epoch    int
	sequence int32
}

func begin(t *testing.T, c *client, topic string) *transaction {
	t.Helper()
	x := &transaction{c: c, id: uniqueName("tx"), topic: topic}
	for range 100 {
		res, err := c.calls.InitProducerID(withinTime(t), &kafka.InitProducerIDRequest{TransactionalID: x.id, TransactionTimeoutMs: 60_000, ProducerID: -1, ProducerEpoch: -1})
		if err == nil && res.Error == nil && res.Producer.ProducerID >= 0 {
			x.producer, x.epoch = res.Producer.ProducerID, res.Producer.ProducerEpoch
			x.begin(t)
			return x
		}
		pause(100 * time.Millisecond)
	}
	t.Fatal("the broker hands out no producer id")
	return nil
}

func (x *transaction) begin(t *testing.T) {
	t.Helper()
	var failed error
	for range 50 {
		res, err := x.c.calls.AddPartitionsToTxn(withinTime(t), &kafka.AddPartitionsToTxnRequest{
			TransactionalID: x.id, ProducerID: x.producer, ProducerEpoch: x.epoch,
			Topics: map[string][]kafka.AddPartitionToTxn{x.topic: {{Partition: 0}}},
		})
		if failed = err; err == nil {
			failed = res.Topics[x.topic][0].Error
		}
		if failed == nil {
			return
		}
		pause(50 * time.Millisecond)
	}
	t.Fatalf("begin a transaction: %v", failed)
}

func (x *transaction) write(t *testing.T, values ...string) {
	t.Helper()
	b := rawBatch{producer: int64(x.producer), epoch: int16(x.epoch), sequence: x.sequence, transactional: true}
	for i, value := range values {
		b.records = append(b.records, record{offset: int64(i), value: []byte(value)})
	}
	x.sequence += int32(len(values))
	storeRaw(t, x.c, partition{x.topic, 0}, x.id, b)
}

func (x *transaction) end(t *testing.T, commit bool) {
	t.Helper()
	before, err := x.c.bounds(withinTime(t), []partition{{x.topic, 0}})
	if err != nil {
		t.Fatal(err)
	}
	res, err := x.c.calls.EndTxn(withinTime(t), &kafka.EndTxnRequest{TransactionalID: x.id, ProducerID: x.producer, ProducerEpoch: x.epoch, Committed: commit})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		t.Fatalf("end a transaction: %v", err)
	}
	for range 500 { // the marks are written after the answer
		now, err := x.c.bounds(withinTime(t), []partition{{x.topic, 0}})
		if err == nil && now[partition{x.topic, 0}].last > before[partition{x.topic, 0}].last {
			return
		}
		pause(10 * time.Millisecond)
	}
	t.Fatal("the mark of the transaction does not come")
}

func TestHolesOfCompaction(t *testing.T) {
	live(t, func(t *testing.T, c *client, _ string) {
		topic := uniqueName("compacted")
		err := c.create(withinTime(t), topic, 1, 1, map[string]string{
			"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0001", "segment.ms": "100",
			"min.compaction.lag.ms": "0", "max.compaction.lag.ms": "100", "delete.retention.ms": "0",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer drop(t, c, topic)
		p := partition{topic, 0}
		same := func(n int, key string) []record {
			records := numbered(0, n)
			for i := range records {
				records[i].key = []byte(key)
			}
			return records
		}
		store(t, c, p, 0, same(1, "first")...)
		store(t, c, p, 0, append(same(1, "kept"), same(3000, "a")...)...) // of which one record stays
		store(t, c, p, 0, same(1000, "a")...)
		pause(150 * time.Millisecond)
		store(t, c, p, 0, same(1, "a")...)
		pause(150 * time.Millisecond)
		last := store(t, c, p, 0, same(1, "z")...)
		deadline := time.Now().Add(3 * patience)
		for {
			got, next, calls := drain(t, c, p, 0)
			if next != last+1 {
				t.Fatalf("the end is at %d, want %d", next, last+1)
			}
			if len(got) <= 5 {
				if calls > 10 {
					t.Errorf("%d calls to pass the holes", calls)
				}
				for offset := int64(0); offset <= last; offset += 97 {
					if _, next, _ := drain(t, c, p, offset); next != last+1 {
						t.Fatalf("from %d the end is at %d, want %d", offset, next, last+1)
					}
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the broker does not compact: %d records after %v", len(got), 3*patience)
			}
			pause(500 * time.Millisecond)
		}
	})
}

func TestRecordsLargerThanAFetch(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		large := bytes.Repeat([]byte("x"), 900_000)
		store(t, c, p, 0, record{value: large})
		store(t, c, p, 0, record{value: large[:10]})
		got := mustFetch(t, c, p, 0, 1000, 0)
		if len(got.records) != 1 || !bytes.Equal(got.records[0].value, large) || got.next != 1 {
			t.Fatalf("%d records, next %d; want the large one", len(got.records), got.next)
		}
		if got = mustFetch(t, c, p, 1, 1000, 0); len(got.records) != 1 || got.next != 2 {
			t.Errorf("%d records after it, next %d", len(got.records), got.next)
		}
	})
}

func TestOutOfRange(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		store(t, c, p, 0, numbered(0, 3)...)
		for _, offset := range []int64{4, 1000, -1} {
			_, err := c.fetch(withinTime(t), p, offset, 1<<20, 0)
			e, ok := errors.AsType[*rangeError](err)
			if !ok || e.first != 0 || e.last != 3 || e.offset != offset || !errors.Is(err, kafka.OffsetOutOfRange) {
				t.Errorf("fetch from %d: %v (%+v)", offset, err, e)
			}
			if errors.Is(err, brokers.ErrMisconfigured) {
				t.Errorf("fetch from %d is misconfigured: %v", offset, err)
			}
		}
	})
}

func TestDeletedAndMadeAnew(t *testing.T) {
	live(t, func(t *testing.T, c *client, topic string) {
		p := partition{topic, 0}
		store(t, c, p, 0, numbered(0, 5)...)
		mustFetch(t, c, p, 0, 1<<20, 0)
		drop(t, c, topic)
		err := errors.New("none")
		for range 50 { // the broker may need a moment
			if _, err = c.fetch(withinTime(t), p, 0, 1<<20, 0); err != nil {
				break
			}
			pause(20 * time.Millisecond)
		}
		if !errors.Is(err, kafka.UnknownTopicOrPartition) || !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), topic) {
			t.Errorf("fetch from a deleted topic: %v", err)
		}
		if states, err := c.topics(withinTime(t), topic); err != nil || !states[topic].missing {
			t.Errorf("a deleted topic is %+v, %v", states, err)
		}
		pr := newProducer(c.options)
		defer pr.close(t.Context())
		errs := pr.produce(withinTime(t), []outgoing{{topic: topic, partition: byKey, record: record{value: []byte("x")}}})
		if errs == nil || !errors.Is(errs[0], brokers.ErrMisconfigured) {
			t.Errorf("produce to a deleted topic: %v", errs)
		}
		if err := c.create(withinTime(t), topic, 2, 1, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.create(withinTime(t), topic, 1, 1, nil); err != nil {
			t.Errorf("create what exists: %v", err)
		}
		if states, err := c.topics(withinTime(t), topic, "nobody-made-this"); err != nil || states[topic].partitions != 2 ||
			states[topic].replication != 1 || !states[topic].leaders || !states["nobody-made-this"].missing {
			t.Errorf("topics: %+v, %v", states, err)
		}
		if _, err := c.fetch(withinTime(t), p, 5, 1<<20, 0); !errors.Is(err, kafka.OffsetOutOfRange) {
			t.Errorf("fetch of the old offset from the new topic: %v", err)
		}
		if errs := pr.produce(withinTime(t), []outgoing{{topic: topic, partition: 1, record: record{value: []byte("x")}}}); errs != nil {
			t.Errorf("produce to the new topic: %v", errs)
		}
		if got := mustFetch(t, c, partition{topic, 1}, 0, 1<<20, 0); len(got.records) != 1 {
			t.Errorf("partition 1 has %d records", len(got.records))
		}
	})
}
