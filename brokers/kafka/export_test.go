package kafka

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// What tests of the public face need besides it.
const (
	CommitPace = commitPace
	DonePace   = donePace
	DoneHeader = doneHeader
	DoneMark   = doneMark
	OwnerClean = ownerClean
	OwnerOpen  = ownerOpen

	RackSetting, Selector = rackSetting, selector
	LongestName           = longestName
	LetterPartitions      = letterPartitions
	NewProtocol           = newProtocol
	Eager, Cooperative    = eager, cooperative
	Heeds                 = heeds
	TopicHeader           = topicHeader
	LeastBuffer           = leastBuffer
	LeastDecompressed     = leastDecompressed
	LeastScratch          = leastScratch
	BaseCost              = baseCost
	AloneBytes            = aloneBytes
	BatchBytes            = batchBytes
	CommitBatch           = commitBatch
	Careful               = careful
	MaxMarks              = maxMarks
	Ahead                 = ahead
	LongestWait           = longestWait
)

// Limits bound what a partition takes.
type Limits struct{ Buffer, Waiting, Bodies, Soon int }

// UsualLimits are those of a source of few partitions.
var UsualLimits = Limits{bufferBytes, mostWaiting, bodyBytes, soonBytes}

// Limit sets those of what a Broker opens.
func Limit(b *Broker, l Limits) { b.memory = memory{l.Buffer, l.Waiting, l.Bodies, l.Soon} }

var (
	ErrDoneRecord = errDoneRecord
	ErrCorrupt    = cluster.ErrCorrupt
	ErrBomb       = errBomb
	ChunkMark     = chunkMark
)

// Patience is the deadline of calls that tests are not about: a broker that has
// just started on a busy machine takes its time.
const Patience = time.Minute

// WithinTime gives a call of a test no more than a generous time.
func WithinTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// NewOn is New for a Broker that stores over connections of their own, and sees
// changes of a group soon.
func NewOn(o Options, store func(ctx context.Context, network, address string) (net.Conn, error)) (*Broker, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	o = b.options
	o.Dial = store
	b.producer = newProducer(o)
	b.pace = 200 * time.Millisecond
	return b, nil
}

// Owned names the partitions that a source has.
func Owned(s brokers.Source) (all []string) {
	for _, r := range s.(*source).all() {
		all = append(all, r.partition.String())
	}
	return all
}

// FinishLate ends settlements as if their partition was given up after they began. It
// returns how many are lost.
func FinishLate(ds ...*brokers.Delivery) int {
	var tokens []*token
	for _, d := range ds {
		tokens = append(tokens, d.Token.(*token))
	}
	return len(finish(tokens))
}

// IsCommitted reports whether a source has partitions, and nothing to commit.
func IsCommitted(s brokers.Source) bool {
	readers := s.(*source).all()
	return len(readers) > 0 && !slices.ContainsFunc(readers, func(r *reader) bool {
		_, ok := r.changed(ownerOpen)
		return ok
	})
}

// Committed is what the metadata of a commit says.
type Committed struct{ *progress }

// ReadCommitted reads the commit of an offset.
func ReadCommitted(offset int64, metadata string) (c Committed, clean bool) {
	text, open := strings.CutPrefix(metadata, ownerOpen)
	text, clean = strings.CutPrefix(text, ownerClean)
	_, _, text = cutLog(text)
	return Committed{readProgress(offset, text)}, clean && !open && text == ""
}

// MetadataOf is what an owner writes that has come to an offset: one that is
// lost afterwards, or has ended well. lost is how many owners were lost with suspects,
// and done what is done above the offset.
func MetadataOf(offset int64, open bool, lost map[int64]int, done ...int64) string {
	p := newProgress(offset)
	for _, offset := range done {
		p.done(offset)
	}
	p.lost = lost
	return map[bool]string{true: ownerOpen, false: ownerClean}[open] + p.metadata(metadataLimit)
}

// behind returns how many offsets above the low-water mark are done or skipped.
func (p *progress) behind() int { return int(p.ahead.size) }

// suspects returns the offsets of all suspects, lowest first.
func (p *progress) suspects() []int64 { return slices.Sorted(maps.Keys(p.lost)) }

// withDefaults is complete for options that are good.
func (o Options) withDefaults() Options {
	o, _ = o.complete()
	return o
}

// IsDone reports whether an offset is done, and Abandoned how many owners will have
// been lost with it if the present one is.
func (c Committed) IsDone(offset int64) bool   { return c.isDone(offset) }
func (c Committed) Abandoned(offset int64) int { return c.abandoned(offset) }

// CopyOf is the copy of a message that a worker with this secret, or without one, stores.
func CopyOf(m brokers.Message, meta brokers.Meta, secret ...[]byte) kafka.Message {
	return exported(copyOf(sealOf(secret), m, meta))
}

// DoneRecord is a done record for a partition with this value.
func DoneRecord(topic string, number int, value []byte, secret ...[]byte) kafka.Message {
	return exported(doneRecord(sealOf(secret), partition{topic, number}, value))
}

// DoneValue names offsets in a done record.
func DoneValue(offsets ...int64) []byte { return doneValue(offsets) }

// KeyOf is a key of a secret.
func KeyOf(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func sealOf(secret [][]byte) adapter.Seal {
	seal, err := adapter.Secret(secret).Seal()
	if err != nil {
		panic(err)
	}
	return seal
}

func exported(r record) kafka.Message {
	return kafka.Message{Key: r.key, Value: r.value, Headers: r.headers}
}

// Decoder reads the batches of fetches.
type Decoder struct{ d decompressor }

// Read returns the records of batches from an offset on that have room, and the offset to
// go on from.
func (d *Decoder) Read(batches []byte, offset int64, most int) (found []Read, next int64, err error) {
	got, err := d.d.read(&kmsg.FetchResponseTopicPartition{RecordBatches: batches}, offset, room{records: most})
	for _, r := range got.records {
		found = append(found, Read{r})
	}
	return found, got.next, err
}

// Scratch is how much memory the Decoder keeps.
func (d *Decoder) Scratch() int { return cap(d.d.scratch) }

// Read is a record that was read, or one that stands for what was not.
type Read struct{ r *record }

// Unread is what was not read.
type Unread struct {
	Last  int64
	Bytes int
	Codec string
}

// Message is the record.
func (r Read) Message() kafka.Message {
	m := exported(*r.r)
	m.Offset, m.Time = r.r.offset, r.r.time
	return m
}

// Clone is one that keeps no others in memory.
func (r Read) Clone() Read { return Read{r.r.clone()} }

// Cost is what it takes in memory.
func (r Read) Cost() int { return cost(r.r) }

// Unread is what it stands for, nil if it is a record.
func (r Read) Unread() *Unread {
	if u := r.r.unread; u != nil {
		return &Unread{u.last, u.bytes, u.codec}
	}
	return nil
}

// Behind is the offset behind what cannot be read.
func Behind(err error) (int64, bool) {
	if stuck, ok := errors.AsType[*unreadableError](err); ok {
		return stuck.behind, true
	}
	return 0, false
}

// Held is what a source has in memory: bytes, and entries of the index of what waits.
type Held struct{ Buffered, Aside, Delayed, Early, Waiting int }

// Holds returns what a source has in memory of all its partitions.
func Holds(s brokers.Source) (h Held) {
	for _, r := range s.(*source).all() {
		r.mu.Lock()
		h.Buffered += r.bytes
		h.Aside += r.aside
		if d := r.delayed; d != nil {
			h.Aside, h.Delayed, h.Early = h.Aside+d.halted, h.Delayed+d.bytes, h.Early+d.early
			for _, l := range d.lanes {
				h.Waiting += l.waiting.len()
			}
		}
		r.mu.Unlock()
	}
	return h
}

// SizeOf is what a message counts against max.message.bytes.
func SizeOf(m kafka.Message) int {
	return record{key: m.Key, value: m.Value, headers: m.Headers}.size()
}
