package consumer_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
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
				c.HandleWith(topic, d.handle, consumer.TopicConfig{Dependency: "bank"})
			}
		})
		for _, topic := range topics {
			publish(t, broker, topic, topic)
		}
		w.stopAfter(time.Duration(len(topics))*d.takes + time.Millisecond)
		if d.done() != len(topics) || d.most > 1 {
			t.Errorf("%d of %d messages were served, %d at once; want all, one after the other", d.done(), len(topics), d.most)
		}
	})
}

// A busy dependency that is down is reported, though its single runs are less than a
// second apart, and so is its end.
func TestOutageOfABusyDependencyIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dependency{takes: 10 * time.Millisecond}
		cfg := guarded()
		seen := record(&cfg)
		broker := memory.New(memory.Options{})
		w := start(t, broker, cfg, orders(d.handle))
		for i := range 100 * 60 {
			switch i {
			case 100 * 30:
				d.set(func() error { return classify.Transient(errors.New("down")) })
			case 100 * 40:
				if n := len(seen.of(consumer.EventPaused)); n != 1 {
					t.Errorf("%d pauses are reported in the outage, want 1", n)
				}
				d.set(nil)
			}
			publish(t, broker, "orders", "order")
			time.Sleep(10 * time.Millisecond)
		}
		w.mustShutdown()
		if n, m := len(seen.of(consumer.EventPaused)), len(seen.of(consumer.EventResumed)); n != 1 || m != 1 {
			t.Errorf("%d pauses and %d ends are reported, want one of each", n, m)
		}
	})
}
