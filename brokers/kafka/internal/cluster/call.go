package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// call is a request in the encoding of franz-go over a connection of kafka-go:
// kafka-go sends heartbeats to any broker, does not know some requests, and the
// newest versions of others are not what brokers read. Of a fetch it does not say
// where a batch ends, which matters where compaction has emptied it, and takes a
// fifth of all that a message costs for decoding it.
type call struct {
	kmsg.Request
	node     int32
	clientID string
	buffer   *bytes.Buffer
	unknown  bool // to the broker
}

type answer struct{ kmsg.Response }

// plainVersion is the newest version of a request whose encoding is the old one. Of
// a fetch it is the newest that names topics, and does not need their ids.
func plainVersion(key kmsg.Key) int16 {
	switch key {
	case kmsg.Fetch:
		return 11
	case kmsg.Metadata, kmsg.Produce:
		return 8
	case kmsg.JoinGroup:
		return 5
	case kmsg.DescribeGroups, kmsg.CreateTopics:
		return 4
	case kmsg.FindCoordinator:
		return 2
	}
	return 3
}

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (c *call) ApiKey() protocol.ApiKey { return protocol.ApiKey(c.Key()) }

// ApiKey implements protocol.Message.
//
//lint:ignore ST1003 the interface is spelled so
func (a answer) ApiKey() protocol.ApiKey { return protocol.ApiKey(a.Key()) }

// Broker implements protocol.BrokerMessage.
func (c *call) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	node := c.node
	if node == Controller {
		node = cluster.Controller
	}
	for id, broker := range cluster.Brokers {
		if id == node || node == AnyNode {
			return broker, nil
		}
	}
	return protocol.Broker{}, kafka.BrokerNotAvailable
}

// Prepare implements protocol.PreparedMessage.
func (c *call) Prepare(version int16) {
	c.SetVersion(min(version, plainVersion(kmsg.Key(c.Key()))))
}

// Required implements protocol.RawExchanger.
func (c *call) Required(versions map[protocol.ApiKey]int16) bool {
	_, known := versions[c.ApiKey()]
	c.unknown = !known
	return true
}

// RawExchange implements protocol.RawExchanger.
func (c *call) RawExchange(conn io.ReadWriter) (protocol.Message, error) {
	if c.unknown {
		return nil, ErrNoSuchCall
	}
	id := rand.Int32()
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(c.clientID)).AppendRequest(nil, c.Request, id)
	if _, err := conn.Write(frame); err != nil {
		return nil, err
	}
	if c.buffer == nil {
		c.buffer = new(bytes.Buffer)
	}
	res := c.ResponseKind()
	return answer{res}, ReadInto(c.buffer, conn, res, id)
}

// mostReserved is what is allocated for an answer before it begins to arrive, or
// else twice of what has arrived.
const mostReserved = 1 << 20

// ReadInto reads the answer to request id from conn. Its text is in buffer, which it
// may refer to.
func ReadInto(buffer *bytes.Buffer, conn io.Reader, answer kmsg.Response, id int32) error {
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head[:])) - 4
	if answered := int32(binary.BigEndian.Uint32(head[4:])); size < 0 || answered != id {
		return fmt.Errorf("%w: an answer to request %d instead of %d, of %d bytes", ErrCorrupt, answered, id, size)
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
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}
