package rabbitmq

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
)

// screen is a connection as the library reads it. The library ends a connection,
// with all that is on it, for a single message whose headers it does not take:
// nested too deep, with too many fields, or larger than a frame may be. The broker
// takes such messages from anybody. So screen puts other headers in their place:
// [unreadable] alone, with the original ones.
type screen struct {
	net.Conn
	in    *bufio.Reader
	frame []byte        // of headers, reused
	ready []byte        // what comes next
	rest  int64         // bytes after that of a frame that is passed on as it is
	most  atomic.Uint32 // the largest payload of a frame that the library takes, once it is agreed
}

const (
	// unreadable is the header with the bytes of a table that the library does not
	// read, or with their number, if they do not fit a frame.
	unreadable = "redrive-unreadable"

	// deepestField and mostFields are what the library takes.
	deepestField = 32
	mostFields   = 8192

	// largestFrame bounds what is read at once; the broker's limit for all headers
	// of a message is less.
	largestFrame = 64 << 20

	frameOverhead = 8 // type, channel, size and end
	frameHeaders  = 2
	frameEnd      = 0xCE
	alertOfTLS    = 0x15      // the type of a TLS record for alerts, which no frame has
	fixedPart     = 2 + 2 + 8 // of a payload of headers, before the flags: class, weight, size of the body
	mostAfter     = 4 << 10   // that all properties after the table can have

	flagContentType     = 1 << 15
	flagContentEncoding = 1 << 14
	flagHeaders         = 1 << 13
)

func newScreen(conn net.Conn) *screen {
	s := &screen{Conn: conn, in: bufio.NewReaderSize(conn, 32<<10)}
	s.most.Store(largestFrame)
	return s
}

// limit notes the largest frame that was agreed.
func (s *screen) limit(frameSize int) {
	if frameSize > frameOverhead {
		s.most.Store(uint32(frameSize - frameOverhead))
	}
}

// Read returns what is left of a frame, and reads the next one first if nothing is.
func (s *screen) Read(p []byte) (n int, err error) {
	if len(s.ready) == 0 && s.rest == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if len(s.ready) > 0 {
		n = copy(p, s.ready)
		s.ready = s.ready[n:]
		return n, nil
	}
	n, err = s.in.Read(p[:min(int64(len(p)), s.rest)])
	s.rest -= int64(n)
	return n, err
}

// next reads a frame of headers, and of any other the size.
func (s *screen) next() error {
	head, err := s.in.Peek(7)
	switch {
	case err == io.EOF && len(head) > 0:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case head[0] == alertOfTLS:
		return errors.New(speaksTLS)
	}
	size := binary.BigEndian.Uint32(head[3:])
	all := int64(size) + frameOverhead
	if head[0] != frameHeaders || size > largestFrame {
		s.rest = all
		return nil
	}
	s.frame = slices.Grow(s.frame[:0], int(all))[:all]
	if _, err = io.ReadFull(s.in, s.frame); err == nil {
		s.ready = screened(s.frame, s.most.Load())
	}
	return err
}

// screened returns a frame of headers that the library reads: this one, or one
// like it with [unreadable].
func screened(frame []byte, most uint32) []byte {
	payload := frame[7 : len(frame)-1]
	before, table, after, ok := cutTable(payload)
	if !ok || uint32(len(payload)) <= most && readable(table, true, 0) {
		return frame // as it is, or beyond repair
	}
	if len(after) > mostAfter {
		after = nil
		before[fixedPart] &= (flagContentType | flagContentEncoding | flagHeaders) >> 8
		before[fixedPart+1] = 0
	}
	field := append([]byte{'x'}, sized(table)...)
	if len(before)+len(unreadable)+len(field)+len(after)+5 > int(most) {
		field = binary.BigEndian.AppendUint64([]byte{'l'}, uint64(len(table)))
	}
	only := append([]byte{byte(len(unreadable))}, unreadable...)
	only = sized(append(only, field...))
	out := append([]byte(nil), frame[:3]...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(before)+len(only)+len(after)))
	out = append(append(append(out, before...), only...), after...)
	return append(out, frameEnd)
}

// sized puts the length of b before it.
func sized(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// cutTable cuts the payload of a frame of headers around the table in it, whose
// length belongs to none of the parts.
func cutTable(payload []byte) (before, table, after []byte, ok bool) {
	c := cursor{rest: payload}
	c.take(fixedPart)
	flags := c.number(2)
	for _, flag := range []uint64{flagContentType, flagContentEncoding} {
		if flags&flag != 0 {
			c.sized(1)
		}
	}
	before = payload[:len(payload)-len(c.rest)]
	table = c.sized(4)
	return before, table, c.rest, !c.failed && flags&flagHeaders != 0
}

// cursor reads on in a part of a frame. It reads nothing more when something was
// missing.
type cursor struct {
	rest   []byte
	failed bool
}

func (c *cursor) take(n uint64) (taken []byte) {
	if n > uint64(len(c.rest)) {
		c.rest, c.failed = nil, true
		return nil
	}
	taken, c.rest = c.rest[:n], c.rest[n:]
	return taken
}

// number takes a number of so many bytes.
func (c *cursor) number(bytes uint64) (n uint64) {
	for _, b := range c.take(bytes) {
		n = n<<8 | uint64(b)
	}
	return n
}

// sized takes what has its length before it, of so many bytes.
func (c *cursor) sized(bytes uint64) []byte { return c.take(c.number(bytes)) }

// readable reports whether the library takes the fields of a table, or of an array,
// which have no names. It is stricter where names are repeated.
func readable(b []byte, named bool, depth int) bool {
	c := cursor{rest: b, failed: depth > deepestField}
	for n := 0; len(c.rest) > 0 && !c.failed; n++ {
		c.failed = n == mostFields
		if named {
			c.sized(1)
		}
		c.field(depth)
	}
	return !c.failed
}

// fieldSizes are those of values, by type. Of the others the length is before them.
var fieldSizes = map[byte]uint64{
	'V': 0, 't': 1, 'B': 1, 'b': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'f': 4, 'D': 5, 'l': 8, 'd': 8, 'T': 8,
}

// field takes a value with its type.
func (c *cursor) field(depth int) {
	typ := byte(c.number(1))
	size, fixed := fieldSizes[typ]
	switch {
	case fixed:
		c.take(size)
	case typ == 'S' || typ == 'x':
		c.sized(4)
	case (typ != 'A' && typ != 'F') || !readable(c.sized(4), typ == 'F', depth+1):
		c.failed = true
	}
}
