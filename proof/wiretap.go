package main

import (
	"encoding/binary"
	"net"
	"sync"
)

// Methods of AMQP 0-9-1: class and number.
const (
	exchangeDeclare = 40<<16 | 10
	queueDeclare    = 50<<16 | 10
	basicConsume    = 60<<16 | 20
	basicPublish    = 60<<16 | 40
	basicDeliver    = 60<<16 | 60
	basicAck        = 60<<16 | 80
)

// wiretap reads along on the connections of one process, so that it can be stopped
// between two frames, whatever the adapter looks like inside.
type wiretap struct {
	trap      *trap
	isDead    func(topic string) bool
	declared  func(what, name string) // "queue" or "exchange"
	consuming func()                  // on a connection
	copying   func(id string)

	mu     sync.Mutex
	copied map[string]bool // IDs of messages whose copy is confirmed, and whose ack comes next
}

// tapped is one connection. Publishes are numbered from 1, as confirms count.
type tapped struct {
	net.Conn
	tap     *wiretap
	out, in scanner // used by the writer and the reader of the library
	asked   int     // consumers that were asked for

	mu        sync.Mutex
	published int
	copies    map[int]carried    // what is not confirmed, by its number
	delivered map[uint64]carried // what is not acked, by its tag
	tag       uint64             // of the delivery that comes in
}

// carried is a message as frames tell of it.
type carried struct {
	id     string
	burial bool // a dead letter
}

func (t *wiretap) conn(c net.Conn) net.Conn {
	return &tapped{Conn: c, tap: t, out: scanner{skip: len("AMQP0091")}, copies: map[int]carried{}, delivered: map[uint64]carried{}}
}

// Write stops before the ack of a message is written whose copy is confirmed.
func (c *tapped) Write(b []byte) (int, error) {
	c.out.scan(b, func(method int, args []byte) {
		switch method {
		case basicPublish:
			c.publish(args)
		case header:
			c.mu.Lock()
			m := c.copies[c.published]
			m.id = messageID(args)
			c.copies[c.published] = m
			c.mu.Unlock()
			if !m.burial {
				c.tap.copying(m.id)
			}
		case basicAck:
			c.ack(binary.BigEndian.Uint64(args), args[8]&1 == 1)
		case basicConsume:
			if c.asked++; c.asked == 1 {
				c.tap.consuming()
			}
		case queueDeclare:
			name, _ := shortString(args[2:])
			c.tap.declared("queue", name)
		case exchangeDeclare:
			name, _ := shortString(args[2:])
			c.tap.declared("exchange", name)
		}
	})
	return c.Conn.Write(b)
}

func (c *tapped) publish(args []byte) {
	exchange, rest := shortString(args[2:])
	key, _ := shortString(rest)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.published++
	c.copies[c.published] = carried{burial: exchange == "" && c.tap.isDead(key)}
}

// ack ends deliveries of this connection.
func (c *tapped) ack(tag uint64, multiple bool) {
	c.mu.Lock()
	var ids []string
	for number, m := range c.delivered {
		if number == tag || multiple && number < tag {
			delete(c.delivered, number)
			ids = append(ids, m.id)
		}
	}
	c.mu.Unlock()
	copied := false
	c.tap.mu.Lock()
	for _, id := range ids {
		copied = copied || c.tap.copied[id]
		delete(c.tap.copied, id)
	}
	c.tap.mu.Unlock()
	if copied {
		c.tap.trap.reach(beforeAck)
	}
}

// Read stops after a confirm has come, and before the worker sees it.
func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.scan(b[:n], func(method int, args []byte) {
		switch method {
		case basicAck:
			c.confirm(int(binary.BigEndian.Uint64(args)), args[8]&1 == 1)
		case basicDeliver:
			_, rest := shortString(args) // of the consumer
			c.tag = binary.BigEndian.Uint64(rest)
		case header:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.delivered[c.tag] = carried{id: messageID(args)}
		}
	})
	return n, err
}

func (c *tapped) confirm(tag int, multiple bool) {
	var burials, copies []string
	c.mu.Lock()
	for number, m := range c.copies {
		switch {
		case number != tag && (!multiple || number > tag):
			continue
		case m.burial:
			burials = append(burials, m.id)
		default:
			copies = append(copies, m.id)
		}
		delete(c.copies, number)
	}
	c.mu.Unlock()
	if len(burials) > 0 {
		c.tap.trap.reach(inBurial)
	}
	if len(copies) > 0 {
		c.tap.trap.reach(beforeConfirm)
	}
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	if c.tap.copied == nil {
		c.tap.copied = map[string]bool{}
	}
	for _, id := range append(burials, copies...) {
		c.tap.copied[id] = true
	}
}

// scanner finds the frames of methods and of headers in a stream that comes in
// any pieces. A header is told of as a method with the number [header].
type scanner struct {
	skip  int    // bytes that are of no interest
	frame []byte // begun
}

const (
	frameHead   = 1 + 2 + 4 // type, channel, size
	methodFrame = 1
	headerFrame = 2

	header = -1
)

func (s *scanner) scan(b []byte, each func(method int, args []byte)) {
	for len(b) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(b))
			s.skip -= n
			b = b[n:]
			continue
		}
		want := frameHead
		if len(s.frame) >= frameHead {
			want += int(binary.BigEndian.Uint32(s.frame[3:])) + 1
		}
		n := min(want-len(s.frame), len(b))
		s.frame = append(s.frame, b[:n]...)
		b = b[n:]
		switch {
		case len(s.frame) < want:
		case want == frameHead:
			if s.frame[0] != methodFrame && s.frame[0] != headerFrame {
				s.skip = int(binary.BigEndian.Uint32(s.frame[3:])) + 1
				s.frame = s.frame[:0]
			}
		default:
			kind, payload := s.frame[0], s.frame[frameHead:want-1]
			s.frame = s.frame[:0]
			if kind == headerFrame {
				each(header, payload)
			} else {
				each(int(binary.BigEndian.Uint32(payload)), payload[4:])
			}
		}
	}
}

// messageID reads the property out of a header, "" if it has none.
func messageID(payload []byte) string {
	const classWeightSize = 2 + 2 + 8
	set := binary.BigEndian.Uint16(payload[classWeightSize:])
	b := payload[classWeightSize+2:]
	for bit := 15; bit > 7; bit-- { // the properties before it, in their order
		switch {
		case set&(1<<bit) == 0:
		case bit == 13: // headers
			b = b[4+binary.BigEndian.Uint32(b):]
		case bit == 12 || bit == 11: // delivery mode, priority
			b = b[1:]
		default:
			_, b = shortString(b)
		}
	}
	if set&(1<<7) == 0 {
		return ""
	}
	id, _ := shortString(b)
	return id
}

// shortString reads a string of AMQP with its length in one byte.
func shortString(b []byte) (text string, rest []byte) {
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:]
}
