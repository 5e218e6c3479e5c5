package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	// longestWait bounds how long a fetch waits for records: the connection of
	// one that is given up stays busy for as long.
	longestWait = 500 * time.Millisecond

	readCommitted = 1
)

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
	time       time.Time // as its producer, or the producer's client, set it
	key, value []byte
	headers    []kafka.Header
}

// clone returns a record that keeps no others in memory.
func (r *record) clone() *record {
	return &record{offset: r.offset, time: r.time, key: bytes.Clone(r.key), value: bytes.Clone(r.value), headers: r.headers}
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
	got, err := c.fetchOnce(call, ctx, p, offset, maxBytes, wait)
	if err == nil && got.hole {
		got.next, err = c.behindHole(call, ctx, p, offset, got)
	}
	if errors.Is(err, kafka.OffsetOutOfRange) {
		err = c.outOfRange(ctx, p, offset)
	}
	if err != nil {
		if isCorrupt(err) {
			err = fmt.Errorf("%w: %w", errCorrupt, err)
		}
		return fetched{next: offset}, explain(err, "fetch %s from offset %d", p, offset)
	}
	return got.fetched, nil
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

// answer is that of one request.
type answer struct {
	fetched
	first  int64 // the base offset of the first batch, -1 without one
	hole   bool  // there are batches, but nothing in them is as far as the offset
	copied slab
}

// usualRecord is the size of records for which memory is reserved.
const usualRecord = 256

func (c *client) fetchOnce(call, ctx context.Context, p partition, offset int64, maxBytes int, wait time.Duration) (answer, error) {
	minBytes := int32(1)
	if wait == 0 {
		minBytes = 0
	}
	var res *fetch.Response
	err := retry(ctx, func() error {
		m, err := c.RoundTrip(call, c.addr, &fetch.Request{
			ReplicaID:      -1,
			MaxWaitTime:    int32(wait.Milliseconds()),
			MinBytes:       minBytes,
			MaxBytes:       int32(maxBytes),
			IsolationLevel: readCommitted,
			SessionID:      -1,
			SessionEpoch:   -1,
			Topics: []fetch.RequestTopic{{
				Topic: p.topic,
				Partitions: []fetch.RequestPartition{{
					Partition:          int32(p.number),
					CurrentLeaderEpoch: -1,
					FetchOffset:        offset,
					LogStartOffset:     -1,
					PartitionMaxBytes:  int32(maxBytes),
				}},
			}},
		})
		if err != nil {
			return err
		}
		res = m.(*fetch.Response)
		if len(res.Topics) == 0 || len(res.Topics[0].Partitions) == 0 {
			return errors.Join(codeError(res.ErrorCode), errors.New("the answer is empty"))
		}
		return codeError(res.Topics[0].Partitions[0].ErrorCode)
	})
	if err != nil {
		return answer{}, err
	}
	return read(&res.Topics[0].Partitions[0], offset, maxBytes)
}

// read takes the records from offset on out of an answer of about maxBytes.
func read(res *fetch.ResponsePartition, offset int64, maxBytes int) (answer, error) {
	a := answer{first: -1, fetched: fetched{
		next: offset, highWater: res.HighWatermark, stable: res.LastStableOffset, logStart: res.LogStartOffset,
	}}
	if n := min(res.HighWatermark-offset, int64(maxBytes/usualRecord)); n > 0 {
		a.records = make([]*record, 0, n)
	}
	batches := []protocol.RecordReader{res.RecordSet.Records}
	if stream, ok := res.RecordSet.Records.(*protocol.RecordStream); ok {
		batches = stream.Records
	}
	aborted := newAborted(res.AbortedTransactions)
	seen := false
	for _, batch := range batches {
		if batch == nil {
			continue
		}
		if err := a.add(batch, offset, aborted); err != nil {
			return a, err
		}
		seen = true
	}
	a.hole = seen && a.next == offset
	return a, nil
}

// add appends what a batch has to hand out, and moves next beyond all of it.
func (a *answer) add(batch protocol.RecordReader, offset int64, aborted *aborted) error {
	base, producer := int64(-1), int64(-1)
	mark, skip, stamped := false, false, false
	switch batch := batch.(type) {
	case *protocol.ControlBatch:
		base, producer, mark = batch.BaseOffset, batch.ProducerID, true
	case *protocol.RecordBatch:
		base, stamped = batch.BaseOffset, batch.Attributes&logAppendTime == 0
		skip = batch.Attributes.Transactional() && aborted.has(batch.ProducerID, base)
	}
	empty := true
	for ; ; empty = false {
		r, err := batch.ReadRecord()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if base < 0 {
			base = r.Offset
		}
		a.next = max(a.next, r.Offset+1)
		switch {
		case mark:
			if isAbort(r) {
				aborted.end(producer)
			}
		case !skip && r.Offset >= offset:
			kept, err := a.copied.keep(r)
			if err != nil {
				return err
			}
			a.records = append(a.records, kept)
			if stamped && a.witness == (witness{}) {
				a.witness = witnessOf(kept)
			}
		}
		release(r)
	}
	if a.first < 0 {
		a.first = base
	}
	if empty { // by compaction: up to here there is nothing
		a.next = max(a.next, base)
	}
	return nil
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

// keep copies a record out of the buffers of the library.
func (s *slab) keep(r *protocol.Record) (*record, error) {
	if len(s.records) == 0 {
		s.records = make([]record, slabRecords)
	}
	kept := &s.records[0]
	s.records = s.records[1:]
	kept.offset, kept.time, kept.headers = r.Offset, r.Time, r.Headers
	split, size := 0, 0
	if r.Key != nil {
		split = r.Key.Len()
	}
	if size = split; r.Value != nil {
		size += r.Value.Len()
	}
	both := s.take(size)
	if r.Key != nil {
		kept.key = both[:split:split]
		if _, err := io.ReadFull(r.Key, kept.key); err != nil {
			return nil, err
		}
	}
	if r.Value != nil {
		kept.value = both[split:size:size]
		if _, err := io.ReadFull(r.Value, kept.value); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

func release(r *protocol.Record) {
	if r.Key != nil {
		r.Key.Close()
	}
	if r.Value != nil {
		r.Value.Close()
	}
}

// isAbort reports whether a record of a control batch ends a transaction that
// was aborted: its key is a version and a type, of 16 bits each.
func isAbort(r *protocol.Record) bool {
	key, err := protocol.ReadAll(r.Key)
	return err == nil && len(key) >= 4 && key[2] == 0 && key[3] == 0
}

// aborted says which producers have an aborted transaction under way, batch by
// batch.
type aborted struct {
	coming []fetch.ResponseTransaction // by first offset
	open   map[int64]bool
}

func newAborted(list []fetch.ResponseTransaction) *aborted {
	a := &aborted{coming: slices.Clone(list), open: make(map[int64]bool)}
	slices.SortStableFunc(a.coming, func(x, y fetch.ResponseTransaction) int { return int(min(max(x.FirstOffset-y.FirstOffset, -1), 1)) })
	return a
}

// has reports whether a transactional batch of producer at base is void.
func (a *aborted) has(producer, base int64) bool {
	for len(a.coming) > 0 && a.coming[0].FirstOffset <= base {
		a.open[a.coming[0].ProducerID] = true
		a.coming = a.coming[1:]
	}
	return a.open[producer]
}

func (a *aborted) end(producer int64) { delete(a.open, producer) }

// behindHole returns the offset after the batch that hole begins with, of which
// compaction left nothing from offset on. Answers do not say where a batch
// ends, but which one an offset belongs to: so the end is searched for, in
// growing steps and then by halves.
func (c *client) behindHole(call, ctx context.Context, p partition, offset int64, hole answer) (int64, error) {
	if hole.stable < 0 { // a broker before 0.11
		hole.stable = hole.highWater
	}
	inside := func(at int64) (bool, error) {
		a, err := c.fetchOnce(call, ctx, p, at, 1, 0)
		return a.first == hole.first, err
	}
	low, high := offset, hole.stable // low is inside, high is not
	for step := int64(1); low+step < high; step *= 2 {
		in, err := inside(low + step)
		if err != nil {
			return offset, err
		}
		if !in {
			high = low + step
			break
		}
		low += step
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		in, err := inside(middle)
		if err != nil {
			return offset, err
		}
		if in {
			low = middle
		} else {
			high = middle
		}
	}
	return max(high, offset), nil
}

// isCorrupt reports whether the library could not make sense of the records of
// an answer. It has no type for that.
func isCorrupt(err error) bool {
	text := err.Error()
	return errors.Is(err, kafka.InvalidMessage) || strings.Contains(text, "checksum mismatch") ||
		strings.Contains(text, "unsupported compression codec") || strings.Contains(text, "unsupported message version") ||
		strings.Contains(text, "impossible record set")
}
