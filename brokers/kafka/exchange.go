package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchVersion is the newest version of the request that names topics, and does
// not need their ids.
const fetchVersion = 11

const readCommitted = 1

// fetchRequest asks one broker for the records of partitions. kafka-go takes it
// there, but it and its answer go over kafka-go's connection in the encoding of
// franz-go: kafka-go does not say where a batch ends, which matters where compaction
// has emptied it, and takes a fifth of all that a message costs for decoding it.
type fetchRequest struct {
	wants    []want
	node     int32 // anyNode for the leader of the first
	maxBytes int
	wait     time.Duration // for the first record; 0 returns at once
	clientID string
	rack     string
	version  int16 // as it was agreed on for the connection

	// Of a fetch session.
	session, epoch int32
	forgotten      []partition
}

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (r *fetchRequest) ApiKey() protocol.ApiKey { return protocol.Fetch }

// Broker implements protocol.BrokerMessage.
func (r *fetchRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	if r.node != anyNode {
		return (&call{node: r.node}).Broker(cluster)
	}
	return (&fetch.Request{Topics: []fetch.RequestTopic{{
		Topic:      r.wants[0].topic,
		Partitions: []fetch.RequestPartition{{Partition: int32(r.wants[0].number)}},
	}}}).Broker(cluster)
}

// Prepare implements protocol.PreparedMessage.
func (r *fetchRequest) Prepare(version int16) { r.version = min(version, fetchVersion) }

// Required implements protocol.RawExchanger.
func (r *fetchRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange implements protocol.RawExchanger.
func (r *fetchRequest) RawExchange(conn io.ReadWriter) (protocol.Message, error) {
	req, id := r.message(), rand.Int32()
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(r.clientID)).AppendRequest(nil, req, id)
	if _, err := conn.Write(frame); err != nil {
		return nil, err
	}
	return readAnswer(conn, req, id)
}

func (r *fetchRequest) message() *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version = r.version
	req.MaxWaitMillis = int32(r.wait.Milliseconds())
	req.MinBytes = 1
	if r.wait == 0 {
		req.MinBytes = 0
	}
	req.MaxBytes = int32(r.maxBytes)
	req.IsolationLevel = readCommitted
	req.Rack = r.rack
	req.SessionID, req.SessionEpoch = r.session, r.epoch
	topics := make(map[string]int)
	for _, w := range r.wants {
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.FetchOffset, part.PartitionMaxBytes = int32(w.number), w.offset, int32(w.maxBytes)
		at, ok := topics[w.topic]
		if !ok {
			at = len(req.Topics)
			topics[w.topic] = at
			req.Topics = append(req.Topics, kmsg.FetchRequestTopic{Topic: w.topic})
		}
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, part)
	}
	gone := make(map[string]int)
	for _, p := range r.forgotten {
		at, ok := gone[p.topic]
		if !ok {
			at = len(req.ForgottenTopics)
			gone[p.topic] = at
			req.ForgottenTopics = append(req.ForgottenTopics, kmsg.FetchRequestForgottenTopic{Topic: p.topic})
		}
		req.ForgottenTopics[at].Partitions = append(req.ForgottenTopics[at].Partitions, int32(p.number))
	}
	return req
}

// fetchAnswer is the answer to a fetchRequest. Its records are in a buffer that
// release gives back.
type fetchAnswer struct {
	*kmsg.FetchResponse
	buffer *bytes.Buffer
}

// mostReserved is what is allocated for an answer before it begins to arrive, or
// else twice of what has arrived.
const mostReserved = 1 << 20

// readAnswer reads the answer to a request from conn.
func readAnswer(conn io.Reader, req *kmsg.FetchRequest, id int32) (*fetchAnswer, error) {
	a := &fetchAnswer{req.ResponseKind().(*kmsg.FetchResponse), buffers.get()}
	if err := readInto(a.buffer, conn, a.FetchResponse, id); err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

// readInto reads the answer to request id from conn. Its text is in buffer, which it
// may refer to.
func readInto(buffer *bytes.Buffer, conn io.Reader, answer kmsg.Response, id int32) error {
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head[:])) - 4
	if answered := int32(binary.BigEndian.Uint32(head[4:])); size < 0 || answered != id {
		return fmt.Errorf("%w: an answer to request %d instead of %d, of %d bytes", errCorrupt, answered, id, size)
	}
	for rest, most := int(size), mostReserved; rest > 0; most = 2 * buffer.Len() {
		part := min(rest, most)
		buffer.Grow(part + bytes.MinRead)
		if _, err := io.CopyN(buffer, conn, int64(part)); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		rest -= part
	}
	text := buffer.Bytes()
	if answer.IsFlexible() { // then it begins with how many additions the head has, which is none
		text = bytes.TrimPrefix(text, []byte{0})
	}
	if err := answer.ReadFrom(text); err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return nil
}

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (a *fetchAnswer) ApiKey() protocol.ApiKey { return protocol.Fetch }

// release gives the buffer back: nothing of the answer may be used any more.
func (a *fetchAnswer) release() {
	if a.buffer != nil {
		buffers.put(a.buffer)
	}
}

// partition is what the answer says of the one that was asked for.
func (a *fetchAnswer) partition() (*kmsg.FetchResponseTopicPartition, error) {
	if len(a.Topics) == 0 || len(a.Topics[0].Partitions) == 0 {
		return nil, errors.Join(codeError(a.ErrorCode), errors.New("the answer is empty"))
	}
	p := &a.Topics[0].Partitions[0]
	return p, codeError(p.ErrorCode)
}
