package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/livetest"
)

// ledger notes which messages a worker has handled, and which of its topics are
// reported.
type ledger struct {
	mu   sync.Mutex
	runs map[string]int
	lost map[string]int
}

// Observe implements consumer.Observer.
func (l *ledger) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventError && e.Operation == "receive" && e.Topic != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost[e.Topic]++
	}
}

// ran counts one more run of a message, and returns the number.
func (l *ledger) ran(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id]++
	return l.runs[id]
}

// has reports whether all of n messages with this prefix have run so often.
func (l *ledger) has(prefix string, n, runs int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		if l.runs[fmt.Sprint(prefix, i)] < runs {
			return false
		}
	}
	return true
}

// An operator deletes queues of one topic under a worker with the default Config: the
// delay queues while retries are under way, the dead-letter queue, and at last the
// queue itself. No message that comes in is lost but those in a deleted queue, Run goes
// on, and the other topic does all the time.
func TestQueuesDeletedInUse(t *testing.T) {
	onRabbitMQ(t, func(t *testing.T, target livetest.Target) {
		o := newOwn(t, target.URL, 15*time.Minute)
		refunds := newOwn(t, target.URL, 0) // for a name that is free
		t.Cleanup(func() { o.delete(o.prefix + ".retry.v1." + refunds.topic) })
		must(t, o.broker.Declare(t.Context(), refunds.topic))
		seen := &ledger{runs: map[string]int{}, lost: map[string]int{}}
		c, err := consumer.New(o.broker, consumer.Config{DeadLetter: "*.dead", Logger: slog.New(slog.DiscardHandler), Observers: []consumer.Observer{seen}})
		must(t, err)
		handle := func(_ context.Context, m *brokers.Message) error {
			switch run := seen.ran(m.ID); {
			case strings.HasPrefix(m.ID, "poison"):
				return classify.Permanent(errors.New("declined"))
			case strings.HasPrefix(m.ID, "busy") && run == 1:
				return errors.New("busy")
			}
			return nil
		}
		c.Handle(o.topic, handle)
		c.Handle(refunds.topic, handle)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()

		sends := func(topic, prefix string, n int) {
			t.Helper()
			for i := range n {
				must(t, o.broker.Publish(t.Context(), topic, brokers.Message{ID: fmt.Sprint(prefix, i), Body: []byte("body")}))
			}
		}
		others := 0
		flows := func(when string) {
			t.Helper()
			others++
			prefix := fmt.Sprintf("other %d-", others)
			sends(refunds.topic, prefix, 20)
			o.eventually("the other topic flows "+when, func() bool { return seen.has(prefix, 20, 1) })
		}
		o.eventually("the worker consumes", func() bool {
			q, err := o.look(refunds.topic)
			return err == nil && q.Consumers > 0
		})
		var shelves []string
		for _, ms := range []int{250, 500, 1000, 2000} {
			shelves = append(shelves, fmt.Sprintf("%s.delay.v2.%d", o.prefix, ms))
		}
		o.delete(shelves...)
		sends(o.topic, "busy", 10)
		sends(o.topic, "good", 30)
		flows("without delay queues")
		o.eventually("all retries come back", func() bool { return seen.has("busy", 10, 2) && seen.has("good", 30, 1) })

		o.delete(o.topic + ".dead")
		sends(o.topic, "poison", 4) // of five in a row the handler would be at fault, not they
		flows("without a dead-letter queue")
		o.eventually("the dead letters are there", func() bool {
			n, err := o.ready(o.topic + ".dead")
			return err == nil && n == 4
		})

		o.delete(o.topic)
		flows("without the queue of the first topic")
		o.eventually("the topic is reported", func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return seen.lost[o.topic] > 0
		})
		must(t, o.broker.Declare(t.Context(), o.topic))
		sends(o.topic, "anew", 10)
		o.eventually("the queue that is back is worked off", func() bool { return seen.has("anew", 10, 1) })
		select {
		case err := <-ended:
			t.Fatalf("Run ended with %v", err)
		default:
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := seen.lost[refunds.topic]; n > 0 {
			t.Errorf("the other topic is reported %d times", n)
		}
	})
}

func (o *own) delete(queues ...string) {
	o.Helper()
	ch, err := o.admin.Channel()
	if err != nil {
		o.Fatal(err)
	}
	defer ch.Close()
	for _, queue := range queues {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			o.Fatal(err)
		}
	}
}
