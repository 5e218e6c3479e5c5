package kafka

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// stub is a broker in memory that says what a test wants it to say. Everything
// that it knows of a partition is the same for all of them.
type stub struct {
	t      *testing.T
	topics map[string]int // and their partitions

	mu      sync.Mutex
	log     []rawBatch
	start   int64
	stable  int64 // the end of the log, if it is less
	corrupt int64 // the base of a batch whose checksum is wrong
	aborted []fetch.ResponseTransaction
	calls   map[protocol.ApiKey]int

	// answer may answer instead: with a message, or with an error that ends
	// the connection.
	answer func(req protocol.Message, call int) (protocol.Message, error)
}

var errSilence = errors.New("never an answer")

func newStub(t *testing.T) *stub {
	return &stub{t: t, topics: map[string]int{"orders": 4}, corrupt: -1, calls: make(map[protocol.ApiKey]int)}
}

func (s *stub) client(change ...func(*clientOptions)) *client {
	o := clientOptions{brokers: []string{"stub:9092"}, dial: s.dial}
	for _, f := range change {
		f(&o)
	}
	return newClient(o)
}

func (s *stub) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go s.serve(theirs)
	return ours, nil
}

func (s *stub) count(key protocol.ApiKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

func (s *stub) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		version, id, _, req, err := protocol.ReadRequest(in)
		if err != nil {
			return
		}
		res, raw, err := s.respond(req, version)
		if err == errSilence {
			io.Copy(io.Discard, in)
			return
		}
		if err != nil {
			return
		}
		if raw != nil {
			frame := binary.BigEndian.AppendUint32(nil, uint32(len(raw)+4))
			frame = binary.BigEndian.AppendUint32(frame, uint32(id))
			_, err = conn.Write(append(frame, raw...))
		} else {
			err = protocol.WriteResponse(conn, version, id, res)
		}
		if err != nil {
			return
		}
	}
}

func (s *stub) respond(req protocol.Message, version int16) (protocol.Message, []byte, error) {
	s.mu.Lock()
	s.calls[req.ApiKey()]++
	call, answer := s.calls[req.ApiKey()], s.answer
	s.mu.Unlock()
	if answer != nil {
		if res, err := answer(req, call); res != nil || err != nil {
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

// fetch answers in version 11: from the batch on that the offset belongs to,
// at least one batch, and others while they fit.
func (s *stub) fetch(req *fetch.Request) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := req.Topics[0].Partitions[0]
	if req.IsolationLevel != readCommitted {
		s.t.Errorf("isolation level %d is fetched with, so that aborted records come", req.IsolationLevel)
	}
	stable := s.end()
	if s.stable > 0 {
		stable = min(stable, s.stable)
	}
	code := uint16(0)
	if asked.FetchOffset < s.start || asked.FetchOffset > s.end() {
		code = 1
	}
	var records []byte
	for i, b := range s.log {
		last := s.end() - 1
		if i+1 < len(s.log) {
			last = s.log[i+1].base - 1
		}
		if b.last > 0 {
			last = b.last
		}
		if code != 0 || last < asked.FetchOffset || b.base >= stable {
			continue
		}
		b.made = cmp.Or(b.made, 946_684_800_000) // whenever it is fetched
		raw := b.bytes()
		if b.base == s.corrupt {
			raw[len(raw)-1] ^= 1
		}
		if len(records) > 0 && len(records)+len(raw) > int(asked.PartitionMaxBytes) {
			break
		}
		records = append(records, raw...)
	}
	if len(records) == 0 && req.MinBytes > 0 {
		s.mu.Unlock()
		time.Sleep(time.Duration(req.MaxWaitTime) * time.Millisecond) // as a broker does
		s.mu.Lock()
	}
	e := binary.BigEndian
	out := e.AppendUint32(nil, 0)                   // throttle
	out = e.AppendUint32(e.AppendUint16(out, 0), 0) // error, session
	out = e.AppendUint32(out, 1)                    // topics
	out = e.AppendUint16(out, uint16(len(req.Topics[0].Topic)))
	out = append(out, req.Topics[0].Topic...)
	out = e.AppendUint32(out, 1) // partitions
	out = e.AppendUint32(out, uint32(asked.Partition))
	out = e.AppendUint16(out, code)
	for _, offset := range []int64{s.end(), stable, s.start} {
		out = e.AppendUint64(out, uint64(offset))
	}
	out = e.AppendUint32(out, uint32(len(s.aborted)))
	for _, a := range s.aborted {
		out = e.AppendUint64(e.AppendUint64(out, uint64(a.ProducerID)), uint64(a.FirstOffset))
	}
	out = e.AppendUint32(out, 0xffffffff) // preferred replica
	return append(e.AppendUint32(out, uint32(len(records))), records...)
}
