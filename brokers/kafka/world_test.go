package kafka

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// network is the way from a client to its brokers, which a test can cut.
type network struct {
	mu     sync.Mutex
	conns  map[*cable]bool
	frozen chan struct{} // closed while nothing is frozen
	dials  int

	requests func(frame []byte) // is called with all that is written, if it is set
}

// fetches counts the requests for records of a topic from now on.
func (n *network) fetches(topic string) func() int {
	var count atomic.Int64
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests = func(frame []byte) {
		const fetch = "\x00\x01" // behind the length
		if len(frame) > 6 && string(frame[4:6]) == fetch && bytes.Contains(frame, []byte(topic)) {
			count.Add(1)
		}
	}
	return func() int { return int(count.Load()) }
}

func newNetwork() *network {
	n := &network{conns: make(map[*cable]bool), frozen: make(chan struct{})}
	close(n.frozen)
	return n
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	c := &cable{Conn: conn, network: n, closed: make(chan struct{})}
	n.conns[c] = true
	return c, nil
}

// freeze lets no bytes through until the test ends or thaw is called.
func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = make(chan struct{})
}

func (n *network) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.frozen)
}

// sever makes the broker end every connection, as it does when it restarts.
func (n *network) sever() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.Conn.(*net.TCPConn).CloseWrite()
	}
}

func (n *network) open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *network) dialed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

type cable struct {
	net.Conn
	network *network
	once    sync.Once
	closed  chan struct{}
}

func (c *cable) pass() error {
	c.network.mu.Lock()
	frozen := c.network.frozen
	c.network.mu.Unlock()
	select {
	case <-frozen:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if blocked := c.pass(); blocked != nil {
		return 0, blocked
	}
	return n, err
}

func (c *cable) Write(b []byte) (int, error) {
	if blocked := c.pass(); blocked != nil {
		return 0, blocked
	}
	c.network.mu.Lock()
	requests := c.network.requests
	c.network.mu.Unlock()
	if requests != nil {
		requests(b)
	}
	return c.Conn.Write(b)
}

func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// withinTime gives a call of a test no more than a generous time.
func withinTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// noLeftovers fails the test if a goroutine of the library is still there.
func noLeftovers(t *testing.T) {
	t.Helper()
	var stacks string
	for range 200 {
		buffer := make([]byte, 4<<20)
		stacks = string(buffer[:runtime.Stack(buffer, true)])
		if !strings.Contains(stacks, "segmentio/kafka-go") {
			return
		}
		pause(10 * time.Millisecond)
	}
	var left []string
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(stack, "segmentio/kafka-go") {
			left = append(left, stack)
		}
	}
	t.Errorf("%d goroutines are left after close:\n%s", len(left), strings.Join(left, "\n\n"))
}

// pause waits between two looks at what a broker is about to do.
func pause(d time.Duration) { <-time.After(d) }

// rawBatch is a batch of records in the format of Kafka since 0.11, with what
// the library cannot write: producers, transactions, marks and holes. Or it is
// one record in the format before.
type rawBatch struct {
	old           bool
	timeless      bool // the record is of format 0, and not 1
	stamped       bool // the times are the broker's
	base          int64
	producer      int64
	epoch         int16
	sequence      int32
	transactional bool
	mark          string // "commit" or "abort" makes it a control batch
	last          int64  // the last offset, if it is not that of the last record
	made          uint64 // in Unix milliseconds, now unless it is set
	records       []record
}

func (b rawBatch) bytes() []byte {
	if b.old {
		return b.message()
	}
	records := b.records
	attributes := uint16(0)
	if b.stamped {
		attributes |= 1 << 3
	}
	if b.transactional {
		attributes |= 1 << 4
	}
	if b.mark != "" {
		attributes |= 1<<4 | 1<<5
		key := []byte{0, 0, 0, 0}
		if b.mark == "commit" {
			key[3] = 1
		}
		records = []record{{offset: b.base, key: key, value: []byte{0, 0, 0, 0, 0, 0}}}
	}
	last := b.last
	if n := len(records); n > 0 {
		last = max(last, records[n-1].offset)
	}
	last = max(last, b.base)
	e := binary.BigEndian
	body := e.AppendUint16(nil, attributes)
	body = e.AppendUint32(body, uint32(last-b.base))
	made := cmp.Or(b.made, uint64(time.Now().UnixMilli()))
	body = e.AppendUint64(e.AppendUint64(body, made), made)
	body = e.AppendUint64(body, uint64(b.producer))
	body = e.AppendUint16(body, uint16(b.epoch))
	body = e.AppendUint32(body, uint32(b.sequence))
	body = e.AppendUint32(body, uint32(len(records)))
	for _, r := range records {
		body = appendRecord(body, r, b.base)
	}
	out := e.AppendUint64(nil, uint64(b.base))
	out = e.AppendUint32(out, uint32(4+1+4+len(body)))
	out = e.AppendUint32(out, 0)
	out = append(out, 2)
	out = e.AppendUint32(out, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, body...)
}

// message is the first record in format 0 or 1.
func (b rawBatch) message() []byte {
	e := binary.BigEndian
	body := []byte{0, 0}
	if !b.timeless {
		body = e.AppendUint64([]byte{1, 0}, uint64(time.Now().UnixMilli()))
	}
	for _, part := range [][]byte{b.records[0].key, b.records[0].value} {
		if part == nil {
			body = e.AppendUint32(body, 1<<32-1)
			continue
		}
		body = append(e.AppendUint32(body, uint32(len(part))), part...)
	}
	out := e.AppendUint32(e.AppendUint64(nil, uint64(b.records[0].offset)), uint32(4+len(body)))
	return append(e.AppendUint32(out, crc32.ChecksumIEEE(body)), body...)
}

func appendRecord(body []byte, r record, base int64) []byte {
	one := []byte{0}
	one = binary.AppendVarint(one, 0)
	one = binary.AppendVarint(one, r.offset-base)
	one = appendVarBytes(one, r.key)
	one = appendVarBytes(one, r.value)
	one = binary.AppendVarint(one, int64(len(r.headers)))
	for _, h := range r.headers {
		one = appendVarBytes(one, []byte(h.Key))
		one = appendVarBytes(one, h.Value)
	}
	return append(binary.AppendVarint(body, int64(len(one))), one...)
}

func appendVarBytes(to, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(to, -1)
	}
	return append(binary.AppendVarint(to, int64(len(b))), b...)
}

// store writes plain records into a partition, as one batch, and returns the
// offset of the first.
func store(t *testing.T, c *client, p partition, codec kafka.Compression, records ...record) int64 {
	t.Helper()
	var base int64
	err := retry(t.Context(), func() error {
		list := make([]kafka.Record, len(records)) // anew, as an attempt uses it up
		for i, r := range records {
			list[i] = kafka.Record{Key: bytesOf(r.key), Value: bytesOf(r.value), Headers: r.headers}
		}
		res, err := c.calls.Produce(withinTime(t), &kafka.ProduceRequest{
			Topic: p.topic, Partition: p.number, RequiredAcks: kafka.RequireAll, Compression: codec,
			Records: kafka.NewRecordReader(list...),
		})
		if err != nil {
			return err
		}
		base = res.BaseOffset
		return res.Error
	})
	if err != nil {
		t.Fatalf("store %d records in %s: %v", len(records), p, err)
	}
	return base
}

// storeRaw writes a batch as it is.
func storeRaw(t *testing.T, c *client, p partition, transaction string, b rawBatch) {
	t.Helper()
	raw := b.bytes()
	sized := append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	res, err := c.calls.RawProduce(withinTime(t), &kafka.RawProduceRequest{
		Topic: p.topic, Partition: p.number, RequiredAcks: kafka.RequireAll, TransactionalID: transaction,
		RawRecords: protocol.RawRecordSet{Reader: bytes.NewReader(sized)},
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		t.Fatalf("store a raw batch in %s: %v", p, err)
	}
}

// numbered are n records with their number as value.
func numbered(from, n int) []record {
	records := make([]record, n)
	for i := range records {
		records[i] = record{offset: int64(i), value: fmt.Append(nil, from+i)}
	}
	return records
}

func values(records []*record) string {
	var all []string
	for _, r := range records {
		all = append(all, string(r.value))
	}
	return strings.Join(all, " ")
}

func uniqueName(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }
