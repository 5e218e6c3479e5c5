// Package cluster is the seam between the adapter and the client library, kafka-go.
// Client names all that is asked of the library.
package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Client makes single calls to the brokers of a cluster. An error of a broker, or
// of the library about a topic, is a kafka.Error.
type Client interface {
	// Ask sends a request to a node, to AnyNode or to the Controller, and returns
	// the answer. The answer refers to text in buffer, unless that is nil.
	Ask(ctx context.Context, node int32, req kmsg.Request, buffer *bytes.Buffer) (kmsg.Response, error)

	// Leaders returns the nodes that lead the partitions of a topic, as far as the
	// client remembers: below 0 where there is none.
	Leaders(ctx context.Context, topic string) (map[int32]int32, error)

	// Write stores messages with the confirmation of all replicas in sync, in
	// batches with those of other calls. It returns an error for each message, or
	// one error if it has sent nothing.
	Write(ctx context.Context, messages []kafka.Message) (each []error, err error)

	// Reread has the layout of the cluster be read anew, if err, which a call about
	// a topic ended with, says that it is out of date. It returns err, or ErrGone.
	Reread(ctx context.Context, topic string, err error) error

	// Close waits for what Write has begun, and ends all connections. Cut ends them
	// also with a call on its way, which then fails. Both may be called again.
	Close()
	Cut()
}

// Options say how to reach the brokers. Each is required but TLS and SASL.
type Options struct {
	Brokers  []string
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	TLS      *tls.Config
	SASL     sasl.Mechanism // Start is called for every connection, so credentials may rotate
	ClientID string
	Timeout  time.Duration // of connecting, and of an attempt to write

	// Balance chooses among the partitions of a topic for Write.
	Balance func(m kafka.Message, partitions ...int) int

	// A batch of Write has at most so many messages and bytes.
	BatchMessages int
	BatchBytes    int64
}

// Nodes that Ask finds by itself.
const (
	AnyNode    = -1
	Controller = -2
)
