package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
)

// static is a worker with an InstanceID.
func (w *world) static(id string, change ...func(*kafka.Options)) (stop func() error, ended <-chan struct{}) {
	b := w.broker(append(change, func(o *kafka.Options) { o.InstanceID, o.SessionTimeout = id, 20*time.Second })...)
	end, ended := w.run(b, "orders")
	return func() error {
		err := end()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return errors.Join(err, b.Close(ctx))
	}, ended
}

// joins counts the requests to join or to leave the group from now on.
func (w *world) joins() *kfake.FaultHandle {
	return w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup, kmsg.LeaveGroup}, Group: group, Observe: true, TopLevel: true, Count: -1})
}

// goByProtocol has the fake take a static member back as Kafka does: by the names of
// its protocols, whatever it says of itself in them.
func (w *world) goByProtocol() {
	said := make(map[string][]kmsg.JoinGroupRequestProtocol) // by InstanceID
	w.cluster.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		join := req.(*kmsg.JoinGroupRequest)
		if join.InstanceID == nil {
			return nil, nil, false
		}
		if before := said[*join.InstanceID]; join.MemberID == "" && before != nil {
			join.Protocols = before
		}
		said[*join.InstanceID] = join.Protocols
		return nil, nil, false
	})
}

// Ten workers with InstanceIDs are stopped and started again, one after the other: the
// group forms no new generation.
func TestRolloutOfStaticWorkersMovesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.goByProtocol()
	must(t, w.cluster.CreateTopic("orders", 20, nil))
	from := w.broker()
	const workers = 10
	var stops [workers]func() error
	for i := range workers {
		stops[i], _ = w.static(fmt.Sprint("worker-", i))
	}
	w.until("the group", func() bool {
		g := w.cluster.GroupInfo(group)
		return g != nil && len(g.Members) == workers && g.State == "Stable"
	})
	w.served(from, "before")
	before, seen := w.cluster.GroupInfo(group), w.joins()
	for i := range workers {
		if err := stops[i](); err != nil {
			t.Errorf("stop: %v", err)
		}
		joined := seen.Hits()
		stops[i], _ = w.static(fmt.Sprint("worker-", i))
		w.until("its return", func() bool { return seen.Hits() > joined })
		w.served(from, fmt.Sprint("round ", i))
	}
	if after := w.cluster.GroupInfo(group); after.Epoch != before.Epoch || seen.Hits() != workers {
		t.Errorf("the generation was %d and is %d, after %d joins, want the same and %d", before.Epoch, after.Epoch, seen.Hits(), workers)
	}
}

// Of two workers with one InstanceID the one that came last goes on. The other ends
// with an error that names the ID.
func TestTwoWorkersWithOneInstanceID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("orders")
	from := w.broker()
	b := w.broker(func(o *kafka.Options) { o.InstanceID, o.SessionTimeout = "worker-1", 5*time.Second })
	c, err := consumer.New(b, consumer.Config{DeadLetter: "*-dead", Logger: slog.New(slog.NewTextHandler(w, nil))})
	must(t, err)
	c.Handle("orders", w.handle)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	w.served(from, "before")
	w.static("worker-1")
	select {
	case err := <-ended:
		if !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), `InstanceID "worker-1"`) {
			t.Errorf("the first ended with %v", err)
		}
	case <-time.After(limit):
		t.Fatalf("the first goes on:\n%s", w.log())
	}
	w.served(from, "after")
}

// With LeaveGroup a static worker leaves its partitions to others when it stops.
func TestStaticWorkerThatLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("orders")
	from := w.broker()
	stop, _ := w.static("worker-1", func(o *kafka.Options) { o.LeaveGroup = true })
	w.static("worker-2")
	w.until("the group", func() bool {
		g := w.cluster.GroupInfo(group)
		return g != nil && len(g.Members) == 2 && g.State == "Stable"
	})
	w.served(from, "before")
	if err := stop(); err != nil {
		t.Error(err)
	}
	w.served(from, "after") // long before the session of the first would end
}

// mortal is the network of a worker, which can be killed.
type mortal struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (m *mortal) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		conn.Close()
		return nil, net.ErrClosed
	}
	m.conns = append(m.conns, conn)
	return conn, nil
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, conn := range m.conns {
		conn.Close()
	}
}

// A static worker that is killed and comes back has lost what it held, though its group
// has not missed it. One that stops and comes back has not.
func TestEndOfAStaticWorkerCounts(t *testing.T) {
	for name, killed := range map[string]bool{"killed": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.goByProtocol()
			w.create("orders")
			w.publish(w.broker(), "orders", "a")
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			generation, abandoned := int32(0), 0
			for life := range 3 { // the second one marks what it hands out before
				line := new(mortal)
				b := w.broker(func(o *kafka.Options) {
					o.InstanceID, o.SessionTimeout, o.Dial = "worker-1", 5*time.Minute, line.dial
				})
				src, err := b.Open(ctx, brokers.Subscription{Topics: []string{"orders"}, Group: group, MaxDelay: time.Minute})
				must(t, err)
				ds, err := src.Receive(ctx, 1)
				if err != nil || len(ds) != 1 {
					t.Fatalf("life %d: received %d, %v", life, len(ds), err)
				}
				abandoned = ds[0].Abandoned
				if epoch := w.cluster.GroupInfo(group).Epoch; life > 0 && epoch != generation {
					t.Errorf("life %d: the group has formed again", life)
				} else {
					generation = epoch
				}
				if killed {
					line.kill()
				} else if err := src.Close(ctx); err != nil {
					t.Error(err)
				}
			}
			if killed != (abandoned > 0) {
				t.Errorf("the message was lost %d times", abandoned)
			}
		})
	}
}

// Two sources cannot have one InstanceID in a group.
func TestInstanceIDOfTwoSources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("orders")
	b := w.broker(func(o *kafka.Options) { o.InstanceID = "worker-1" })
	sub := brokers.Subscription{Topics: []string{"orders"}, Group: group, MaxDelay: time.Minute}
	s, err := b.Open(t.Context(), sub)
	must(t, err)
	if _, err := b.Open(t.Context(), sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), `"worker-1"`) {
		t.Errorf("the second source opens with %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err = b.Open(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	s.Close(t.Context())
}
