package kafka

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// fetchVersion is the version of the fetches that come.
const fetchVersion = 11

var first = partition{"orders", 0}

// onStub runs test in virtual time.
func onStub(t *testing.T, test func(t *testing.T, s *stub, c *client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		c := s.client()
		defer c.Close()
		test(t, s, c)
	})
}

// stub is a broker in memory that says what a test wants it to say. Everything
// that it knows of a partition is the same for all of them.
type stub struct {
	t      *testing.T
	topics map[string]int // and their partitions
	id     [16]byte       // of each; zero as before Kafka 2.8
	epochs epochs         // nil as before Kafka 2.3

	mu      sync.Mutex
	log     []rawBatch
	start   int64
	stable  int64 // the end of the log, if it is less
	corrupt int64 // the base of a batch whose checksum is wrong
	aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction
	dials   int
	calls   map[protocol.ApiKey]int

	// answer may answer instead: with a message, or with an error that ends
	// the connection.
	answer func(req protocol.Message, call int) (protocol.Message, error)

	// fetching may answer a fetch instead, by the broker's address.
	fetching func(address string, req *fetch.Request) kmsg.Response
}

// answering answers requests of one kind, unless it has nothing to say.
func answering[Req protocol.Message](answer func(Req) protocol.Message) func(protocol.Message, int) (protocol.Message, error) {
	return func(m protocol.Message, _ int) (protocol.Message, error) {
		if req, ok := m.(Req); ok {
			return answer(req), nil
		}
		return nil, nil
	}
}

// stubTime is when the records of a stub were made, unless they say.
const stubTime = 946_684_800_000

var errSilence = errors.New("never an answer")

func newStub(t *testing.T) *stub {
	return &stub{t: t, topics: map[string]int{"orders": 4}, corrupt: -1, calls: make(map[protocol.ApiKey]int)}
}

func (s *stub) client(change ...func(*Options)) *client {
	o := Options{Brokers: []string{"stub:9092"}, Dial: s.dial}
	for _, f := range change {
		f(&o)
	}
	return newClient(o)
}

func (s *stub) dial(_ context.Context, _, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	s.mu.Unlock()
	ours, theirs := net.Pipe()
	go s.serve(theirs, address)
	return ours, nil
}

// change changes what the stub says while it is in use.
func (s *stub) change(change func(s *stub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *stub) count(key protocol.ApiKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

func (s *stub) serve(conn net.Conn, address string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		version, id, _, req, err := protocol.ReadRequest(in)
		if err != nil {
			return
		}
		res, raw, err := s.respond(req, address)
		if err == errSilence {
			io.Copy(io.Discard, in)
			return
		}
		if err != nil {
			return
		}
		if raw != nil {
			_, err = conn.Write(frameOf(raw, id))
		} else {
			err = protocol.WriteResponse(conn, version, id, res)
		}
		if err != nil {
			return
		}
	}
}

// rawAnswer is one that the stub writes as kmsg does.
type rawAnswer struct{ kmsg.Response }

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (a rawAnswer) ApiKey() protocol.ApiKey { return protocol.ApiKey(a.Key()) }

func (s *stub) respond(req protocol.Message, address string) (protocol.Message, kmsg.Response, error) {
	s.mu.Lock()
	s.calls[req.ApiKey()]++
	call, instead := s.calls[req.ApiKey()], s.answer
	s.mu.Unlock()
	if instead != nil {
		if res, err := instead(req, call); res != nil || err != nil {
			if a, ok := res.(rawAnswer); ok {
				return nil, a.Response, nil
			}
			return res, nil, err
		}
	}
	switch req := req.(type) {
	case *apiversions.Request:
		return stubVersions(), nil, nil
	case *metadata.Request:
		return s.layout(req), nil, nil
	case *findcoordinator.Request:
		return &findcoordinator.Response{NodeID: 1, Host: "stub", Port: 9092}, nil, nil
	case *listoffsets.Request:
		return s.offsets(req), nil, nil
	case *fetch.Request:
		if s.fetching != nil {
			if res := s.fetching(address, req); res != nil {
				return nil, res, nil
			}
		}
		return nil, s.fetch(req), nil
	}
	s.t.Errorf("the stub has no answer to %s", req.ApiKey())
	return nil, nil, errSilence
}

func stubVersions() protocol.Message {
	res := &apiversions.Response{}
	for key, highest := range map[protocol.ApiKey]int16{
		protocol.Produce: 8, protocol.Fetch: 11, protocol.ListOffsets: 5, protocol.Metadata: 6, protocol.OffsetCommit: 6,
		protocol.OffsetFetch: 5, protocol.FindCoordinator: 2, protocol.ApiVersions: 0, protocol.SaslHandshake: 1,
		protocol.SaslAuthenticate: 1, protocol.CreateTopics: 4, protocol.DescribeConfigs: 3,
		protocol.JoinGroup: 5, protocol.SyncGroup: 3, protocol.Heartbeat: 3, protocol.LeaveGroup: 3,
	} {
		res.ApiKeys = append(res.ApiKeys, apiversions.ApiKeyResponse{ApiKey: int16(key), MaxVersion: highest})
	}
	return res
}

func (s *stub) layout(req *metadata.Request) protocol.Message {
	res := &metadata.Response{ControllerID: 1, Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "stub", Port: 9092}}}
	names := req.TopicNames
	if names == nil {
		for name := range s.topics {
			names = append(names, name)
		}
	}
	for _, name := range names {
		topic := metadata.ResponseTopic{Name: name}
		if s.topics[name] == 0 {
			topic.ErrorCode = 3
		}
		for n := range s.topics[name] {
			topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{PartitionIndex: int32(n), LeaderID: 1, ReplicaNodes: []int32{1}, IsrNodes: []int32{1}})
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}

func (s *stub) end() int64 {
	if n := len(s.log); n > 0 {
		b := s.log[n-1]
		end := max(b.base, b.last) + 1
		if k := len(b.records); k > 0 {
			end = max(end, b.records[k-1].offset+1)
		}
		return end
	}
	return s.start
}

func (s *stub) offsets(req *listoffsets.Request) protocol.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &listoffsets.Response{}
	for _, topic := range req.Topics {
		out := listoffsets.ResponseTopic{Topic: topic.Topic}
		for _, p := range topic.Partitions {
			at := listoffsets.ResponsePartition{Partition: p.Partition, Timestamp: -1, Offset: s.start}
			if p.Timestamp == -1 {
				at.Offset = s.end()
			}
			if int(p.Partition) >= s.topics[topic.Topic] {
				at.ErrorCode = 3
			}
			out.Partitions = append(out.Partitions, at)
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// fetch answers from the batch on that an offset belongs to: at least with one
// batch, and with others while they fit.
func (s *stub) fetch(req *fetch.Request) kmsg.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.IsolationLevel != readCommitted {
		s.t.Errorf("isolation level %d is fetched with, so that aborted records come", req.IsolationLevel)
	}
	res, found := kmsg.NewPtrFetchResponse(), false
	res.Version = fetchVersion
	for _, asked := range req.Topics {
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = asked.Topic
		for _, p := range asked.Partitions {
			part := s.part(p)
			found = found || len(part.RecordBatches) > 0
			topic.Partitions = append(topic.Partitions, part)
		}
		res.Topics = append(res.Topics, topic)
	}
	if !found && req.MinBytes > 0 {
		s.mu.Unlock()
		time.Sleep(time.Duration(req.MaxWaitTime) * time.Millisecond) // as a broker does
		s.mu.Lock()
	}
	return res
}

// part is what a partition has from an offset on. mu is held.
func (s *stub) part(asked fetch.RequestPartition) kmsg.FetchResponseTopicPartition {
	part := kmsg.NewFetchResponseTopicPartition()
	part.Partition, part.HighWatermark, part.LastStableOffset, part.LogStartOffset = asked.Partition, s.end(), s.end(), s.start
	if s.stable > 0 {
		part.LastStableOffset = min(s.end(), s.stable)
	}
	if asked.FetchOffset < s.start || asked.FetchOffset > s.end() {
		part.ErrorCode = 1
	}
	for i, b := range s.log {
		last := s.end() - 1
		if i+1 < len(s.log) {
			last = s.log[i+1].base - 1
		}
		if b.last > 0 {
			last = b.last
		}
		if part.ErrorCode != 0 || last < asked.FetchOffset || b.base >= part.LastStableOffset {
			continue
		}
		b.made = cmp.Or(b.made, stubTime) // whenever it is fetched
		raw := b.bytes()
		if b.base == s.corrupt {
			raw[len(raw)-1] ^= 1
		}
		if n := len(part.RecordBatches); n > 0 && n+len(raw) > int(asked.PartitionMaxBytes) {
			break
		}
		part.RecordBatches = append(part.RecordBatches, raw...)
	}
	part.AbortedTransactions = s.aborted
	return part
}

func fetchResponse(name string, part kmsg.FetchResponseTopicPartition) kmsg.Response {
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = name, []kmsg.FetchResponseTopicPartition{part}
	res := kmsg.NewPtrFetchResponse()
	res.Version, res.Topics = fetchVersion, []kmsg.FetchResponseTopic{topic}
	return res
}

// frameOf is the answer to request id.
func frameOf(res kmsg.Response, id int32) []byte {
	body := res.AppendTo(nil)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(out, uint32(id)), body...)
}

// rawBatch is a batch of records in the format of Kafka since 0.11, with what
// the library cannot write: producers, transactions, marks and holes. Or it is
// one record in the format before.
type rawBatch struct {
	old           bool
	timeless      bool // the record is of format 0, and not 1
	base          int64
	epoch         int32
	producer      int64
	transactional bool
	mark          string // "commit" or "abort" makes it a control batch
	last          int64  // the last offset, if it is not that of the last record
	made          int64  // in Unix milliseconds, now unless it is set
	records       []record
	raw           []byte // all of it, if it is set
}

func (b rawBatch) bytes() []byte {
	made := cmp.Or(b.made, time.Now().UnixMilli())
	if b.raw != nil {
		return bytes.Clone(b.raw)
	}
	if b.old {
		return b.message(made)
	}
	batch := kmsg.RecordBatch{FirstOffset: b.base, Magic: 2, FirstTimestamp: made, MaxTimestamp: made, ProducerID: b.producer, PartitionLeaderEpoch: b.epoch}
	if b.transactional || b.mark != "" {
		batch.Attributes |= 1 << 4
	}
	records := b.records
	if b.mark != "" {
		batch.Attributes |= 1 << 5
		key := []byte{0, 0, 0, 0}
		if b.mark == "commit" {
			key[3] = 1
		}
		records = []record{{offset: b.base, key: key, value: []byte{0, 0, 0, 0, 0, 0}}}
	}
	last := max(b.last, b.base)
	for _, r := range records {
		last = max(last, r.offset)
		one := kmsg.Record{OffsetDelta: int32(r.offset - b.base), Key: r.key, Value: r.value}
		for _, h := range r.headers {
			one.Headers = append(one.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		raw := one.AppendTo(nil)[1:] // without its length, which is 0 yet
		batch.Records = append(binary.AppendVarint(batch.Records, int64(len(raw))), raw...)
	}
	batch.LastOffsetDelta, batch.NumRecords = int32(last-b.base), int32(len(records))
	return sealBatch(batch.AppendTo(nil))
}

// sealBatch sets the length and the checksum of a batch.
func sealBatch(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// message is the first record in format 0 or 1.
func (b rawBatch) message(made int64) []byte {
	r := b.records[0]
	raw := (&kmsg.MessageV1{Offset: r.offset, Magic: 1, Timestamp: made, Key: r.key, Value: r.value}).AppendTo(nil)
	if b.timeless {
		raw = (&kmsg.MessageV0{Offset: r.offset, Key: r.key, Value: r.value}).AppendTo(nil)
	}
	return sealMessage(raw)
}

// sealMessage is sealBatch for formats 0 and 1.
func sealMessage(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[12:], crc32.ChecksumIEEE(raw[16:]))
	return raw
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

// withoutCoordinator returns a source whose group has no coordinator, as on a fresh
// cluster.
func withoutCoordinator(t *testing.T) *source {
	t.Helper()
	s := newStub(t)
	s.answer = answering(func(*findcoordinator.Request) protocol.Message {
		return &findcoordinator.Response{ErrorCode: int16(kafka.GroupCoordinatorNotAvailable)}
	})
	b, err := New(Options{Brokers: []string{"stub:9092"}, Dial: s.dial})
	if err != nil {
		t.Fatal(err)
	}
	return newSource(b, brokers.Subscription{Topics: []string{"orders"}}, plan{group: "g", topics: []string{"orders"}}, nil)
}
