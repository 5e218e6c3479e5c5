package main

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Requests of Kafka's protocol, by their key.
const (
	produceKey      = 0
	offsetCommitKey = 8
)

// kafkaTap reads along on the connections of one process, as wiretap does.
type kafkaTap struct {
	trap    *trap
	isDead  func(topic string) bool
	isDelay func(topic string) bool
	note    func(event)

	copied atomic.Bool // the worker knows of a copy that no commit tells of
}

// kafkaConn is one connection. Answers come with the number of their request.
type kafkaConn struct {
	net.Conn
	tap     *kafkaTap
	out, in frames // used by the writer and the reader of the library

	mu    sync.Mutex
	asked map[uint32]asked
}

// asked is a request that is not answered.
type asked struct {
	key     uint16
	version uint16
	topic   string // of a produce
	at      time.Time
}

func (t *kafkaTap) conn(c net.Conn) net.Conn {
	return &kafkaConn{Conn: c, tap: t, asked: map[uint32]asked{}}
}

// Write stops before the first commit is written after the worker has learned
// of a copy.
func (c *kafkaConn) Write(b []byte) (int, error) {
	c.out.scan(b, func(head []byte) {
		r := &reading{b: head}
		a := asked{key: r.int16(), version: r.int16(), at: time.Now()}
		number := r.int32()
		r.text() // the client ID
		switch a.key {
		case produceKey:
			if a.version >= 3 {
				r.text() // the transactional ID
			}
			r.int16()
			r.int32()
			r.int32() // topics, of which the library sends one at a time
			a.topic = r.text()
		case offsetCommitKey:
			if c.tap.copied.Swap(false) {
				c.tap.trap.reach(beforeAck)
			}
		default:
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked[number] = a
	})
	return c.Conn.Write(b)
}

// Read stops after a confirm has come, and before the worker sees it.
func (c *kafkaConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.scan(b[:n], func(head []byte) {
		r := &reading{b: head}
		number := r.int32()
		c.mu.Lock()
		a, ok := c.asked[number]
		delete(c.asked, number)
		c.mu.Unlock()
		switch {
		case !ok:
		case a.key == produceKey:
			c.stored(a, r)
		default:
			c.committed(a, r)
		}
	})
	return n, err
}

func (c *kafkaConn) stored(a asked, r *reading) {
	r.int32()
	r.text()
	r.int32()
	r.int32()
	switch refused := r.int16() != 0; {
	case refused:
	case c.tap.isDead(a.topic):
		c.tap.trap.reach(inBurial)
	case c.tap.isDelay(a.topic):
		c.tap.trap.reach(beforeConfirm)
	}
}

// committed notes since when what is settled is not committed: the write of the
// request, or an earlier one if this is refused.
func (c *kafkaConn) committed(a asked, r *reading) {
	if a.version >= 3 {
		r.int32() // throttling
	}
	e := event{Kind: committed, Delay: time.Since(a.at)}
	for topics := r.int32(); topics > 0 && !r.short; topics-- {
		r.text()
		for partitions := r.int32(); partitions > 0 && !r.short; partitions-- {
			if r.int32(); r.int16() != 0 {
				e.Err = refused
			}
		}
	}
	c.tap.note(e)
}

// frames finds the frames in a stream that comes in any pieces, and keeps the
// head of each.
type frames struct {
	head []byte
	left int // of the frame
}

const (
	sizeOfSize  = 4
	longestHead = 64 << 10
)

func (f *frames) scan(b []byte, each func(head []byte)) {
	for len(b) > 0 {
		if f.left == 0 {
			n := min(sizeOfSize-len(f.head), len(b))
			f.head = append(f.head, b[:n]...)
			b = b[n:]
			if len(f.head) == sizeOfSize {
				f.left = int(binary.BigEndian.Uint32(f.head))
				f.head = f.head[:0]
			}
			continue
		}
		n := min(f.left, len(b))
		f.head = append(f.head, b[:max(0, min(n, longestHead-len(f.head)))]...)
		b = b[n:]
		if f.left -= n; f.left == 0 {
			each(f.head)
			f.head = f.head[:0]
		}
	}
}

// reading reads a frame from its begin. What is missing reads as 0.
type reading struct {
	b     []byte
	short bool
}

func (r *reading) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return make([]byte, max(n, 0))
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reading) int16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reading) int32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }

// text reads a string, which may be null.
func (r *reading) text() string {
	n := int16(r.int16())
	if int(n) > len(r.b) {
		r.b, r.short = nil, true
		return ""
	}
	return string(r.take(int(max(n, 0))))
}
