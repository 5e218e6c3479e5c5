package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
)

// TestConformance runs the suite. The other tests are about what it does not
// ask for: faults, inspection, and times and orders that are exact here.
func TestConformance(t *testing.T) {
	for name, options := range map[string]memory.Options{
		"unordered": {},
		"ordered":   {Ordered: true},
		"limited":   {MaxLease: 20 * time.Second, MessageLimit: 256 << 10, HeaderLimit: 2 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var failing atomic.Bool
			options.Fault = func(op memory.Op) memory.Fault {
				if failing.Load() && (op.Operation == memory.Publish || op.Operation == memory.Settle) {
					return memory.Fault{Err: brokers.ErrUnknownOutcome}
				}
				return memory.Fault{}
			}
			brokertest.Run(t, brokertest.Harness{
				Open:            func(testing.TB) brokers.Broker { return memory.New(options) },
				Virtual:         true,
				CountsAbandoned: true,
				TypedHeaders:    brokers.Headers{{Name: "count", Value: "7", Type: "int64"}, {Name: "count", Value: "7"}},
				Crash:           func(b brokers.Broker, src brokers.Source) { b.(*memory.Broker).Crash(src) },
				Fail: func(brokers.Broker) (heal func()) {
					failing.Store(true)
					return func() { failing.Store(false) }
				},
			})
		})
	}
}
