package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	redrivekafka "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

var onCluster = flag.Bool("cluster", false, "start clusters of three nodes, and run the tests of clusters on them")

// startCluster starts the nodes of a cluster until the end of the test, and returns
// their addresses, too.
func startCluster(t *testing.T, product harness.Product) (h *harness.Harness, nodes []harness.Broker, urls []string) {
	t.Helper()
	if !*onCluster {
		t.Skip("make cluster runs this test: it starts three more brokers")
	}
	h, nodes = newHarness(t), harness.Cluster(product)
	t.Cleanup(func() {
		if err := h.Down(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if _, err := h.Up(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	for _, b := range nodes {
		urls = append(urls, b.URL())
	}
	return h, nodes, urls
}

// killInTurn kills each node while workers are at work, after what before does, and
// starts it again.
func killInTurn(t *testing.T, h *harness.Harness, p *proof, nodes []harness.Broker, before func(victim harness.Broker)) {
	t.Helper()
	for _, victim := range nodes {
		before(victim)
		p.during("a node killed", func() {
			if err := h.Kill(t.Context(), victim.Name); err != nil {
				t.Fatalf("kill a node: %v", err)
			}
			p.pause(5 * time.Second) // the others elect leaders among them
			if err := h.Start(t.Context(), victim.Name); err != nil {
				t.Fatalf("start the node: %v", err)
			}
		})
	}
}

// Each node of a cluster is killed, while workers are at work on 300 partitions: what
// is acked is on another one. Before each kill all partitions go back to the leaders
// that they had at first.
func TestKafkaCluster(t *testing.T) {
	h, nodes, urls := startCluster(t, harness.Kafka)
	t.Run("racks", func(t *testing.T) { testRacks(t, nodes, urls) })
	p := startProof(t, livetest.Target{Broker: nodes[0]}, strings.Join(urls, ","), "-messages", "6000", "-kills", "3", "-seed", "8", "-partitions", "60")
	killInTurn(t, h, p, nodes, func(harness.Broker) {
		p.pause(10 * time.Second) // replicas come in sync again
		p.during("leaders moved", func() { electLeaders(t, urls) })
	})
	p.finish()
}

// electLeaders moves each partition to its first replica.
func electLeaders(t *testing.T, urls []string) {
	t.Helper()
	c := &kafka.Client{Addr: kafka.TCP(urls...), Timeout: time.Minute}
	all, err := c.Metadata(t.Context(), &kafka.MetadataRequest{})
	must(t, err)
	moved := 0
	for _, topic := range all.Topics {
		req := &kafka.ElectLeadersRequest{Topic: topic.Name, Timeout: 30 * time.Second}
		for _, p := range topic.Partitions {
			if p.Leader.ID != p.Replicas[0].ID {
				req.Partitions = append(req.Partitions, p.ID)
			}
		}
		if len(req.Partitions) == 0 {
			continue
		}
		if _, err := c.ElectLeaders(t.Context(), req); err != nil {
			t.Fatalf("move leaders of %s: %v", topic.Name, err)
		}
		moved += len(req.Partitions)
	}
	t.Logf("%d leaders moved", moved)
}

// testRacks has a worker read from the node in its rack, which leads a third of the
// partitions only.
func testRacks(t *testing.T, nodes []harness.Broker, urls []string) {
	topic := fmt.Sprintf("racks-%08x", rand.Uint32())
	c := &kafka.Client{Addr: kafka.TCP(urls...), Timeout: time.Minute}
	if _, err := c.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 6, ReplicationFactor: 3}}}); err != nil {
		t.Fatal(err)
	}
	near := nodes[1]
	var read sync.Map // bytes by address
	var dialer net.Dialer
	b, err := redrivekafka.New(redrivekafka.Options{Brokers: urls, Group: topic, Prefix: topic, Rack: near.Name, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		n, _ := read.LoadOrStore(address, new(atomic.Int64))
		return counted{conn, n.(*atomic.Int64)}, err
	}})
	must(t, err)
	defer b.Close(context.WithoutCancel(t.Context()))
	found, err := b.Inspect(t.Context(), brokers.Subscription{Topics: []string{topic}})
	must(t, err)
	for _, f := range found {
		if strings.Contains(f.Setting, "rack") || strings.Contains(f.Setting, "replica.selector") {
			t.Errorf("doctor would say: %v", f)
		}
	}
	source, err := b.Open(t.Context(), brokers.Subscription{Topics: []string{topic}, MaxDelay: time.Minute})
	must(t, err)
	const messages, size = 300, 50 << 10
	round := func() map[string]int64 {
		before := make(map[string]int64)
		read.Range(func(address, n any) bool { before[address.(string)] = n.(*atomic.Int64).Load(); return true })
		w := &kafka.Writer{Addr: kafka.TCP(urls...), Topic: topic, RequiredAcks: kafka.RequireAll, Balancer: &kafka.RoundRobin{}, BatchTimeout: time.Millisecond}
		defer w.Close()
		for i := range messages / 10 {
			var batch []kafka.Message
			for j := range 10 {
				body := make([]byte, size)
				rand.NewChaCha8([32]byte{byte(i), byte(j)}).Read(body) // or it would shrink
				batch = append(batch, kafka.Message{Value: body})
			}
			must(t, w.WriteMessages(t.Context(), batch...))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for got := 0; got < messages; {
			ds, err := source.Receive(ctx, messages)
			if ctx.Err() != nil {
				t.Fatalf("%d of %d messages came: %v", got, messages, err)
			}
			got += len(ds)
			acks := make([]brokers.Settlement, len(ds))
			for i, d := range ds {
				acks[i].Delivery = d
			}
			must(t, errors.Join(source.Settle(ctx, acks)...))
		}
		after := make(map[string]int64)
		read.Range(func(address, n any) bool {
			after[address.(string)] = n.(*atomic.Int64).Load() - before[address.(string)]
			return true
		})
		return after
	}
	round() // the first fetch of a partition goes to its leader
	got := round()
	t.Logf("bytes read by address: %v; the rack has %s", got, near.Address())
	if got[near.Address()] < messages*size*9/10 {
		t.Errorf("%d of %d bytes are read in the rack of the worker, want nearly all: %v", got[near.Address()], messages*size, got)
	}
}

// counted counts what is read.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// Leaders of all queues move between the nodes of a cluster, and nodes that have
// them are killed, while workers are at work.
func TestRabbitMQCluster(t *testing.T) {
	h, nodes, urls := startCluster(t, harness.RabbitMQ)
	p := startProof(t, livetest.Target{Broker: nodes[0]}, strings.Join(urls, ","), "-messages", "12000", "-kills", "3", "-seed", "7")
	for range 2 {
		for _, to := range nodes {
			p.during("leaders moved", func() {
				moveLeaders(t, h, to)
				p.pause(time.Second)
			})
		}
	}
	killInTurn(t, h, p, nodes, func(victim harness.Broker) {
		p.during("leaders moved", func() { moveLeaders(t, h, victim) })
		p.pause(time.Second)
	})
	p.finish()
}

// moveLeaders makes a node the leader of all queues, until it is of nine in ten: a
// busy follower may call an election meanwhile.
func moveLeaders(t *testing.T, h *harness.Harness, to harness.Broker) {
	t.Helper()
	const move = `Node = '%s@localhost',
		Queues = rabbit_amqqueue:list(),
		[rabbit_quorum_queue:transfer_leadership(Q, Node) || Q <- Queues],
		timer:sleep(300),
		Led = [Q || Q <- rabbit_amqqueue:list(), element(2, amqqueue:get_pid(Q)) =:= Node],
		true = length(Queues) > 0 andalso length(Led) * 10 >= length(Queues) * 9.`
	for tries := 1; ; tries++ {
		err := h.Control(t.Context(), to.Name, "eval", fmt.Sprintf(move, to.Name))
		if err == nil {
			return
		}
		if tries == 10 {
			t.Errorf("move the leaders to %s, %d times: %v", to.Name, tries, err)
			return
		}
	}
}
