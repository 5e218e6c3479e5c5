package kafka

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// room is what an answer may take when it is decoded.
type room struct {
	batch   int  // bytes that one batch may become, or one record may take
	records int  // bytes of the records of an answer, but at least one is taken
	strict  bool // a batch that becomes more is an error, and no record
}

// unread is a batch, or what is left of one, that becomes more than it may. A
// record stands for all of it.
type unread struct {
	last  int64 // the last offset of it
	bytes int   // in the log
	codec string
	most  int
}

// err says what is not read, and why.
func (u *unread) err(first int64) error {
	what := fmt.Sprintf("offset %d", first)
	if u.last > first {
		what = fmt.Sprintf("the offsets %d to %d", first, u.last)
	}
	return fmt.Errorf("%s: a batch of %d bytes in the log, compressed with %s, becomes more than %d bytes (Options.MaxDecompressed): %w",
		what, u.bytes, u.codec, u.most, errBomb)
}

// fault is err for the record that stands for what is not read.
func (u *unread) fault(p partition, first int64) error {
	return fmt.Errorf("%w; the log of %s keeps it until its retention ends, and this reads it: "+
		"kafka-console-consumer.sh --topic %s --partition %d --offset %d --max-messages %d",
		u.err(first), p, p.topic, p.number, first, u.last-first+1)
}

// origin is that of the record that stands for what is not read.
func (u *unread) origin(o brokers.Headers) brokers.Headers {
	return append(slices.Clone(o),
		brokers.Header{Name: "last-offset", Value: strconv.FormatInt(u.last, 10)},
		brokers.Header{Name: "bytes", Value: strconv.Itoa(u.bytes)},
		brokers.Header{Name: "codec", Value: u.codec})
}

// leastDecompressed is what a batch may become at least, unless
// Options.MaxDecompressed says less, and timesDecompressed how many times as much
// as the largest batch that a topic takes: what is text becomes some ten times as
// much.
const (
	leastDecompressed = 16 << 20
	timesDecompressed = 16
)

// The attributes of a batch, besides its codec.
const (
	codecMask     = 7
	brokersTime   = 1 << 3
	transactional = 1 << 4
	control       = 1 << 5
)

var codecNames = map[compress.Compression]string{
	compress.None: "none", compress.Gzip: "gzip", compress.Snappy: "snappy", compress.Lz4: "lz4", compress.Zstd: "zstd",
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decoding is the reading of one answer.
type decoding struct {
	*decompressor
	fetched
	room    room
	kept    int               // of the room for records
	aborted map[int64][]int64 // by producer, the first offsets of transactions, rising
	copies  slab
}

// read takes the records from offset on out of an answer, batch by batch, until
// there is no more room for them.
func (d *decompressor) read(res *kmsg.FetchResponseTopicPartition, offset int64, within room) (fetched, error) {
	within.batch = cmp.Or(within.batch, leastDecompressed)
	r := &decoding{decompressor: d, room: within, aborted: abortedOf(res)}
	r.fetched = fetched{next: offset, stable: res.LastStableOffset}
	var err error
	var behind int64
	in := res.RecordBatches
	for err == nil && !r.cut {
		const head = 17 // up to the format
		if len(in) < head {
			break
		}
		size := int64(int32(binary.BigEndian.Uint32(in[8:]))) + 12
		if size < head || size > int64(len(in)) { // the broker cuts answers anywhere
			break
		}
		behind = endOf(in[:size])
		err = r.batch(in[:size:size])
		in = in[size:]
		r.used = len(res.RecordBatches) - len(in)
	}
	r.copies.close()
	switch {
	case r.next > offset: // the next fetch begins with what is damaged
		return r.fetched, nil
	case len(res.RecordBatches) == 0:
		return r.fetched, nil
	case err == nil:
		err = fmt.Errorf("in the %d bytes of its answer there is nothing to decode from there on", len(res.RecordBatches))
	}
	if !errors.Is(err, errBomb) {
		err = fmt.Errorf("%w: %w", cluster.ErrCorrupt, err)
	}
	return r.fetched, &unreadableError{behind: max(behind, offset+1), err: err}
}

// endOf returns what a batch says that the first offset behind it is.
func endOf(raw []byte) int64 {
	const format, lastDelta = 16, 23
	end := int64(binary.BigEndian.Uint64(raw)) + 1
	if raw[format] == 2 && len(raw) >= batchHead {
		end += int64(int32(binary.BigEndian.Uint32(raw[lastDelta:])))
	}
	return end
}

// unreadableError reports a batch that stops its partition, and where to go on
// without it.
type unreadableError struct {
	behind int64
	err    error
}

func (e *unreadableError) Error() string { return e.err.Error() }

func (e *unreadableError) Unwrap() error { return e.err }

func abortedOf(res *kmsg.FetchResponseTopicPartition) map[int64][]int64 {
	if len(res.AbortedTransactions) == 0 {
		return nil
	}
	aborted := make(map[int64][]int64)
	for _, t := range res.AbortedTransactions {
		aborted[t.ProducerID] = append(aborted[t.ProducerID], t.FirstOffset)
	}
	for _, offsets := range aborted { // not every broker sorts them
		slices.Sort(offsets)
	}
	return aborted
}

// batch reads one, as far as there is room.
func (r *decoding) batch(raw []byte) error {
	switch format := raw[16]; format {
	case 0, 1:
		return r.oldBatch(raw)
	case 2:
	default:
		return fmt.Errorf("format %d of a batch is none that this program reads", format)
	}
	var b kmsg.RecordBatch
	if err := b.ReadFrom(raw); err != nil {
		return fmt.Errorf("a batch of %d bytes: %w", len(raw), err)
	}
	if sum := int32(crc32.Checksum(raw[21:], castagnoli)); sum != b.CRC {
		return fmt.Errorf("the checksum of a batch is %x, and it says %x", sum, b.CRC)
	}
	last := b.FirstOffset + int64(b.LastOffsetDelta)
	switch {
	case last < b.FirstOffset || b.NumRecords < 0:
		return fmt.Errorf("a batch claims %d records, and to end %d offsets behind its first", b.NumRecords, b.LastOffsetDelta)
	case last < r.next:
		return nil
	}
	if b.PartitionLeaderEpoch >= 0 {
		r.seen = epochEnd{b.PartitionLeaderEpoch, last + 1}
	}
	aborts := r.aborted[b.ProducerID]
	if b.Attributes&transactional == 0 || len(aborts) == 0 || b.FirstOffset < aborts[0] {
		aborts = nil
	}
	if aborts != nil && b.Attributes&control == 0 {
		r.next = last + 1
		return nil
	}
	codec := compress.Compression(b.Attributes & codecMask)
	plain := b.Records
	if codec != compress.None {
		r.mu.Lock()
		defer r.mu.Unlock()
		var err error
		plain, err = r.decompress(b.Records, codec, r.room.batch)
		if errors.Is(err, errBomb) {
			return r.leave(max(r.next, b.FirstOffset), unread{last, len(raw), codecNames[codec], r.room.batch})
		}
		if err != nil {
			return fmt.Errorf("a batch that is compressed with %s: %w", codecNames[codec], err)
		}
	}
	if b.Attributes&control != 0 {
		if ends, err := isAbort(plain); err != nil {
			return err
		} else if ends && aborts != nil {
			r.aborted[b.ProducerID] = aborts[1:]
		}
		r.next = last + 1
		return nil
	}
	return r.records(&b, plain, last, unread{last, len(raw), codecNames[codec], r.room.batch})
}

// isAbort reports whether a control batch ends a transaction that is aborted.
func isAbort(plain []byte) (bool, error) {
	if len(plain) == 0 { // compacted
		return false, nil
	}
	var raw rawRecord
	if _, err := raw.read(plain); err != nil {
		return false, err
	}
	return len(raw.key) >= 4 && raw.key[2] == 0 && raw.key[3] == 0, nil
}

// records reads the records of a batch that ends at last.
func (r *decoding) records(b *kmsg.RecordBatch, plain []byte, last int64, whole unread) error {
	before := b.FirstOffset - 1
	r.fetched.records = slices.Grow(r.fetched.records, min(int(b.NumRecords), len(plain)/leastRecord))
	var raw rawRecord
	for range b.NumRecords {
		rest, err := raw.read(plain)
		if err != nil {
			return err
		}
		plain = rest
		offset := b.FirstOffset + raw.offset
		if offset <= before || offset > last {
			return fmt.Errorf("offset %d in a batch follows %d, and it ends at %d", offset, before, last)
		}
		if before = offset; offset < r.next {
			continue
		}
		cost := raw.cost()
		if cost > r.room.batch && b.Attributes&codecMask != 0 {
			one := whole
			one.last = offset
			if err := r.leave(offset, one); err != nil {
				return err
			}
			continue
		}
		if r.isFull(cost) {
			return nil
		}
		kept := r.copies.next()
		kept.offset, kept.time = offset, time.UnixMilli(b.FirstTimestamp+raw.time)
		if b.Attributes&brokersTime != 0 {
			kept.time = time.UnixMilli(b.MaxTimestamp)
		}
		if err := r.copies.fill(kept, &raw); err != nil {
			return err
		}
		r.keep(kept)
	}
	if len(plain) > 0 {
		return fmt.Errorf("a batch claims %d records, and has %d bytes more", b.NumRecords, len(plain))
	}
	r.next = last + 1
	return nil
}

// isFull reports whether the next record has no room, and what follows is left
// for another fetch.
func (r *decoding) isFull(cost int) bool {
	r.cut = len(r.fetched.records) > 0 && r.kept+cost > r.room.records
	return r.cut
}

func (r *decoding) keep(rec *record) {
	r.kept += cost(rec)
	r.fetched.records = append(r.fetched.records, rec)
	r.next = rec.offset + 1
}

// leave has a record stand for what is not read.
func (r *decoding) leave(offset int64, what unread) error {
	if r.room.strict {
		return what.err(offset)
	}
	if !r.isFull(baseCost) {
		kept := r.copies.next()
		kept.offset, kept.unread = offset, &what
		r.keep(kept)
		r.next = what.last + 1
	}
	return nil
}

// rawRecord is a record in the memory of its batch.
type rawRecord struct {
	time       int64
	offset     int64 // from that of the batch
	key, value []byte
	headers    []byte
	many       int // headers
}

// read takes the first record off b, and returns the rest.
func (r *rawRecord) read(b []byte) (rest []byte, err error) {
	all := cursor{left: b}
	length := all.varint()
	in := cursor{left: all.take(length)}
	if all.bad {
		return nil, fmt.Errorf("a record of %d bytes is cut after %d", length, len(b))
	}
	in.take(1) // attributes: there are none
	*r = rawRecord{time: in.varint(), offset: in.varint(), key: in.bytes(), value: in.bytes()}
	many := in.varint()
	r.headers = in.left
	if in.bad || many < 0 || many > int64(len(r.headers))/leastHeader || r.offset != int64(int32(r.offset)) {
		return nil, fmt.Errorf("a record of %d bytes cannot be read", length)
	}
	r.many = int(many)
	return all.left, nil
}

// leastHeader is what a header takes at least, the lengths of its name and value,
// and leastRecord a record, with its own length.
const (
	leastHeader = 2
	leastRecord = 7
)

// cursor reads the parts of a record. It is bad, with nothing left, when one is cut.
type cursor struct {
	left []byte
	bad  bool
}

func (c *cursor) varint() int64 {
	n, size := binary.Varint(c.left)
	if size <= 0 {
		*c = cursor{bad: true}
		return 0
	}
	c.left = c.left[size:]
	return n
}

func (c *cursor) take(n int64) []byte {
	if n < 0 || n > int64(len(c.left)) {
		*c = cursor{bad: true}
		return nil
	}
	taken := c.left[:n:n]
	c.left = c.left[n:]
	return taken
}

// bytes reads a length, and what is as long. Less than 0 is nil.
func (c *cursor) bytes() []byte {
	if n := c.varint(); n >= 0 {
		return c.take(n)
	}
	return nil
}

// cost is that of the record that it becomes.
func (r *rawRecord) cost() int {
	return baseCost + len(r.key) + len(r.value) + r.many*headerCost + len(r.headers)
}

// slab gives memory to many small records at a time.
type slab struct {
	free  []byte
	block *recordBlock // not full; nil if there is none
	used  int          // records of block
}

// recordBlock is memory for records. When none that is in it is used any more, it serves
// others: nothing outside this package refers to a record.
type recordBlock struct {
	records [slabRecords]record
	left    atomic.Int32 // records that are in use
}

var recordBlocks = sync.Pool{New: func() any { return new(recordBlock) }}

// free says that r is used no more.
func (r *record) free() {
	if b := r.block; b != nil && b.left.Add(-1) == 0 {
		clear(b.records[:])
		recordBlocks.Put(b)
	}
}

const (
	slabSize = 8 << 10
	slabMost = slabSize / 8 // larger records have their own

	// Few enough that one that is kept for long keeps little else in memory. A
	// block of them fits a size class.
	slabRecords = 31
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

// next returns a record that is empty.
func (s *slab) next() *record {
	if s.block == nil {
		s.block, s.used = recordBlocks.Get().(*recordBlock), 0
	}
	r := &s.block.records[s.used]
	r.block = s.block
	if s.used++; s.used == slabRecords {
		s.close()
	}
	return r
}

// close says that no more records follow. None may be handed out before.
func (s *slab) close() {
	if s.block != nil {
		s.block.left.Store(int32(s.used))
		s.block = nil
	}
}

// fill copies what a record has out of the memory of its batch.
func (s *slab) fill(r *record, raw *rawRecord) error {
	r.key, r.value = s.copy(raw.key), s.copy(raw.value)
	if raw.many == 0 {
		return nil
	}
	in := cursor{left: raw.headers}
	r.headers = make([]kafka.Header, raw.many)
	for i := range r.headers {
		r.headers[i] = kafka.Header{Key: string(in.bytes()), Value: s.copy(in.bytes())}
	}
	if in.bad {
		return fmt.Errorf("the headers of offset %d cannot be read", r.offset)
	}
	return nil
}
