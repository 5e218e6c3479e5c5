package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestBacklogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail bool
		b := memory.New(memory.Options{Fault: func(op memory.Op) (f memory.Fault) {
			if op.Operation == memory.Count && fail {
				f.Err = errors.New("nobody counts")
			}
			return f
		}})
		defer b.Close(t.Context())
		s, err := b.Open(t.Context(), brokers.Subscription{
			Topics: []string{"orders", "mails"}, InFlight: 10, MaxDelay: time.Hour, MaxAttempts: 3, DeadLetters: map[string]string{"orders": "dead", "mails": "dead"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range []string{"orders", "orders", "dead"} {
			if err := b.Publish(t.Context(), topic, brokers.Message{}); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		ds, err := s.Receive(t.Context(), 2)
		if err != nil || len(ds) != 2 {
			t.Fatal(len(ds), err)
		}
		s.Settle(t.Context(), []brokers.Settlement{{Delivery: ds[0], Action: brokers.Retry, Delay: time.Hour}})
		if err := b.Publish(t.Context(), "orders", brokers.Message{}); err != nil {
			t.Fatal(err)
		}
		all, err := s.Backlogs(t.Context())
		want := []struct {
			topic                 string
			dead                  bool
			ready, taken, delayed int64
			oldest                time.Time
		}{{"orders", false, 1, 1, 1, began}, {"mails", false, 0, 0, 0, time.Time{}}, {"dead", true, 1, 0, 0, began}}
		if err != nil || len(all) != len(want) {
			t.Fatalf("%v: %+v", err, all)
		}
		for i, b := range all {
			w := want[i]
			if b.Topic != w.topic || b.DeadLetters != w.dead || *b.Ready != w.ready || *b.Taken != w.taken || *b.Delayed != w.delayed || !b.Oldest.Equal(w.oldest) {
				t.Errorf("%+v, %d, %d, %d; want %+v", b, *b.Ready, *b.Taken, *b.Delayed, w)
			}
		}
		fail = true
		if all, err := s.Backlogs(t.Context()); err == nil || len(all) > 0 {
			t.Errorf("a fault: %v, %+v", err, all)
		}
	})
}
