package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

func TestBatchLargerThanPrefetchFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		for range 100 {
			publish(t, broker, "rows", "x")
		}
		var sizes []int
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.HandleBatch("rows", func(_ context.Context, batch []consumer.Item) []error {
				sizes = append(sizes, len(batch))
				return nil
			}, consumer.Topic{BatchSize: 100})
		})
		time.Sleep(time.Second)
		synctest.Wait()
		w.mustShutdown()
		if len(sizes) != 1 {
			t.Errorf("batches of %v, want one of 100", sizes)
		}
	})
}
