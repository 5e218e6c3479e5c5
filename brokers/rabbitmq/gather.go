package rabbitmq

import (
	"bufio"
	"net"
	"sync"
)

// gatherer is the connection below the library, which sends every frame by a
// write of its own. Between gather and flush, writes of all goroutines are kept
// and travel together: for a hundred acks, the system call and the broker's
// wake-up cost more than the acks.
type gatherer struct {
	net.Conn
	mu     sync.Mutex
	depth  int // calls of gather that are not flushed
	frames *bufio.Writer
}

func newGatherer(conn net.Conn) *gatherer {
	return &gatherer{Conn: conn, frames: bufio.NewWriterSize(conn, 64<<10)}
}

// gather begins to keep what is written.
func (g *gatherer) gather() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.depth++
}

// flush sends what is kept. Each call of gather needs one.
func (g *gatherer) flush() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.depth--
	return g.frames.Flush()
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := g.frames.Write(p)
	if err == nil && g.depth == 0 {
		err = g.frames.Flush()
	}
	return n, err
}
