package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// rabbitServer is a RabbitMQ, as the driver sees it: the queues that somebody was
// seen to declare.
type rabbitServer struct {
	urls []string // of the nodes of a cluster, with commas in between

	mu    sync.Mutex
	names map[string]map[string]bool // "queue" and "exchange"
	conn  *amqp.Connection
}

func newRabbit(j job) *rabbitServer {
	return &rabbitServer{urls: strings.Split(j.URL, ","), names: map[string]map[string]bool{"queue": {}, "exchange": {}}}
}

func (t *rabbitServer) declared(what, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names[what][name] = true
}

func (t *rabbitServer) known(what string) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.names[what])
}

// channel runs f on a channel of its own.
func (t *rabbitServer) channel(f func(*amqp.Channel) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil || t.conn.IsClosed() {
		if err := t.connect(); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	ch, err := t.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	return f(ch)
}

// connect tries the nodes in turn. mu is held.
func (t *rabbitServer) connect() (err error) {
	for _, url := range t.urls {
		if t.conn, err = amqp.Dial(url); err == nil {
			return nil
		}
	}
	return err
}

// counts are of messages that are ready.
func (t *rabbitServer) counts(context.Context, ...string) (map[string]int, error) {
	counts := map[string]int{}
	for name := range t.known("queue") {
		err := t.channel(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			counts[name] = q.Messages
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", name, err)
		}
	}
	return counts, nil
}

// close removes all that was declared.
func (t *rabbitServer) close(context.Context) error {
	var errs []error
	for name := range t.known("queue") {
		errs = append(errs, t.channel(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}))
	}
	for name := range t.known("exchange") {
		errs = append(errs, t.channel(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) }))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		errs = append(errs, t.conn.Close())
	}
	return errors.Join(errs...)
}

// connectRabbit connects by way of a wiretap.
func connectRabbit(j job, t *wiretap) (*rabbitmq.Broker, error) {
	return rabbitmq.New(rabbitmq.Options{
		URLs:        strings.Split(j.URL, ","),
		Prefix:      j.Tag,
		CallTimeout: callTimeout,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &tapped{Conn: c, tap: t, out: scanner{skip: len("AMQP0091")}}, nil
		},
	})
}

// Methods of AMQP 0-9-1: class and number.
const (
	exchangeDeclare = 40<<16 | 10
	queueDeclare    = 50<<16 | 10
	basicAck        = 60<<16 | 80
)

// wiretap reads along on the connections of one process, so that it can be stopped
// between the steps of one settlement, whatever the adapter looks like inside.
type wiretap struct {
	trap      *trap
	declared  func(what, name string) // "queue" or "exchange"
	confirmed atomic.Bool             // the worker knows of a copy, and no ack has been written since
}

// tapped is one connection.
type tapped struct {
	net.Conn
	tap     *wiretap
	out, in scanner // used by the writer and the reader of the library
}

// Write stops before the first ack after a confirm.
func (c *tapped) Write(b []byte) (int, error) {
	c.out.scan(b, func(method uint32, args []byte) {
		switch method {
		case basicAck:
			if c.tap.confirmed.Swap(false) {
				c.tap.trap.reach(beforeAck)
			}
		case queueDeclare:
			c.tap.declared("queue", shortString(args[2:]))
		case exchangeDeclare:
			c.tap.declared("exchange", shortString(args[2:]))
		}
	})
	return c.Conn.Write(b)
}

// Read stops after a confirm has come, which is an ack of the broker's, and before
// the worker sees it.
func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.scan(b[:n], c.receive)
	return n, err
}

func (c *tapped) receive(method uint32, _ []byte) {
	if method == basicAck {
		c.tap.trap.reach(beforeConfirm)
		c.tap.confirmed.Store(true)
	}
}

// scanner finds the methods in a stream of frames that comes in any pieces.
type scanner struct {
	skip  int    // bytes that are of no interest
	begun []byte // a frame
}

func (s *scanner) scan(b []byte, each func(method uint32, args []byte)) {
	const head, methodFrame = 1 + 2 + 4, 1 // type, channel, size
	n := min(s.skip, len(b))
	s.skip -= n
	s.begun = append(s.begun, b[n:]...)
	for len(s.begun) >= head {
		size := head + int(binary.BigEndian.Uint32(s.begun[3:])) + 1
		if len(s.begun) < size {
			return
		}
		if frame := s.begun[:size]; frame[0] == methodFrame {
			each(binary.BigEndian.Uint32(frame[head:]), frame[head+4:])
		}
		s.begun = s.begun[size:]
	}
}

// shortString reads a string of AMQP with its length in one byte.
func shortString(b []byte) string { return string(b[1 : 1+int(b[0])]) }
