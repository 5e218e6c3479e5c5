package rabbitmq_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// old is a worker as it was before redrive: what it rejects waits in a queue with a
// TTL, and comes back.
type old struct {
	*world
	ch   *amqp.Channel
	done sync.WaitGroup
	seen *ledger
}

// ledger counts what was handled, by whom.
type ledger struct {
	mu     sync.Mutex
	by     map[string]map[string]int // worker by body
	failed map[string]bool
}

func (l *ledger) handled(body, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[body] == nil {
		l.by[body] = map[string]int{}
	}
	l.by[body][by]++
}

// fails reports whether a message is to fail, as each fifth one does at first.
func (l *ledger) fails(body string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if body[len(body)-1]%5 != 0 || l.failed[body] {
		return false
	}
	l.failed[body] = true
	return true
}

func (l *ledger) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.by)
}

func (w *world) startOld(seen *ledger) *old {
	w.Helper()
	ch, err := w.conn.Channel()
	if err != nil {
		w.Fatal(err)
	}
	if err := ch.Qos(10, 0, false); err != nil {
		w.Fatal(err)
	}
	deliveries, err := ch.Consume(w.topic, "old", false, false, false, false, nil)
	if err != nil {
		w.Fatal(err)
	}
	o := &old{world: w, ch: ch, seen: seen}
	o.done.Go(func() {
		for d := range deliveries {
			if seen.fails(string(d.Body)) {
				d.Nack(false, false)
				continue
			}
			seen.handled(string(d.Body), "old")
			d.Ack(false)
		}
	})
	return o
}

// stop handles what has come, and ends.
func (o *old) stop() {
	o.Helper()
	if err := o.ch.Cancel("old", false); err != nil {
		o.Fatal(err)
	}
	o.done.Wait()
	o.ch.Close()
}

// From a classic queue with a retry of dead-letter exchange and TTL to redrive and
// back, without a stop: nothing is lost, and nothing is handled twice.
func TestMigrate(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		w.closeSource()
		wait, exchange := w.topic+".wait", w.topic+".retry"
		w.Cleanup(func() { w.delete(wait); w.deleteExchanges(exchange) })
		w.redeclare(w.topic, amqp.Table{"x-dead-letter-exchange": exchange})
		w.redeclare(wait, amqp.Table{"x-message-ttl": int64(300), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": w.topic})
		if err := w.do(func(ch *amqp.Channel) error {
			if err := ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil); err != nil {
				return err
			}
			return ch.QueueBind(wait, "", exchange, false, nil)
		}); err != nil {
			w.Fatal(err)
		}
		seen := &ledger{by: map[string]map[string]int{}, failed: map[string]bool{}}
		published := 0
		publish := func() {
			for range 100 {
				w.foreign(w.topic, amqp.Publishing{Body: fmt.Append(nil, published), DeliveryMode: amqp.Persistent})
				published++
			}
		}
		// work has redrive handle what comes until all that is published is handled.
		work := func(until func() bool) {
			for !until() {
				for _, d := range w.receiveFor(200 * time.Millisecond) {
					if seen.fails(string(d.Message.Body)) {
						if err := w.settle(retry(d, 300*time.Millisecond))[0]; err != nil {
							w.Fatal(err)
						}
						continue
					}
					seen.handled(string(d.Message.Body), "redrive")
					w.ack(d)
				}
			}
		}
		all := func() bool { return seen.count() == published }

		before := w.startOld(seen)
		publish()
		w.source = w.opens(w.options(w.url, false)) // beside the old one
		publish()
		work(all)
		before.stop()
		publish()
		work(all)
		publish()
		back := w.startOld(seen)
		work(all)
		w.closeSource()
		publish()
		w.await("the old worker handles what is left", all)
		back.stop()

		by := map[string]int{}
		for body, workers := range seen.by {
			for worker, n := range workers {
				if by[worker]++; n > 1 || len(workers) > 1 {
					w.Errorf("%s was handled by %v", body, workers)
				}
			}
		}
		if by["old"] < 100 || by["redrive"] < 100 {
			w.Errorf("handled by %v, want at least 100 each", by)
		}
		for _, queue := range []string{w.topic, wait, w.retries()} {
			if n := w.depth(queue); n != 0 {
				w.Errorf("%d messages are left in %q", n, queue)
			}
		}
	})
}

// receiveFor returns what comes within d.
func (w *world) receiveFor(d time.Duration) []*brokers.Delivery {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	ds, _ := w.source.Receive(ctx, 50)
	return ds
}
