package kafka

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
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
			Unit:  time.Second,
			Slack: 6 * time.Second, // a group that changes stops for as long
			Crash: func(b brokers.Broker, s brokers.Source) { b.(*fleet).crash(s) },
			Fail:  func(b brokers.Broker) (heal func()) { return b.(*fleet).fail() },
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
	l.storing = l.dial
	b.producer.client.conns.dial = l.dialToStore
	return b, l
}

func (f *fleet) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	if f.Broker.sources.Closed() {
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

// fail keeps the answers to what is stored.
func (f *fleet) fail() (heal func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	frozen := newNetwork()
	frozen.freeze()
	links := []*link{f.link}
	for _, l := range f.links {
		links = append(links, l)
	}
	for i, b := range append([]*Broker{f.Broker}, f.others...) {
		if i < len(links) {
			links[i].store(frozen.dial)
		}
		c := b.producer.client
		c.mu.Lock()
		pool := c.pool
		c.mu.Unlock()
		c.renew(pool, 0)
	}
	return func() {
		for _, l := range links {
			l.store(l.dial)
		}
		frozen.thaw()
		frozen.sever()
	}
}

// link is a network that can be cut for good.
type link struct {
	*network
	mu      sync.Mutex
	dead    bool
	storing func(ctx context.Context, network, address string) (net.Conn, error)
}

func (l *link) store(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.storing = dial
}

// dialToStore is for the connections of the producer.
func (l *link) dialToStore(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	dial := l.storing
	l.mu.Unlock()
	return dial(ctx, network, address)
}

var errCut = errors.New("the link is cut")

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	dead := l.dead
	l.mu.Unlock()
	if dead {
		return nil, errCut
	}
	return l.network.dial(ctx, network, address)
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
