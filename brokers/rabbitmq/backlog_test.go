package rabbitmq_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// What nobody has is ready, and what a worker holds is not. A queue that is gone takes
// no other answer away, and a question that is given up no delivery.
func TestBacklogs(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.publish("a", "b")
		ds := w.receive(2)
		dead := w.topic + ".dead"
		for range 3 {
			if err := w.broker.Publish(w.Context(), dead, brokers.Message{Body: []byte("letter")}); err != nil {
				w.Fatal(err)
			}
		}
		source := w.source
		asks := func(ready ...int64) error {
			w.Helper()
			all, err := source.Backlogs(w.Context())
			for i, b := range all {
				topic := []string{w.topic, dead}[i]
				if b.Topic != topic || b.DeadLetters != (i == 1) || b.Ready == nil || *b.Ready != ready[i] || b.Taken != nil || b.Delayed != nil {
					w.Errorf("backlog %+v, want %d of %q", b, ready[i], topic)
				}
			}
			if len(all) != len(ready) {
				w.Errorf("backlogs %+v, want %d", all, ready)
			}
			return err
		}
		for range 2 { // the second time on the same connection
			if err := asks(0, 3); err != nil {
				w.Error(err)
			}
		}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if all, err := source.Backlogs(ctx); !errors.Is(err, context.Canceled) || len(all) > 0 {
			w.Errorf("given up: %v, %+v", err, all)
		}
		w.delete(dead)
		if err := asks(0); !errors.Is(err, brokers.ErrNotFound) {
			w.Errorf("the queue of dead letters is gone: %v", err)
		}
		w.ack(ds...)
		w.closeSource()
		if _, err := source.Backlogs(w.Context()); !errors.Is(err, brokers.ErrClosed) {
			w.Errorf("closed: %v", err)
		}
	})
}
