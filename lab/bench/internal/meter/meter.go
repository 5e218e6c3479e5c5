// Package meter counts what a client sends to a broker.
package meter

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/segmentio/kafka-go/protocol"
)

// Meter counts requests and connections. The zero value is ready to use.
type Meter struct {
	mu   sync.Mutex
	sent Sent
	open int
}

// Sent is how many requests there were of each kind.
type Sent map[string]int

// Total returns how many there were of any kind.
func (s Sent) Total() (n int) {
	for _, of := range s {
		n += of
	}
	return n
}

// Count counts a request.
func (m *Meter) Count(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent == nil {
		m.sent = Sent{}
	}
	m.sent[kind]++
}

// Take returns the requests since the last time.
func (m *Meter) Take() Sent {
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := m.sent
	m.sent = nil
	return sent
}

// Open returns how many connections are open.
func (m *Meter) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open
}

// Frames say how the requests of a protocol follow each other on a connection.
type Frames struct {
	before int // bytes before the first
	head   int // bytes that read takes
	read   func(head []byte) (kind string, rest int)
}

var (
	// AMQP is that of RabbitMQ, whose kinds are those of its frames.
	AMQP = Frames{before: 8, head: 7, read: amqpFrame}
	// Kafka is that of Kafka.
	Kafka = Frames{head: 6, read: kafkaRequest}
)

func amqpFrame(head []byte) (kind string, rest int) {
	kinds := map[byte]string{1: "method", 2: "header", 3: "body", 8: "heartbeat"}
	return kinds[head[0]], int(binary.BigEndian.Uint32(head[3:])) + 1
}

func kafkaRequest(head []byte) (kind string, rest int) {
	return protocol.ApiKey(binary.BigEndian.Uint16(head[4:])).String(), int(binary.BigEndian.Uint32(head)) - 2
}

// Dial returns a function that connects. Its connections are counted, and the
// requests on them too, unless frames is the zero value.
func (m *Meter) Dial(frames Frames) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		m.connections(1)
		return &conn{Conn: c, meter: m, frames: frames, rest: frames.before}, nil
	}
}

func (m *Meter) connections(more int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open += more
}

// conn is a connection on which nobody writes while another one does.
type conn struct {
	net.Conn
	meter  *Meter
	frames Frames
	head   []byte // of the next request, as far as it was sent
	rest   int    // bytes before that
	once   sync.Once
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.frames.read != nil {
		c.see(p[:n])
	}
	return n, err
}

func (c *conn) see(sent []byte) {
	for len(sent) > 0 {
		passed := min(c.rest, len(sent))
		c.rest -= passed
		sent = sent[passed:]
		more := min(c.frames.head-len(c.head), len(sent))
		c.head = append(c.head, sent[:more]...)
		sent = sent[more:]
		if len(c.head) == c.frames.head {
			var kind string
			kind, c.rest = c.frames.read(c.head)
			c.head = c.head[:0]
			c.meter.Count(kind)
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { c.meter.connections(-1) })
	return c.Conn.Close()
}
