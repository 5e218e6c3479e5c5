package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
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

	block    *recordBlock // that it is in; nil if it has memory of its own
	unread   *unread      // nil, unless it stands for records that are not read
	unsigned bool         // in a delay topic, by anyone who has the secret of this worker
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
	return &record{offset: r.offset, time: r.time, unread: r.unread, unsigned: r.unsigned, key: own(r.key), value: own(r.value), headers: headers}
}

// fetched is what a fetch found.
type fetched struct {
	records []*record // ascending, none below the offset that was asked for

	// next is the offset to ask for next. It is beyond that of the fetch unless
	// there is nothing behind that one yet, even if there was nothing to hand
	// out: marks of transactions, aborted records, holes that compaction left.
	next int64

	stable int64    // one beyond the last that no open transaction holds up
	seen   epochEnd // of the last batch, unless it is in an old format

	// With cut there was no room for more: next is in what was fetched, and all
	// before it took used bytes of the answer.
	cut  bool
	used int
}

// fetch returns records from offset on, as many as have room, of an answer of
// about maxBytes, but at least one if there is one, and waits for the first one
// for up to wait, at most 500 ms. Records of aborted transactions are left out, and
// those of open ones, with all behind them, are not there yet. An offset that the
// partition does not have is a *rangeError.
func (c *client) fetch(ctx context.Context, p partition, offset int64, maxBytes int, wait time.Duration, within room) (fetched, error) {
	wait = min(max(wait, 0), longestWait)
	var answer *fetchAnswer
	var found *kmsg.FetchResponseTopicPartition
	err := retry(ctx, func() error {
		leaders, err := c.Leaders(ctx, p.topic)
		if err != nil {
			return err
		}
		node, err := leading(leaders, p)
		if err == nil {
			answer, err = c.exchange(ctx, node, newFetch([]want{{p, offset, maxBytes}}, maxBytes, wait))
		}
		if err == nil {
			found, err = answer.partition()
		}
		return c.Reread(ctx, p.topic, err)
	})
	return c.decode(ctx, found, answer, err, p, offset, within)
}

// decode takes the records out of what a fetch has found, or says why it has none.
func (c *client) decode(ctx context.Context, found *kmsg.FetchResponseTopicPartition, in *fetchAnswer, err error, p partition, offset int64, within room) (fetched, error) {
	if err == nil {
		defer in.release()
		var got fetched
		if got, err = c.decompressor.read(found, offset, within); err == nil {
			return got, nil
		}
	}
	switch {
	case errors.Is(err, kafka.OffsetOutOfRange):
		err = c.outOfRange(ctx, p, offset)
	case errors.Is(err, kafka.InvalidMessage):
		err = fmt.Errorf("%w: %w", cluster.ErrCorrupt, err)
	}
	return fetched{next: offset}, explain(err, "fetch %s from offset %d", p, offset)
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
