package kafka_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

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
				topic := kafka.UniqueName(name)
				if err := createTopic(t.Context(), addresses, topic, 2, nil); err != nil {
					t.Errorf("create topic %q: %v", topic, err)
				}
				return topic
			},
			Unit:  time.Second,
			Slack: 6 * time.Second, // a group that changes stops for as long

			Groups:  true,
			Refused: func() brokers.Message { return brokers.Message{Body: kafka.Noise(4 << 20)} }, // more than a delay topic takes
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
	o.ClientID = kafka.UniqueName("worker")
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

// The clauses about crashes rely on this: crash waits for the commit, even if the
// commit is late.
func TestCrashWaitsForTheCommit(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		f := &fleet{t: s.T, options: s.options}
		f.Broker, _ = f.start()
		s.Cleanup(func() { f.Close(context.Background()) })
		src, err := f.Open(kafka.WithinTime(s.T), s.subscription())
		if err != nil {
			s.Fatal(err)
		}
		s.writeNumbers(2)
		w := &worker{Source: src, link: f.links[src], t: s.T}
		ds, _ := w.receive(2)
		s.waitFor("the marks of both", func() bool {
			at := s.stored(s.topic, 0)
			committed, _ := kafka.ReadCommitted(at.offset, at.metadata)
			return committed.Abandoned(1) == 1
		})
		w.link.freeze()
		w.ack(ds[0])
		time.AfterFunc(5*kafka.CommitPace, w.link.thaw)
		f.crash(src)
		next := s.open()
		got, _ := next.receive(1)
		if string(got[0].Message.Body) != "1" || got[0].Abandoned != 1 {
			s.Errorf("after the crash %q came first, and was abandoned %d times, want \"1\", once", got[0].Message.Body, got[0].Abandoned)
		}
		next.ack(got...)
	})
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

// link is the way from a client to its brokers, which a test can freeze or cut.
type link struct {
	brokers  []string
	clientID string

	mu     sync.Mutex
	conns  map[*cable]bool
	frozen chan struct{} // closed while nothing is frozen
	dead   bool
	losing loss

	requests func(frame []byte) // is called with all that is written, if it is set
}

type cable struct {
	net.Conn
	link   *link
	once   sync.Once
	closed chan struct{}
	loses  atomic.Int32 // a loss, from the first record that was to be stored then
}

func newLink() *link {
	l := &link{conns: make(map[*cable]bool), frozen: make(chan struct{})}
	close(l.frozen)
	return l
}

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
	c := &cable{Conn: conn, link: l, closed: make(chan struct{})}
	l.conns[c] = true
	return c, nil
}

// freeze lets no bytes through until thaw is called.
func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = make(chan struct{})
}

func (l *link) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.frozen)
}

// drop ends all connections; new ones can be made.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Conn.Close()
	}
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

// fetches counts the requests for records of a topic from now on.
func (l *link) fetches(topic string) func() int {
	var count atomic.Int64
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = func(frame []byte) {
		const key, version, client = 4, 6, 12
		if len(frame) < client+2 || binary.BigEndian.Uint16(frame[key:]) != uint16(kmsg.Fetch) {
			return
		}
		req := kmsg.FetchRequest{Version: int16(binary.BigEndian.Uint16(frame[version:]))}
		named := func(asked kmsg.FetchRequestTopic) bool { return asked.Topic == topic } // and not only forgotten by its session
		if body := client + 2 + int(binary.BigEndian.Uint16(frame[client:])); req.ReadFrom(frame[body:]) != nil || slices.ContainsFunc(req.Topics, named) {
			count.Add(1)
		}
	}
	return func() int { return int(count.Load()) }
}

func (c *cable) pass() error {
	c.link.mu.Lock()
	frozen := c.link.frozen
	c.link.mu.Unlock()
	select {
	case <-frozen:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *cable) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if blocked := c.pass(); blocked != nil {
			return 0, blocked
		}
		if err != nil || loss(c.loses.Load()) != confirms {
			return n, err
		}
	}
}

func (c *cable) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	c.link.mu.Lock()
	look, losing := c.link.requests, c.link.losing
	c.link.mu.Unlock()
	if look != nil {
		look(b)
	}
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
	c.once.Do(func() { close(c.closed) })
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
