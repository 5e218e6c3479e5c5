package kafka

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain runs tests beside each other, as they mostly wait.
func TestMain(m *testing.M) { os.Exit(livetest.Main(m, 16)) }

func TestConformance(t *testing.T) {
	t.Parallel()
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		t.Parallel()
		addresses := strings.Split(target.URL, ",")
		admin := newClient(clientOptions{brokers: addresses, timeout: patience})
		t.Cleanup(admin.close)
		brokertest.Run(t, brokertest.Harness{
			Open: func(t testing.TB) brokers.Broker {
				f := &fleet{t: t, options: Options{Brokers: addresses, SessionTimeout: 3 * time.Second, RebalanceTimeout: 15 * time.Second}}
				f.Broker, f.link = f.start()
				return f
			},
			Topic: func(name string) string {
				topic := uniqueName(name)
				if err := admin.create(t.Context(), topic, 2, 1, nil); err != nil {
					t.Errorf("create topic %q: %v", topic, err)
				}
				return topic
			},
			Unit:         time.Second,
			Slack:        6 * time.Second, // a group that changes stops for as long
			Crash:        func(b brokers.Broker, s brokers.Source) { b.(*fleet).crash(s) },
			LoseRequests: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(requests) },
			LoseConfirms: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(confirms) },
		})
	})
}

// fleet is a Broker whose sources have connections of their own, so that one of
// them can die.
type fleet struct {
	*Broker // for what is published
	link    *link
	t       testing.TB
	options Options

	mu     sync.Mutex
	links  map[brokers.Source]*link
	others []*Broker
}

func (f *fleet) start() (*Broker, *link) {
	l := &link{network: newNetwork()}
	o := f.options
	o.Dial = l.dial
	b, err := New(o)
	if err != nil {
		f.t.Fatalf("New: %v", err)
	}
	return b, l
}

func (f *fleet) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	if f.isClosed() {
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

func (f *fleet) isClosed() bool {
	f.Broker.mu.Lock()
	defer f.Broker.mu.Unlock()
	return f.Broker.closed
}

func (f *fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, b := range append(f.others, f.Broker) {
		errs = append(errs, b.Close(ctx))
	}
	return errors.Join(errs...)
}

// crash cuts a source off for good, when what is settled is committed: a crash
// before that repeats it.
func (f *fleet) crash(s brokers.Source) {
	pause(2 * commitPace)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links[s].cut()
}

// lose makes the network lose what producers send, or the answers.
func (f *fleet) lose(what loss) (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	links := []*link{f.link}
	for _, l := range f.links {
		links = append(links, l)
	}
	for _, l := range links {
		l.lose(what)
	}
	return func() {
		for _, l := range links {
			l.lose(nothing)
		}
	}
}

// loss is what a network loses from now on.
type loss int32

const (
	nothing loss = iota
	requests
	confirms
)

// link is a network that can be cut for good, and that can lose what is produced.
type link struct {
	*network
	mu     sync.Mutex
	dead   bool
	losing loss
	lossy  []net.Conn
}

// lose ends the connections that have lost something before.
func (l *link) lose(what loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losing = what
	for _, c := range l.lossy {
		c.Close()
	}
	l.lossy = nil
}

var errCut = errors.New("the link is cut")

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	dead := l.dead
	l.mu.Unlock()
	if dead {
		return nil, errCut
	}
	conn, err := l.network.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &line{Conn: conn, link: l}, nil
}

func (l *link) cut() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	for c := range l.network.conns {
		c.Conn.Close()
	}
}

// line is a connection of a link. It is lossy once it was asked to produce while
// the link was.
type line struct {
	net.Conn
	link  *link
	loses atomic.Int32
}

func (c *line) Write(b []byte) (int, error) {
	const produce = "\x00\x00" // behind the length
	if len(b) > 6 && string(b[4:6]) == produce {
		c.link.mu.Lock()
		if c.link.losing != nothing {
			c.loses.Store(int32(c.link.losing))
			c.link.lossy = append(c.link.lossy, c)
		}
		c.link.mu.Unlock()
	}
	if loss(c.loses.Load()) == requests {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *line) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || loss(c.loses.Load()) != confirms {
			return n, err
		}
	}
}
