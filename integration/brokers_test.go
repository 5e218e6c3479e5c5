// Package integration_test holds the tests that run on real brokers.
package integration_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/integration/harness"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestBrokersAnswer tells a broker that is missing or of the wrong version apart
// from everything that the other tests may find.
func TestBrokersAnswer(t *testing.T) {
	called := map[harness.Product]string{
		harness.RabbitMQ: "RabbitMQ", harness.Kafka: "Kafka", harness.SQS: "ElasticMQ", harness.Redis: "Redis", harness.Valkey: "Valkey",
	}
	for _, run := range []func(*testing.T, func(*testing.T, livetest.Target)){
		livetest.RabbitMQ, livetest.Kafka, livetest.SQS, livetest.Redis,
	} {
		run(t, func(t *testing.T, target livetest.Target) {
			got, err := harness.Probe(t.Context(), target.Product, target.URL)
			if err != nil {
				t.Fatalf("%s at %s: %v", target.Name, target.URL, err)
			}
			product := called[target.Product]
			if got.Product != product || !strings.HasPrefix(got.Version, target.Version) {
				t.Errorf("%s answers as %+v, want %s %s*", target.URL, got, product, target.Version)
			}
			if target.URL == target.Broker.URL() { // one of ours
				wantLoopback(t, target.Port, target.Management, target.Controller)
			}
		})
	}
}

// wantLoopback looks, on Linux, for ports that others can reach.
func wantLoopback(t *testing.T, ports ...int) {
	t.Helper()
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			const localAddress, state, listens = 1, 3, "0A"
			fields := strings.Fields(line)
			address, hex, _ := strings.Cut(fields[localAddress], ":")
			ours := slices.ContainsFunc(ports, func(port int) bool { return hex == fmt.Sprintf("%04X", port) })
			if ours && fields[state] == listens && !strings.HasSuffix(address, "0100007F") {
				t.Errorf("port %s listens at %s, which is not 127.0.0.1", hex, address)
			}
		}
	}
}
