package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/idempotency"
)

// Somebody publishes first, with the keys that another producer is about to use,
// with equal and with other bodies. Where the namespace is the producer whom the
// broker vouches for, all messages of the other are handled; without one they are
// not, which Options says.
func TestAttackForeignIdempotencyKeys(t *testing.T) {
	producer := func(m *brokers.Message) string { return m.Headers.Get("user-id") }
	for name, tt := range map[string]struct {
		namespace func(*brokers.Message) string
		handled   int
	}{"by producer": {producer, 100}, "shared": {nil, 0}} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			publish := func(user, body string, i int) {
				m := brokers.Message{Body: []byte(body), Headers: brokers.Headers{
					{Name: "user-id", Value: user}, {Name: "Idempotency-Key", Value: fmt.Sprint("order-", i)}}}
				if err := broker.Publish(t.Context(), "orders", m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // each ends before the next is published
			}
			once, err := idempotency.Once(idempotency.NewMemory(0), idempotency.Options{
				Retention: time.Hour, Redrive: -1, Namespace: tt.namespace})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			handled := map[string]int{}
			stop := start(t, broker, once(func(_ context.Context, m *brokers.Message) error {
				mu.Lock()
				defer mu.Unlock()
				handled[m.Headers.Get("user-id")+m.Headers.Get("Idempotency-Key")]++
				return nil
			}))
			for i := range 100 {
				publish("mallory", []string{"order", "nonsense"}[i%2], i)
				for range 2 { // of which one is a duplicate
					publish("shop", "order", i)
				}
			}
			stop()
			n := 0
			for i := range 100 {
				runs := handled[fmt.Sprint("shoporder-", i)]
				n += runs
				if runs > 1 {
					t.Errorf("order %d was handled %d times", i, runs)
				}
			}
			if n != tt.handled {
				t.Errorf("%d of 100 orders handled, want %d", n, tt.handled)
			}
			if dead := broker.Len("orders.dead"); tt.namespace != nil && dead != 0 {
				t.Errorf("%d dead letters, want none", dead)
			}
		})
	}
}
