package rabbitmq

import (
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
	frames []byte
}

// gathered is how many bytes are kept before they are sent anyway.
const gathered = 64 << 10

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
	return g.send()
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.depth == 0 {
		return g.Conn.Write(p)
	}
	g.frames = append(g.frames, p...)
	if len(g.frames) < gathered {
		return len(p), nil
	}
	return len(p), g.send()
}

// send writes what is kept; the caller holds the lock.
func (g *gatherer) send() error {
	if len(g.frames) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.frames)
	g.frames = g.frames[:0]
	return err
}
