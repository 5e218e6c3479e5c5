package consumer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/flow"
)

// Jobs in line at a limiter that is at its highest limit start when another run
// ends, even if no other message arrives.
func TestLineMovesAtTheHighestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dependency{takes: time.Second}
		cfg := quiet()
		cfg.Guard = consumer.Guard{Limiter: flow.New(1, cfg.Random)}
		broker := memory.New(memory.Options{})
		topics := []string{"orders", "refunds", "mails"}
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			for _, topic := range topics {
				c.Handle(topic, d.handle, consumer.Topic{Dependency: "bank"})
			}
		})
		for _, topic := range topics {
			publish(t, broker, topic, topic)
		}
		time.Sleep(time.Duration(len(topics))*d.takes + time.Millisecond)
		synctest.Wait()
		w.mustShutdown()
		if d.done() != len(topics) || d.most > 1 {
			t.Errorf("%d of %d messages were served, %d at once; want all, one after the other", d.done(), len(topics), d.most)
		}
	})
}
