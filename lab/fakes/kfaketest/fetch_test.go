package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka"
)

// counted is a dialer that counts what is open, and what ever was.
type counted struct{ open, ever atomic.Int64 }

func (c *counted) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	c.ever.Add(1)
	return &countedConn{Conn: conn, of: c}, nil
}

type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// A thousand partitions on three brokers cost what brokers cost: two fetches a
// second of each, which name no partition, and few connections.
func TestIdlePartitionsCostNothing(t *testing.T) {
	w := newWorld(t)
	must(t, w.cluster.CreateTopic("orders", 1000, nil))
	var conns counted
	w.run(w.broker(func(o *kafka.Options) { o.Dial = conns.dial }), "orders")
	first := w.broker()
	w.publish(first, "orders", "first")
	w.until("the first message", func() bool { return w.succeeded("first") })
	time.Sleep(2 * time.Second) // what was begun before

	var named atomic.Int64
	fetches := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Observe: true, TopLevel: true, Count: -1, When: func(r kmsg.Request) bool {
		named.Add(int64(len(r.(*kmsg.FetchRequest).Topics)))
		return true
	}})
	time.Sleep(6 * time.Second) // for which fetches are counted
	n := fetches.Hits()
	if n < 3 || n > 40 || named.Load() > 0 {
		t.Errorf("%d fetches in 6 s that name topics %d times, want at most 40 that name none", n, named.Load())
	}
	// Those that a slow start needed besides end when they were idle for half a minute.
	w.until("10 connections or fewer", func() bool { return conns.open.Load() <= 10 })
	w.served(first, "later") // all partitions are still heard
}

// A worker that begins with a thousand partitions, each of which has records that
// another worker has handled, asks three brokers, not a thousand partitions.
func TestStartWithManyPartitions(t *testing.T) {
	w := newWorld(t)
	must(t, w.cluster.CreateTopic("orders", 1000, nil))
	stop, _ := w.run(w.broker(), "orders")
	var bodies []string
	for i := range 3000 {
		bodies = append(bodies, fmt.Sprint("before ", i))
	}
	from := w.broker()
	w.publish(from, "orders", bodies...)
	w.until("what came before", w.all(bodies))
	must(t, stop())
	offsets := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Observe: true, TopLevel: true, Count: -1})
	var versions, logs atomic.Int64
	for _, key := range []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata, kmsg.OffsetForLeaderEpoch} {
		w.cluster.ControlKey(int16(key), func(r kmsg.Request) (kmsg.Response, error, bool) {
			w.cluster.KeepControl()
			switch {
			case key == kmsg.ApiVersions:
				versions.Add(1)
			case key != kmsg.Metadata || r.GetVersion() >= 10: // the library asks for the layout in others
				logs.Add(1)
			}
			return nil, nil, false
		})
	}
	var conns counted
	w.run(w.broker(func(o *kafka.Options) { o.Dial = conns.dial }), "orders")
	w.served(from, "after")
	if n := logs.Load(); n == 0 || n > 200 {
		t.Errorf("%d questions whether the logs are the same, want those of each broker together: a tenth of 2 for each partition at most", n)
	}
	if n := versions.Load() - conns.ever.Load(); n > 3 {
		t.Errorf("versions were asked for %d times besides those of each connection, want one for each broker", n)
	}
	if n := offsets.Hits(); n > 2*3 {
		t.Errorf("offsets were asked for %d times, want the first and the last of each broker", n)
	}
	if n := conns.ever.Load(); n > 25 {
		t.Errorf("%d connections were opened, want at most 25", n)
	}
}

// A new leader has what was read, unless it was elected uncleanly. Then what it has
// instead is read, and the loss reported.
func TestNewLeaders(t *testing.T) {
	w := newWorld(t)
	w.create("orders")
	stop, _ := w.run(w.broker(), "orders")
	from := w.broker()
	for round := range 3 {
		w.served(from, fmt.Sprint("round ", round))
		w.cluster.ShufflePartitionLeaders()
	}
	w.served(from, "after")
	must(t, stop())
	stop, _ = w.run(w.broker(), "orders")
	w.served(from, "later")
	must(t, stop())
	if log := w.log(); strings.Contains(log, "has been cut") {
		t.Errorf("no log was cut, and it is reported:\n%s", log)
	}
	w.cluster.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		res := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, topic := range r.(*kmsg.OffsetForLeaderEpochRequest).Topics {
			out := kmsg.OffsetForLeaderEpochResponseTopic{Topic: topic.Topic}
			for _, p := range topic.Partitions {
				one := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				one.Partition, one.LeaderEpoch, one.EndOffset = p.Partition, p.LeaderEpoch, 0
				out.Partitions = append(out.Partitions, one)
			}
			res.Topics = append(res.Topics, out)
		}
		return res, nil, true
	})
	w.run(w.broker(), "orders")
	w.until("the first message, again", func() bool { return w.ran("round 0 0") == 2 })
	w.until("a report", func() bool { return strings.Contains(w.log(), "has been cut at offset 0") })
}

// A session that the broker has forgotten, or counts otherwise, is begun anew.
func TestLostFetchSessions(t *testing.T) {
	for _, lost := range []*kerr.Error{kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch, kerr.FetchSessionTopicIDError} {
		t.Run(lost.Message, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create("orders")
			w.run(w.broker(), "orders")
			from := w.broker()
			for round := range 3 {
				fault := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, TopLevel: true, Err: lost, Count: 3})
				w.served(from, fmt.Sprint("round ", round))
				w.until("the faults", func() bool { return fault.Hits() >= 3 })
				fault.Remove()
			}
		})
	}
}

// One broker of three takes fetches and never answers. Partitions of the others go
// on, and its own when it answers again.
func TestHungBrokerDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.cluster.CreateTopic("orders", 30, nil))
	w.run(w.broker(), "orders")
	from := w.broker()
	w.publish(from, "orders", "first")
	w.until("the first message", func() bool { return w.succeeded("first") })

	hung, hangs := w.cluster.LeaderFor("orders", 0), make(chan struct{})
	w.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		if w.cluster.CurrentNode() == hung {
			select {
			case <-hangs:
			default:
				w.cluster.SleepControl(func() { <-hangs })
			}
		}
		return nil, nil, false
	})
	time.Sleep(time.Second) // for the fetch that was on its way
	var there, elsewhere []string
	for i := range 200 {
		body := fmt.Sprint("message ", i)
		before := w.cluster.PartitionInfos("orders")
		w.publish(from, "orders", body)
		for n, p := range w.cluster.PartitionInfos("orders") {
			if p.HighWatermark > before[n].HighWatermark {
				if w.cluster.LeaderFor("orders", int32(n)) == hung {
					there = append(there, body)
				} else {
					elsewhere = append(elsewhere, body)
				}
			}
		}
	}
	w.until("those of other brokers", w.all(elsewhere))
	if len(there) < 20 || w.all(there)() {
		t.Errorf("%d messages are on the broker that hangs; it does not hang", len(there))
	}
	close(hangs)
	w.until("those of the broker that hung", w.all(there))
}

// A partition whose answers are errors delays no other of its leader.
func TestFailingPartitionDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kfake.NumBrokers(1))
	must(t, w.cluster.CreateTopic("orders", 10, nil))
	w.run(w.broker(), "orders")
	from := w.broker()
	w.publish(from, "orders", "first")
	w.until("the first message", func() bool { return w.succeeded("first") })
	fault := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Partitions: []int32{3}, Err: kerr.KafkaStorageError, Count: -1})
	done := 0
	var bodies []string
	for i := range 100 {
		body := fmt.Sprint("message ", i)
		bodies = append(bodies, body)
		before := w.cluster.PartitionInfos("orders")[3].HighWatermark
		w.publish(from, "orders", body)
		if w.cluster.PartitionInfos("orders")[3].HighWatermark == before {
			w.until(body, func() bool { return w.succeeded(body) })
			done++
		}
	}
	if done < 50 {
		t.Errorf("%d of 100 messages are of other partitions", done)
	}
	fault.Remove()
	w.until("those of the partition", w.all(bodies))
}
