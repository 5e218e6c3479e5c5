package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// metadataTTL bounds how long a call may go by an old layout of the cluster
	// that nothing contradicts. What contradicts it renews the pool at once.
	metadataTTL = time.Minute

	// A pool that is younger than this is not renewed again: for a lost
	// connection, and for a layout that turned out to be old.
	freshConnections = 100 * time.Millisecond
	freshLayout      = 250 * time.Millisecond
)

// client is a Client by kafka-go. It is a kafka.RoundTripper on pools of
// connections of which it renews the current one when an answer shows that its
// connections or its layout of the cluster are out of date: kafka.Transport
// alone would go on with a layout for seconds, and with dead connections one by
// one.
type client struct {
	options Options
	addr    net.Addr
	writer  *kafka.Writer

	ctx context.Context // of the connections, ends with Cut
	cut context.CancelFunc

	mu   sync.Mutex
	pool *pool
}

// pool is a transport and how many calls use it: closing it while one of them
// is about to begin would open it again for good.
type pool struct {
	transport *kafka.Transport
	made      time.Time
	users     int
	retired   bool
}

// New returns a client that connects when it is first used.
func New(o Options) Client {
	c := &client{options: o, addr: kafka.TCP(o.Brokers...)}
	c.ctx, c.cut = context.WithCancel(context.Background())
	c.writer = &kafka.Writer{
		Addr:            c.addr,
		Transport:       c,
		Balancer:        kafka.BalancerFunc(o.Balance),
		RequiredAcks:    kafka.RequireAll,
		MaxAttempts:     3,
		WriteBackoffMin: 50 * time.Millisecond,
		WriteBackoffMax: 250 * time.Millisecond,
		BatchSize:       o.BatchMessages,
		BatchBytes:      o.BatchBytes,
		BatchTimeout:    5 * time.Millisecond,
		ReadTimeout:     o.Timeout,
		WriteTimeout:    o.Timeout,
	}
	c.pool = c.newPool()
	return c
}

func (c *client) newPool() *pool {
	return &pool{made: time.Now(), transport: &kafka.Transport{
		Dial:        c.dial,
		DialTimeout: c.options.Timeout,
		ClientID:    c.options.ClientID,
		TLS:         c.options.TLS,
		SASL:        c.options.SASL,
		MetadataTTL: metadataTTL,
	}}
}

// Close implements Client.
func (c *client) Close() {
	c.writer.Close()
	c.Cut()
}

// Cut implements Client.
func (c *client) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut()
	c.retire()
}

// dial makes a connection that ends with Cut.
func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.options.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &connection{conn, context.AfterFunc(c.ctx, func() { conn.Close() })}, nil
}

type connection struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.forget()
	return c.Conn.Close()
}

// Ask implements Client.
func (c *client) Ask(ctx context.Context, node int32, req kmsg.Request, buffer *bytes.Buffer) (kmsg.Response, error) {
	res, err := c.RoundTrip(ctx, c.addr, &call{Request: req, node: node, clientID: c.options.ClientID, buffer: buffer})
	if err != nil {
		return nil, plainly(err)
	}
	return res.(answer).Response, nil
}

// Leaders implements Client.
func (c *client) Leaders(ctx context.Context, topic string) (map[int32]int32, error) {
	res, err := c.RoundTrip(ctx, c.addr, &metadata.Request{TopicNames: []string{topic}})
	if err != nil {
		return nil, plainly(err)
	}
	leaders := make(map[int32]int32)
	for _, topic := range res.(*metadata.Response).Topics {
		for _, p := range topic.Partitions {
			leaders[p.PartitionIndex] = p.LeaderID
		}
	}
	return leaders, nil
}

// Write implements Client.
func (c *client) Write(ctx context.Context, messages []kafka.Message) ([]error, error) {
	err := c.writer.WriteMessages(ctx, messages...)
	each, isEach := errors.AsType[kafka.WriteErrors](err)
	if !isEach {
		each = make([]error, len(messages))
		if err != nil && !IsEnded(err) {
			return nil, plainly(err)
		}
	}
	for i := range each {
		if !isEach {
			each[i] = err
		}
		each[i] = plainly(each[i])
	}
	return each, nil
}

// Reread implements Client.
func (c *client) Reread(ctx context.Context, topic string, err error) error {
	switch {
	case IsUnknownTopic(err) && c.isGone(ctx, topic):
		return ErrGone // a new pool would not help, and cost all others their connections
	case IsLayoutOld(err):
		c.mu.Lock()
		p := c.pool
		c.mu.Unlock()
		c.renew(p, freshLayout)
	}
	return err
}

// About asks about topics.
func About(topics ...string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range topics {
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		req.Topics = append(req.Topics, asked)
	}
	return req
}

// isGone reports whether the cluster says that it has no such topic.
func (c *client) isGone(ctx context.Context, topic string) bool {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	res, err := c.Ask(ctx, AnyNode, About(topic), nil)
	if err != nil {
		return false
	}
	topics := res.(*kmsg.MetadataResponse).Topics
	return len(topics) == 1 && kafka.Error(topics[0].ErrorCode) == kafka.UnknownTopicOrPartition
}

// RoundTrip implements kafka.RoundTripper. The writer hides what it is told of the
// layout of the cluster, so that is looked at here.
func (c *client) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	p, err := c.acquire()
	if err != nil {
		return nil, err
	}
	defer c.release(p)
	res, err := p.transport.RoundTrip(ctx, addr, req)
	if IsUnknownTopic(plainly(err)) || errors.Is(err, kafka.BrokerNotAvailable) {
		// Without any layout every topic and broker is unknown to the library. This
		// is answered from memory, with why there is none.
		if _, why := p.transport.RoundTrip(ctx, addr, &metadata.Request{TopicNames: []string{}}); why != nil {
			err = why
		}
	}
	if topic, code := written(req, res); topic != "" {
		if stale := plainly(cmp.Or(err, code)); errors.Is(c.Reread(ctx, topic, stale), ErrGone) {
			return nil, ErrGone
		}
	}
	if IsConnectionLost(err) {
		c.renew(p, freshConnections)
	} else if IsLayoutOld(plainly(err)) {
		c.renew(p, freshLayout)
	}
	return res, err
}

// written returns the topic that a request of the writer is about, and what its
// answer says of it.
func written(req kafka.Request, res kafka.Response) (topic string, code error) {
	switch req := req.(type) {
	case *produce.Request:
		topic = req.Topics[0].Topic
		if res, ok := res.(*produce.Response); ok {
			code = CodeError(res.Topics[0].Partitions[0].ErrorCode)
		}
	case *metadata.Request:
		if len(req.TopicNames) == 0 {
			return "", nil
		}
		topic = req.TopicNames[0]
		if res, ok := res.(*metadata.Response); ok && len(res.Topics) > 0 {
			code = CodeError(res.Topics[0].ErrorCode)
		}
	}
	return topic, code
}

func (c *client) acquire() (*pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
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
	if c.ctx.Err() != nil || p != c.pool || time.Since(p.made) < age {
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
