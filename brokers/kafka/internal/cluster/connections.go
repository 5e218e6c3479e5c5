package cluster

import (
	"context"
	"net"
	"sync"

	"github.com/redrive-go/redrive/brokers"
)

// connections are all that were dialed and are still open.
type connections struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	opened map[*connection]struct{}
	closed bool
}

func (s *connections) open(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, brokers.ErrClosed
	}
	conn, err := s.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return nil, brokers.ErrClosed
	}
	tracked := &connection{Conn: conn, set: s}
	if s.opened == nil {
		s.opened = make(map[*connection]struct{})
	}
	s.opened[tracked] = struct{}{}
	return tracked, nil
}

// close closes them, and lets nobody open another one.
func (s *connections) close() {
	s.mu.Lock()
	opened := s.opened
	s.opened, s.closed = nil, true
	s.mu.Unlock()
	for conn := range opened {
		conn.Conn.Close()
	}
}

type connection struct {
	net.Conn
	set *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.set.mu.Lock()
	delete(c.set.opened, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
