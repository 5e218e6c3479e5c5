package memory_test

import (
	"context"
	"errors"
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
			var fault atomic.Pointer[memory.Fault]
			options.Fault = func(op memory.Op) memory.Fault {
				if f := fault.Load(); f != nil && (op.Operation == memory.Publish || op.Operation == memory.SendBack || op.Action == brokers.Retry) {
					return *f
				}
				if op.Operation == memory.Deliver && op.ID == torn.ID {
					return memory.Fault{Unreadable: errors.New("its headers are torn")}
				}
				return memory.Fault{}
			}
			during := func(f memory.Fault) func(brokers.Broker) (heal func()) {
				return func(brokers.Broker) (heal func()) {
					fault.Store(&f)
					return func() { fault.Store(nil) }
				}
			}
			brokertest.Run(t, brokertest.Harness{
				Open:         func(testing.TB) brokers.Broker { return memory.New(options) },
				Virtual:      true,
				TypedHeaders: brokers.Headers{{Name: "count", Value: "7", Type: "int64"}, {Name: "count", Value: "7"}},
				Crash:        func(b brokers.Broker, src brokers.Source) { b.(*memory.Broker).Crash(src) },
				Delete: func(b brokers.Broker, topic string) (restore func()) {
					b.(*memory.Broker).Delete(topic)
					return func() {} // the next Publish creates it again
				},
				PublishUnreadable: func(ctx context.Context, b brokers.Broker, topic string) error {
					return b.Publish(ctx, topic, torn)
				},
				LoseRequests: during(memory.Fault{Err: brokers.ErrUnknownOutcome}),
				LoseConfirms: during(memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}),
			})
		})
	}
}

// torn is the message that this broker is told it cannot read.
var torn = brokers.Message{ID: "torn", Body: []byte("torn")}
