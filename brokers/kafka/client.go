package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/redrive-go/redrive/brokers"
)

const (
	defaultTimeout = 10 * time.Second

	// metadataTTL bounds how long a call may go by an old layout of the cluster
	// that nothing contradicts. What contradicts it renews the pool at once.
	metadataTTL = time.Minute

	// A pool that is younger than this is not renewed again: for a lost
	// connection, and for a layout that turned out to be old.
	freshConnections = 100 * time.Millisecond
	freshLayout      = 250 * time.Millisecond
)

// clientOptions say how to reach the brokers. Only the addresses are needed.
type clientOptions struct {
	brokers  []string
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	tls      *tls.Config
	sasl     sasl.Mechanism // Start is called for every connection, so credentials may rotate
	clientID string
	rack     string        // of this process: a leader may name a replica near to it
	timeout  time.Duration // of one call; 10 s unless set
}

// client makes single calls. It is a kafka.RoundTripper on pools of
// connections of which it renews the current one when an answer shows that its
// connections or its layout of the cluster are out of date: kafka.Transport
// alone would go on with a layout for seconds, and with dead connections one by
// one.
type client struct {
	options clientOptions
	addr    net.Addr
	calls   *kafka.Client
	conns   connections

	decompressor decompressor

	mu     sync.Mutex
	pool   *pool
	closed bool
}

// pool is a transport and how many calls use it: closing it while one of them
// is about to begin would open it again for good.
type pool struct {
	transport *kafka.Transport
	made      time.Time
	users     int
	retired   bool
}

func newClient(o clientOptions) *client {
	o.timeout = cmp.Or(o.timeout, defaultTimeout)
	c := &client{options: o, addr: kafka.TCP(o.brokers...)}
	c.conns.dial = o.dial
	if c.conns.dial == nil {
		c.conns.dial = (&net.Dialer{Timeout: 3 * time.Second}).DialContext
	}
	c.calls = &kafka.Client{Addr: c.addr, Timeout: o.timeout, Transport: c}
	c.pool = c.newPool()
	return c
}

func (c *client) newPool() *pool {
	return &pool{transport: c.transport(), made: time.Now()}
}

// transport makes one that knows topics, or all of them if there are none.
func (c *client) transport(topics ...string) *kafka.Transport {
	return &kafka.Transport{
		Dial:           c.conns.open,
		DialTimeout:    c.options.timeout,
		ClientID:       c.options.clientID,
		TLS:            c.options.tls,
		SASL:           c.options.sasl,
		MetadataTTL:    metadataTTL,
		MetadataTopics: topics,
	}
}

// close ends all connections, also those with a call on its way, which then
// fails. It may be called again.
func (c *client) close() {
	c.mu.Lock()
	c.closed = true
	c.retire()
	c.mu.Unlock()
	c.conns.close()
}

// RoundTrip implements kafka.RoundTripper.
func (c *client) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	p, err := c.acquire()
	if err != nil {
		return nil, err
	}
	defer c.release(p)
	res, err := p.transport.RoundTrip(ctx, addr, req)
	if isUnknownTopic(err) || errors.Is(err, kafka.BrokerNotAvailable) {
		// Without any layout every topic and broker is unknown to the library. This
		// is answered from memory, with why there is none.
		if _, why := p.transport.RoundTrip(ctx, addr, &metadata.Request{TopicNames: []string{}}); why != nil {
			err = why
		}
	}
	switch stale := cmp.Or(err, routing(res)); {
	case isConnectionLost(stale):
		c.renew(p, freshConnections)
	case isUnknownTopic(stale) && isForMany(req): // who asks finds out which are gone
	case isUnknownTopic(stale) && c.isGone(ctx, topicOf(req)):
		return nil, errGone // a new pool would not help, and cost all others their connections
	case isLayoutOld(stale):
		c.renew(p, freshLayout)
	}
	return res, err
}

// outdated renews the pool, whose layout turned out to be old.
func (c *client) outdated() {
	c.mu.Lock()
	p := c.pool
	c.mu.Unlock()
	c.renew(p, freshLayout)
}

// isGone reports whether the cluster says that it has no such topic.
func (c *client) isGone(ctx context.Context, topic string) bool {
	if topic == "" {
		return false
	}
	states, err := c.topicsOnce(ctx, []string{topic})
	return err == nil && states[topic].missing
}

func (c *client) acquire() (*pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, brokers.ErrClosed
	}
	c.pool.users++
	return c.pool, nil
}

func (c *client) release(p *pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
	if p.retired && p.users == 0 {
		p.transport.CloseIdleConnections()
	}
}

// renew replaces p, if it is still the current pool and at least as old as age.
func (c *client) renew(p *pool, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || p != c.pool || time.Since(p.made) < age {
		return
	}
	c.retire()
	c.pool = c.newPool()
}

// retire lets the current pool go, now or with the last call on it.
func (c *client) retire() {
	c.pool.retired = true
	if c.pool.users == 0 {
		c.pool.transport.CloseIdleConnections()
	}
}

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

func (s *connections) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.opened)
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
