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
	basicPublish    = 60<<16 | 40
	basicAck        = 60<<16 | 80
)

// wiretap reads along on the connections of one process, so that it can be stopped
// between two frames, whatever the adapter looks like inside.
type wiretap struct {
	trap     *trap
	isDead   func(topic string) bool
	declared func(what, name string) // "queue" or "exchange"

	mu     sync.Mutex
	copied bool // the worker knows that a copy is confirmed; its ack comes next
}

// tapped is one connection. Publishes are numbered from 1, as confirms count.
type tapped struct {
	net.Conn
	tap     *wiretap
	out, in scanner // used by the writer and the reader of the library

	mu        sync.Mutex
	published int
	burials   map[int]bool // what is not confirmed: is it a dead letter?
}

func (t *wiretap) conn(c net.Conn) net.Conn {
	return &tapped{Conn: c, tap: t, out: scanner{skip: len("AMQP0091")}, burials: map[int]bool{}}
}

// Write stops before an ack is written.
func (c *tapped) Write(b []byte) (int, error) {
	c.out.scan(b, func(method int, args []byte) {
		switch method {
		case basicPublish:
			c.publish(args)
		case basicAck:
			c.tap.mu.Lock()
			copied := c.tap.copied
			c.tap.copied = false
			c.tap.mu.Unlock()
			if copied {
				c.tap.trap.reach(beforeAck)
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
	c.burials[c.published] = exchange == "" && c.tap.isDead(key)
}

// Read stops after a confirm has come, and before the worker sees it.
func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.scan(b[:n], func(method int, args []byte) {
		if method == basicAck {
			c.confirm(int(binary.BigEndian.Uint64(args)), args[8]&1 == 1)
		}
	})
	return n, err
}

func (c *tapped) confirm(tag int, multiple bool) {
	burials, copies := false, false
	c.mu.Lock()
	for number, burial := range c.burials {
		if number == tag || multiple && number < tag {
			delete(c.burials, number)
			burials, copies = burials || burial, copies || !burial
		}
	}
	c.mu.Unlock()
	if burials {
		c.tap.trap.reach(inBurial)
	}
	if copies {
		c.tap.trap.reach(beforeConfirm)
		c.tap.mu.Lock()
		c.tap.copied = true
		c.tap.mu.Unlock()
	}
}

// scanner finds the method frames in a stream that comes in any pieces.
type scanner struct {
	skip  int    // bytes that are of no interest
	frame []byte // begun
}

const (
	frameHeader = 1 + 2 + 4 // type, channel, size
	methodFrame = 1
)

func (s *scanner) scan(b []byte, each func(method int, args []byte)) {
	for len(b) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(b))
			s.skip -= n
			b = b[n:]
			continue
		}
		want := frameHeader
		if len(s.frame) >= frameHeader {
			want += int(binary.BigEndian.Uint32(s.frame[3:])) + 1
		}
		n := min(want-len(s.frame), len(b))
		s.frame = append(s.frame, b[:n]...)
		b = b[n:]
		switch {
		case len(s.frame) < want:
		case want == frameHeader:
			if s.frame[0] != methodFrame {
				s.skip = int(binary.BigEndian.Uint32(s.frame[3:])) + 1
				s.frame = s.frame[:0]
			}
		default:
			payload := s.frame[frameHeader : want-1]
			s.frame = s.frame[:0]
			each(int(binary.BigEndian.Uint32(payload)), payload[4:])
		}
	}
}

// shortString reads a string of AMQP with its length in one byte.
func shortString(b []byte) (text string, rest []byte) {
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:]
}
