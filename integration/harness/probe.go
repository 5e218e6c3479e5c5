package harness

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	probeTimeout = 2 * time.Second
	maxGreeting  = 64 << 10 // RabbitMQ's greeting takes about 500 bytes
)

// Greeting is what a broker says of itself when a client connects.
type Greeting struct {
	Product string
	Version string
}

// Probe connects to host:port, opens the conversation of the product and
// returns what the broker answers. It does not log in. It gives up after two
// seconds.
func Probe(ctx context.Context, product Product, address string) (Greeting, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return Greeting{}, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return Greeting{}, err
	}
	greet := map[Product]func(io.ReadWriter) (Greeting, error){
		RabbitMQ: greetRabbitMQ, Kafka: greetKafka, SQS: greetSQS, Redis: greetRedis,
	}[product]
	greeting, err := greet(conn)
	if err != nil {
		return Greeting{}, fmt.Errorf("%s does not answer as %s does: %w", address, product, err)
	}
	return greeting, nil
}

// greetRabbitMQ opens an AMQP 0-9-1 connection.
func greetRabbitMQ(conn io.ReadWriter) (Greeting, error) {
	if _, err := io.WriteString(conn, "AMQP\x00\x00\x09\x01"); err != nil {
		return Greeting{}, err
	}
	return readGreeting(bufio.NewReader(conn))
}

var errMalformed = errors.New("malformed answer")

// readGreeting reads one frame, which must hold the method connection.start.
func readGreeting(r io.Reader) (Greeting, error) {
	var head [7]byte // type, channel, size
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Greeting{}, err
	}
	size := binary.BigEndian.Uint32(head[3:])
	if head[0] != 1 || size > maxGreeting {
		return Greeting{}, errMalformed
	}
	frame := make([]byte, size+1)
	if _, err := io.ReadFull(r, frame); err != nil {
		return Greeting{}, err
	}
	// Class 10, method 10, two bytes of protocol version, then the table.
	if frame[size] != 0xCE || size < 6 || binary.BigEndian.Uint32(frame) != 10<<16|10 {
		return Greeting{}, errMalformed
	}
	table, _, err := cut(frame[6:size])
	if err != nil {
		return Greeting{}, err
	}
	return readProperties(table)
}

// readProperties walks the server's properties. They are texts and nested
// tables, which have the same shape: a length and so many bytes.
func readProperties(table []byte) (Greeting, error) {
	var greeting Greeting
	for len(table) > 0 {
		n := 1 + int(table[0])
		if len(table) <= n {
			return Greeting{}, errMalformed
		}
		key, kind := string(table[1:n]), table[n]
		if kind != 'S' && kind != 'F' {
			return Greeting{}, fmt.Errorf("%w: property %q of type %q", errMalformed, key, kind)
		}
		value, rest, err := cut(table[n+1:])
		if err != nil {
			return Greeting{}, err
		}
		switch key {
		case "product":
			greeting.Product = string(value)
		case "version":
			greeting.Version = string(value)
		}
		table = rest
	}
	return greeting, nil
}

// cut splits a value with a four-byte length from what follows it.
func cut(b []byte) (value, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errMalformed
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n > uint64(len(b)-4) {
		return nil, nil, errMalformed
	}
	return b[4 : 4+n], b[4+n:], nil
}
