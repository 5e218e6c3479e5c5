package kafka

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ask asks any broker.
func (c *client) ask(ctx context.Context, timeout time.Duration, req kmsg.Request) (kmsg.Response, error) {
	return c.askNode(ctx, timeout, anyNode, req)
}

// askGroup asks the coordinator of a group.
func (c *client) askGroup(ctx context.Context, timeout time.Duration, group string, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := c.RoundTrip(ctx, c.addr, &findcoordinator.Request{Key: group})
	if err != nil {
		return nil, err
	}
	at := found.(*findcoordinator.Response)
	if err := codeError(at.ErrorCode); err != nil {
		return nil, err
	}
	return c.askNode(ctx, timeout, at.NodeID, req)
}

func (c *client) askNode(ctx context.Context, timeout time.Duration, node int32, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := c.RoundTrip(ctx, c.addr, &call{Request: req, node: node, clientID: c.options.clientID})
	if err != nil {
		return nil, err
	}
	return res.(answer).Response, nil
}

// call is a request in the encoding of franz-go over a connection of kafka-go:
// kafka-go sends heartbeats to any broker, does not know some requests, and the
// newest versions of others are not what brokers read.
type call struct {
	kmsg.Request
	node     int32
	clientID string
	unknown  bool // to the broker
}

const (
	anyNode    = -1
	controller = -2
)

type answer struct{ kmsg.Response }

// errNoSuchCall reports a broker that is too old for a request.
var errNoSuchCall = errors.New("the broker does not know this request")

// plainVersion is the newest version of a request whose encoding is the old one.
func plainVersion(key kmsg.Key) int16 {
	switch key {
	case kmsg.Metadata:
		return 8
	case kmsg.JoinGroup:
		return 5
	case kmsg.DescribeGroups, kmsg.CreateTopics:
		return 4
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
	if node == controller {
		node = cluster.Controller
	}
	for id, broker := range cluster.Brokers {
		if id == node || node == anyNode {
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
		return nil, errNoSuchCall
	}
	id := rand.Int32()
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(c.clientID)).AppendRequest(nil, c.Request, id)
	if _, err := conn.Write(frame); err != nil {
		return nil, err
	}
	res := c.ResponseKind()
	return answer{res}, readInto(new(bytes.Buffer), conn, res, id)
}
