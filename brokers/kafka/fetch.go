package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// longestWait bounds how long a fetch waits for records: the connection of one
// that is given up stays busy for as long.
const longestWait = 500 * time.Millisecond

// partition is one of a topic.
type partition struct {
	topic  string
	number int
}

// String names it in errors.
func (p partition) String() string { return fmt.Sprintf("partition %d of topic %q", p.number, p.topic) }

// record is one of a partition. A nil key, value or header value is not the
// same as an empty one.
type record struct {
	offset     int64
	time       time.Time // as its producer, or by the topic's configuration its broker, set it
	key, value []byte
	headers    []kafka.Header
}

// clone returns a record that keeps no others in memory.
func (r *record) clone() *record {
	size := len(r.key) + len(r.value)
	for _, h := range r.headers {
		size += len(h.Value)
	}
	all := make([]byte, 0, size)
	own := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		from := len(all)
		all = append(all, b...)
		return all[from:len(all):len(all)]
	}
	headers := slices.Clone(r.headers)
	for i := range headers {
		headers[i].Value = own(headers[i].Value)
	}
	return &record{offset: r.offset, time: r.time, key: own(r.key), value: own(r.value), headers: headers}
}

// fetched is what a fetch found.
type fetched struct {
	records []*record // ascending, none below the offset that was asked for

	// next is the offset to ask for next. It is beyond that of the fetch unless
	// there is nothing behind that one yet, even if there was nothing to hand
	// out: marks of transactions, aborted records, holes that compaction left.
	next int64

	highWater int64 // one beyond the last record
	stable    int64 // one beyond the last that no open transaction holds up
	logStart  int64 // the first offset that is still there

	witness witness // one of the records, if there is one that can be
}

// fetch returns records from offset on, of about maxBytes, but at least one
// batch if there is one, and waits for the first one for up to wait, at most
// 500 ms. Records of aborted transactions are left out, and those of open ones,
// with all behind them, are not there yet. An offset that the partition does
// not have is a *rangeError. When ctx ends, a fetch that waits is given that
// time to end, so that its connection can serve the next one.
func (c *client) fetch(ctx context.Context, p partition, offset int64, maxBytes int, wait time.Duration) (fetched, error) {
	wait = min(max(wait, 0), longestWait)
	call, cancel := linger(ctx, wait+c.options.timeout, wait+longestWait)
	defer cancel()
	got, err := c.fetchOnce(call, ctx, fetchRequest{partition: p, offset: offset, maxBytes: maxBytes, wait: wait, clientID: c.options.clientID})
	switch {
	case errors.Is(err, kafka.OffsetOutOfRange):
		err = c.outOfRange(ctx, p, offset)
	case errors.Is(err, kafka.InvalidMessage):
		err = fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if err != nil {
		return fetched{next: offset}, explain(err, "fetch %s from offset %d", p, offset)
	}
	return got, nil
}

func (c *client) outOfRange(ctx context.Context, p partition, offset int64) error {
	e := &rangeError{partition: p, offset: offset, first: -1, last: -1}
	all, err := c.bounds(ctx, []partition{p})
	if err != nil {
		return errors.Join(e, err)
	}
	e.first, e.last = all[p].first, all[p].last
	if offset >= e.first && offset <= e.last {
		return kafka.OffsetNotAvailable // it has come back: a new leader, perhaps
	}
	return e
}

// linger returns a context for a call of at most length that goes on for grace
// after ctx has ended.
func linger(ctx context.Context, length, grace time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), length)
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(call, func() { timer.Stop() })
	})
	return call, func() { stop(); cancel() }
}

func (c *client) fetchOnce(call, ctx context.Context, req fetchRequest) (fetched, error) {
	var answer *fetchAnswer
	var found *kmsg.FetchResponseTopicPartition
	err := retry(ctx, func() error {
		attempt := req
		m, err := c.RoundTrip(call, c.addr, &attempt)
		if err != nil {
			return err
		}
		answer = m.(*fetchAnswer)
		found, err = answer.partition()
		return err
	})
	if err != nil {
		return fetched{}, err
	}
	defer answer.release()
	return read(found, req.offset)
}

// decompressor is shared: it keeps what decoders have allocated.
var decompressor = kgo.DefaultDecompressor()

// createTime is the type of times that producers set.
const createTime = 0

// read takes the records from offset on out of an answer.
func read(res *kmsg.FetchResponseTopicPartition, offset int64) (fetched, error) {
	decoded := scratches.Get().(*scratch)
	decoded.next = offset
	defer decoded.release()
	got, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset:         offset,
		IsolationLevel: kgo.ReadCommitted(),
		Pools:          []kgo.Pool{decoded},
	}, res, decompressor, decoded.batch)
	if decoded.cut { // what follows was decoded, too, and must wait
		next = decoded.next
		got.Records = slices.DeleteFunc(got.Records, func(r *kgo.Record) bool { return r.Offset >= next })
	}
	f := fetched{next: next, highWater: res.HighWatermark, stable: res.LastStableOffset, logStart: res.LogStartOffset}
	n := len(got.Records)
	switch {
	case got.Err != nil && n > 0:
		f.next = got.Records[n-1].Offset + 1 // the next fetch begins with what is damaged
	case got.Err != nil:
		return f, fmt.Errorf("%w: %w", errCorrupt, got.Err)
	case next == offset && len(res.RecordBatches) > 0:
		return f, fmt.Errorf("%w: in the %d bytes of its answer there is nothing to decode from there on", errCorrupt, len(res.RecordBatches))
	}
	f.records = make([]*record, n)
	var copies slab
	for i, r := range got.Records {
		f.records[i] = copies.keep(r)
		if f.witness == (witness{}) && r.Attrs.TimestampType() == createTime {
			f.witness = witnessOf(f.records[i])
		}
	}
	return f, nil
}

// scratch is the memory that the records of one answer are decoded into, before
// they are copied out of it. It finds batches that have fewer records than they
// claim: the library goes on behind them without an error.
type scratch struct {
	all  []kgo.Record
	used int

	claimed []kgo.Record // of the batch that is being decoded
	cut     bool         // a batch has fewer
	next    int64        // the offset behind the last record before that
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// GetRecords implements kgo.PoolRecords.
func (s *scratch) GetRecords(n int) []kgo.Record {
	if s.used+n > len(s.all) {
		s.all, s.used = make([]kgo.Record, max(n, 2*len(s.all))), 0
	}
	s.used += n
	s.claimed = s.all[s.used-n : s.used : s.used]
	return s.claimed
}

// PutRecords implements kgo.PoolRecords. All are given back together.
func (s *scratch) PutRecords([]kgo.Record) {}

// batch is called when one has been decoded. Its records are zero if none of them
// is to be handed out.
func (s *scratch) batch(m kgo.FetchBatchMetrics) {
	if n := min(m.NumRecords, len(s.claimed)); n > 0 && !s.cut {
		s.next = max(s.next, s.claimed[n-1].Offset+1)
	}
	s.cut = s.cut || m.NumRecords < len(s.claimed)
	s.claimed = nil
}

func (s *scratch) release() {
	clear(s.all[:s.used])
	*s = scratch{all: s.all}
	scratches.Put(s)
}

// slab gives memory to many small records at a time.
type slab struct {
	free    []byte
	records []record // not used yet
}

const (
	slabSize = 8 << 10
	slabMost = slabSize / 8 // larger records have their own

	// Few enough that one that is kept for long keeps little else in memory.
	slabRecords = 32
)

func (s *slab) take(n int) []byte {
	if n > slabMost {
		return make([]byte, n)
	}
	if s.free == nil || n > len(s.free) { // what is empty must not become nil
		s.free = make([]byte, slabSize)
	}
	var taken []byte
	taken, s.free = s.free[:n:n], s.free[n:]
	return taken
}

func (s *slab) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(s.take(len(b))[:0], b...)
}

// keep copies a record out of the answer that it came in.
func (s *slab) keep(r *kgo.Record) *record {
	if len(s.records) == 0 {
		s.records = make([]record, slabRecords)
	}
	kept := &s.records[0]
	s.records = s.records[1:]
	*kept = record{offset: r.Offset, time: r.Timestamp, key: s.copy(r.Key), value: s.copy(r.Value)}
	if len(r.Headers) > 0 {
		kept.headers = make([]kafka.Header, len(r.Headers))
		for i, h := range r.Headers {
			kept.headers[i] = kafka.Header{Key: h.Key, Value: s.copy(h.Value)}
		}
	}
	return kept
}
