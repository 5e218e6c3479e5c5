package kafka_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain runs tests beside each other, as they mostly wait.
func TestMain(m *testing.M) {
	compress.Codecs[compress.Zstd] = freshZstd{compress.Codecs[compress.Zstd]}
	os.Exit(livetest.Main(m, 16))
}

// freshZstd makes what the library would keep for others, although it cannot
// leave the bubble of a test.
type freshZstd struct{ compress.Codec }

func (freshZstd) NewReader(r io.Reader) io.ReadCloser {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return d.IOReadCloser()
}

func (freshZstd) NewWriter(w io.Writer) io.WriteCloser {
	e, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	t.Parallel()
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		addresses := strings.Split(target.URL, ",")
		brokertest.Run(t, brokertest.Harness{
			Open: func(t testing.TB) brokers.Broker {
				f := &fleet{t: t, options: kafka.Options{Brokers: addresses, SessionTimeout: kafka.Patience, RebalanceTimeout: 15 * time.Second}}
				f.Broker, _ = f.start()
				return f
			},
			Topic: func(name string) string {
				topic := uniqueName(name)
				if err := createTopic(t.Context(), addresses, topic, 2, nil); err != nil {
					t.Errorf("create topic %q: %v", topic, err)
				}
				return topic
			},
			Unit:  time.Second,
			Slack: 6 * time.Second, // a group that changes stops for as long

			Groups:  true,
			Refused: func() brokers.Message { return brokers.Message{Body: noise(4 << 20)} }, // more than a delay topic takes
			PublishUnreadable: func(ctx context.Context, _ brokers.Broker, topic string) error {
				_, err := storeBatch(ctx, addresses, partition{topic, 0}, kafkago.Zstd, record{value: make([]byte, 20<<20)})
				return err
			},
			Rejected: func(string, string) string { return "" },
			Crash:    func(b brokers.Broker, s brokers.Source) { b.(*fleet).crash(s) },
			Delete: func(_ brokers.Broker, topic string) (restore func()) {
				if err := deleteTopic(t.Context(), addresses, topic); err != nil {
					t.Errorf("delete topic %q: %v", topic, err)
				}
				return func() {
					if err := createTopic(t.Context(), addresses, topic, 2, nil); err != nil {
						t.Errorf("create topic %q: %v", topic, err)
					}
				}
			},
			LoseRequests: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(requests) },
			LoseConfirms: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(confirms) },
		})
	})
}

// fleet is a Broker whose sources have connections of their own, so that one of
// them can die.
type fleet struct {
	*kafka.Broker // for what is published
	t             testing.TB
	options       kafka.Options

	mu     sync.Mutex
	links  map[brokers.Source]*link
	stores []*link // of the producers
	others []*kafka.Broker
	closed bool
}

// start makes a Broker, and returns what all but its producer goes over.
func (f *fleet) start() (*kafka.Broker, *link) {
	f.t.Helper()
	o := f.options
	o.ClientID = uniqueName("worker")
	l, store := newLink(), newLink()
	l.brokers, l.clientID = o.Brokers, o.ClientID
	o.Dial = l.dial
	b, err := kafka.NewOn(o, store.dial)
	if err != nil {
		f.t.Fatalf("New: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stores = append(f.stores, store)
	return b, l
}

func (f *fleet) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	if closed {
		return f.Broker.Open(ctx, sub)
	}
	b, l := f.start()
	s, err := b.Open(ctx, sub)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others = append(f.others, b)
	if err != nil {
		return nil, err
	}
	if f.links == nil {
		f.links = make(map[brokers.Source]*link)
	}
	f.links[s] = l
	return s, nil
}

func (f *fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var errs []error
	for _, b := range append(f.others, f.Broker) {
		errs = append(errs, b.Close(ctx))
	}
	return errors.Join(errs...)
}

// crash waits until a source has committed all its progress, and then cuts it off
// for good. Commits are late on a busy machine. After a crash before the commit, a
// settled delivery would count as abandoned, and a held delivery would not.
func (f *fleet) crash(s brokers.Source) {
	f.t.Helper()
	for over := time.Now().Add(kafka.Patience); !kafka.IsCommitted(s); pause(10 * time.Millisecond) {
		if time.Now().After(over) {
			f.t.Fatal("before its crash the source has not committed all its progress")
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	dieOut(f.t, s, f.links[s])
}

// lose makes the network lose what producers send, or the answers.
func (f *fleet) lose(what loss) (heal func()) {
	f.mu.Lock()
	stores := f.stores
	f.mu.Unlock()
	for _, l := range stores {
		l.lose(what)
	}
	return func() {
		for _, l := range stores {
			l.lose(nothing)
		}
	}
}

// loss is what a link loses from now on.
type loss int32

const (
	nothing loss = iota
	requests
	confirms
)

// link is the way from a client to its brokers, which a test can cut.
type link struct {
	brokers  []string
	clientID string

	mu     sync.Mutex
	conns  map[*cable]bool
	dead   bool
	losing loss
}

type cable struct {
	net.Conn
	link  *link
	loses atomic.Int32 // a loss, from the first record that was to be stored then
}

func newLink() *link { return &link{conns: make(map[*cable]bool)} }

var errCut = errors.New("the link is cut")

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		conn.Close()
		return nil, errCut
	}
	c := &cable{Conn: conn, link: l}
	l.conns[c] = true
	return c, nil
}

// cut ends all connections, for good.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for c := range l.conns {
		c.Conn.Close()
	}
}

// lose ends the connections that have lost something before.
func (l *link) lose(what loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losing = what
	for c := range l.conns {
		if loss(c.loses.Load()) != nothing {
			c.Conn.Close()
		}
	}
}

func (c *cable) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || loss(c.loses.Load()) != confirms {
			return n, err
		}
	}
}

func (c *cable) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	losing := c.link.losing
	c.link.mu.Unlock()
	const produce = "\x00\x00" // behind the length
	if losing != nothing && len(b) > 6 && string(b[4:6]) == produce {
		c.loses.Store(int32(losing))
	}
	if loss(c.loses.Load()) == requests {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *cable) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
