package brokertest_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
)

// An adapter on an in-process fake runs in virtual time. Hooks let the suite
// kill a worker, and lose requests and their confirmations.
func Example() {
	_ = func(t *testing.T) { // func TestConformance(t *testing.T)
		var losing, stored atomic.Bool
		fault := func(op memory.Op) memory.Fault {
			stores := op.Operation == memory.Publish || op.Operation == memory.SendBack || op.Action == brokers.Retry
			if losing.Load() && stores {
				return memory.Fault{Err: brokers.ErrUnknownOutcome, Done: stored.Load()}
			}
			return memory.Fault{}
		}
		lose := func(confirms bool) func(brokers.Broker) (heal func()) {
			return func(brokers.Broker) (heal func()) {
				stored.Store(confirms)
				losing.Store(true)
				return func() { losing.Store(false) }
			}
		}
		brokertest.Run(t, brokertest.Harness{
			Open:         func(testing.TB) brokers.Broker { return memory.New(memory.Options{Fault: fault}) },
			Virtual:      true,
			Crash:        func(b brokers.Broker, src brokers.Source) { b.(*memory.Broker).Crash(src) },
			LoseRequests: lose(false),
			LoseConfirms: lose(true),
		})
	}
}

// An adapter on a real broker runs in real time. Topics get names of their own,
// and Unit is as short as the broker's delays and leases allow.
func Example_realBroker() {
	var connect func(url string) (brokers.Broker, error) // of your adapter

	_ = func(t *testing.T) { // func TestConformanceReal(t *testing.T)
		url := os.Getenv("BROKER_URL")
		if url == "" {
			t.Skip("BROKER_URL is not set: no broker to test against")
		}
		start := time.Now().Unix()
		var topics atomic.Int64
		brokertest.Run(t, brokertest.Harness{
			Open: func(t testing.TB) brokers.Broker {
				b, err := connect(url)
				if err != nil {
					t.Fatal(err)
				}
				return b
			},
			Topic: func(name string) string { return fmt.Sprintf("%s-%d-%d", name, start, topics.Add(1)) },
			Unit:  time.Second, // SQS: delays and leases are whole seconds
			Slack: 500 * time.Millisecond,
		})
	}
}
