package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/breaker"
)

// chaos is handlers that fail in every way by chance, and what they have seen.
type chaos struct {
	t    *testing.T
	draw func() float64

	mu    sync.Mutex
	bad   float64 // the part of runs that fail
	under map[string]int
	runs  int
	done  map[string]bool
}

// run is one run for some messages, which succeed or fail alone.
func (c *chaos) run(ctx context.Context, ms ...*brokers.Message) []error {
	c.mu.Lock()
	for _, m := range ms {
		c.runs++
		if c.under[m.ID]++; c.under[m.ID] > 1 {
			c.t.Errorf("%s runs twice at once", m.ID)
		}
	}
	bad := c.bad
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range ms {
			c.under[m.ID]--
		}
	}()
	whole := error(nil)
	if c.draw() < bad {
		whole = c.fault(ctx)
	}
	results := make([]error, len(ms))
	for i, m := range ms {
		if results[i] = whole; whole == nil && c.draw() < bad {
			results[i] = c.fault(ctx)
		}
		if results[i] == nil {
			c.mu.Lock()
			c.done[m.ID] = true
			c.mu.Unlock()
		}
	}
	return results
}

func (c *chaos) fault(ctx context.Context) error {
	switch int(c.draw() * 12) {
	case 0:
		return classify.Throttled(errBusy, time.Duration(c.draw()*float64(time.Minute)))
	case 1:
		return classify.RetryAfter(errBusy, time.Duration(c.draw()*float64(time.Minute)))
	case 2:
		return classify.Defer(errBusy, time.Duration(c.draw()*float64(time.Minute)))
	case 3:
		return classify.Permanent(errBusy)
	case 4:
		return errDisk
	case 5:
		<-ctx.Done()
		return ctx.Err()
	case 6:
		panic("by chance")
	case 7:
		return errors.New("no such column")
	}
	time.Sleep(time.Duration(c.draw() * float64(5*time.Second)))
	return unavailable()
}

// Whatever happens, every message ends once: it is served, or dead, and never
// runs twice at once.
func TestEveryMessageEndsInChaos(t *testing.T) {
	for seed := range uint64(6) {
		bubble(t, fmt.Sprint("seed ", seed), func(t *testing.T) { runChaos(t, seed) })
	}
}

func runChaos(t *testing.T, seed uint64) {
	source := rand.New(rand.NewPCG(seed, 17))
	var drawing sync.Mutex
	draw := func() float64 {
		drawing.Lock()
		defer drawing.Unlock()
		return source.Float64()
	}
	broker := memory.New(memory.Options{Lease: 30 * time.Second, MaxLease: 5 * time.Minute, Fault: func(op memory.Op) memory.Fault {
		if op.Operation == memory.Publish && op.Topic == "single" || op.Operation == memory.Receive || draw() > 0.02 {
			return memory.Fault{}
		}
		return memory.Fault{Err: errors.New("i/o timeout"), Latency: time.Duration(draw() * float64(time.Second))}
	}})
	guard := must(breaker.New(breaker.Config{}))
	h := &chaos{t: t, draw: draw, under: map[string]int{}, done: map[string]bool{}}
	cfg := quiet()
	cfg.HandlerTimeout, cfg.MaxHeld, cfg.Random = 20*time.Second, 60, draw
	cfg.Rules = []classify.Rule{verdicts}
	cfg.Guards = map[string]consumer.Guard{"shared": {Breaker: guard}}
	if seed%2 == 1 {
		cfg.OrderByKey = true
	}
	if seed%3 == 2 {
		cfg.HoldLimit = -1
	}
	single := func(ctx context.Context, m *brokers.Message) error { return h.run(ctx, m)[0] }
	begin := func() *worker {
		return start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("single", single)
			c.Handle("shared", single, consumer.Topic{Concurrency: 3})
			c.Handle("also", single, consumer.Topic{Dependency: "shared"})
			c.Handle("tenants", single, consumer.Topic{DependencyOf: func(m *brokers.Message) string { return m.Key }})
			c.HandleBatch("batch", func(ctx context.Context, batch []consumer.Item) []error {
				var ms []*brokers.Message
				for _, item := range batch {
					ms = append(ms, item.Message)
				}
				return h.run(ctx, ms...)
			}, consumer.Topic{BatchSize: 20})
		})
	}
	topics := []string{"single", "shared", "also", "tenants", "batch"}
	var sent []string
	w := begin()
	for i := range 600 {
		topic := topics[i%len(topics)]
		id := fmt.Sprint(topic, "-", i)
		for broker.Publish(t.Context(), topic, brokers.Message{ID: id, Key: fmt.Sprint("k", i%23)}) != nil {
		}
		sent = append(sent, id)
		time.Sleep(time.Duration(draw() * float64(time.Second)))
		switch i % 200 {
		case 0: // how bad the next while is
			h.mu.Lock()
			h.bad = []float64{0.05, 1, 0.3, 0.02, 0.9, 0.5}[(i/200+int(seed))%6]
			h.mu.Unlock()
		case 50:
			guard.Isolate(time.Now(), "by chance")
		case 90:
			guard.Restore(time.Now())
		case 120: // another worker goes on
			if err := w.shutdown(); err != nil && !errors.Is(err, consumer.ErrUnclean) {
				t.Errorf("Run = %v", err)
			}
			w = begin()
		}
	}
	h.mu.Lock()
	h.bad = 0
	h.mu.Unlock()
	guard.Restore(time.Now())
	time.Sleep(2 * time.Hour)
	w.mustShutdown()
	dead := map[string]bool{}
	for _, topic := range topics {
		for _, letter := range deadLetters(t, broker, topic) {
			dead[letter.Message.ID] = true
		}
	}
	empty(t, broker, topics...)
	if lost := slices.DeleteFunc(sent, func(id string) bool { return h.done[id] || dead[id] }); len(lost) > 0 {
		t.Errorf("%d messages are neither served nor dead: %q", len(lost), lost)
	}
	if h.runs > 20*600 {
		t.Errorf("%d runs for 600 messages", h.runs)
	}
}
