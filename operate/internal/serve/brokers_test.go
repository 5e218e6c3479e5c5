package serve

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// A broker that hangs while it is made keeps nobody from another one.
func TestBrokersApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBrokers(func(ctx context.Context, name string) (brokers.Broker, error) {
			if name == "hangs" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return memory.New(memory.Options{}), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := b.Open(ctx, "hangs")
			failed <- err
		}()
		synctest.Wait()
		one, err := b.Open(t.Context(), "works")
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := b.Open(t.Context(), "works"); again != one {
			t.Error("a broker was made twice")
		}
		cancel()
		if err := <-failed; err == nil {
			t.Error("a broker that hangs was made")
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
