package faults

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

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

// Each node of a cluster is killed, while workers are at work: what is acked is on
// another one.
func TestKafkaCluster(t *testing.T) {
	h, nodes, urls := startCluster(t, harness.Kafka)
	p := startProof(t, livetest.Target{Broker: nodes[0]}, strings.Join(urls, ","), "-messages", "6000", "-kills", "3", "-seed", "8")
	killInTurn(t, h, p, nodes, func(harness.Broker) { p.pause(10 * time.Second) }) // replicas come in sync again
	p.finish()
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
