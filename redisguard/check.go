package redisguard

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// ErrMalformed reports an answer that a Redis never sends.
var ErrMalformed = errors.New("a Redis never sends this answer")

const (
	// maxAnswer is the most bytes that one answer may announce. It is the size
	// of the largest value that Redis accepts by default.
	maxAnswer = 512 << 20
	// element is the most bytes that the client reserves for an element of an
	// array, a set or a map before it reads the element.
	element = 128

	maxLine  = 1 << 20 // bytes of an error, a status or a number
	maxDepth = 64      // levels of nested arrays
	header   = 24      // bytes of the longest type with its length
)

// checker checks the answers on a connection, in RESP 2 and 3.
type checker struct {
	line      [header]byte // the start of the current line
	length    int          // bytes of the current line so far
	left      int64        // bytes of the current string that are still to come
	open      []container
	announced int64 // bytes that the current answer announces
	err       error
}

// container is an array, a set, a map or an attribute that is not complete.
type container struct {
	left  int64 // values that are still to come
	pairs bool  // every other value is a key
	aside bool  // it is an attribute, which does not count as a value
}

// check returns how many bytes of b come before a malformed header. It sets err
// at that header.
func (c *checker) check(b []byte) (good int) {
	for i := 0; i < len(b) && c.err == nil; {
		if c.left > 0 {
			n := min(c.left, int64(len(b)-i))
			i, c.left = i+int(n), c.left-n
			good = i
			if c.left == 0 {
				c.complete()
			}
			continue
		}
		piece := b[i:]
		end := bytes.IndexByte(piece, '\n')
		if end >= 0 {
			piece = piece[:end+1]
		}
		if c.length < header {
			copy(c.line[c.length:], piece)
		}
		c.length += len(piece)
		i += len(piece)
		if c.length > maxLine {
			c.refuse("has a line of more than %d bytes", maxLine)
		} else if end >= 0 {
			c.value(c.line[:min(c.length, header)])
			c.length = 0
		}
		if c.err == nil && end >= 0 {
			good = i
		}
	}
	if c.err == nil {
		return len(b)
	}
	return good
}

func (c *checker) refuse(format string, a ...any) {
	c.err = fmt.Errorf("%w: it "+format, append([]any{ErrMalformed}, a...)...)
}

// value handles the line that begins a value.
func (c *checker) value(line []byte) {
	kind := line[0]
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		if c.mayBe(kind, 0) {
			c.complete()
		}
		return
	case '$', '!', '=', '*', '~', '>', '%', '|':
	default:
		c.refuse("begins a value with %q", kind)
		return
	}
	digits := bytes.TrimSuffix(line[1:], []byte("\r\n"))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil || n < -1 || len(digits) == len(line)-1 {
		c.refuse("announces the length %q", digits)
		return
	}
	if !c.mayBe(kind, n) {
		return
	}
	size := n
	switch kind {
	case '*', '~', '>', '%', '|':
		size = min(n, maxAnswer) * element
	}
	if c.announced += max(size, 0); c.announced > maxAnswer || n > maxAnswer {
		c.refuse("announces more than %d bytes, with the length %d", maxAnswer, n)
		return
	}
	switch {
	case n < 0:
		c.complete()
	case kind == '$' || kind == '!' || kind == '=':
		c.left = n + 2
	case n == 0 && kind == '|':
	case n == 0:
		c.complete()
	case len(c.open) == maxDepth:
		c.refuse("nests more than %d arrays", maxDepth)
	case kind == '%' || kind == '|':
		c.open = append(c.open, container{left: 2 * n, pairs: true, aside: kind == '|'})
	default:
		c.open = append(c.open, container{left: n})
	}
}

// mayBe refuses a value that cannot be the key of a map. The client panics if a
// key is an array. If a key is an error or nil, it reads the bytes after the
// key as the next answer.
func (c *checker) mayBe(kind byte, n int64) bool {
	if len(c.open) == 0 {
		return true
	}
	in := c.open[len(c.open)-1]
	if !in.pairs || in.left%2 == 1 || kind == '|' || n >= 0 && bytes.IndexByte([]byte("+:,#($="), kind) >= 0 {
		return true
	}
	c.refuse("has a map whose key begins with %q", kind)
	return false
}

// complete ends a value, and each container that ends with it.
func (c *checker) complete() {
	for len(c.open) > 0 {
		last := &c.open[len(c.open)-1]
		if last.left--; last.left > 0 {
			return
		}
		aside := last.aside
		if c.open = c.open[:len(c.open)-1]; aside {
			return
		}
	}
	c.announced = 0
}
