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
	"github.com/redrive-go/redrive/retry/flow"
)

// chaos is handlers that fail in every way by chance, and the messages that they
// have seen.
type chaos struct {
	t *testing.T

	mu     sync.Mutex
	source *rand.Rand
	bad    float64 // the part of runs that fail
	under  map[string]int
	runs   int
	done   map[string]bool
}

func (c *chaos) draw() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source.Float64()
}

// upTo draws a duration.
func (c *chaos) upTo(d time.Duration) time.Duration { return time.Duration(c.draw() * float64(d)) }

// change counts the messages that run.
func (c *chaos) change(by int, ids ...string) (bad float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if c.under[id] += by; c.under[id] > 1 {
			c.t.Errorf("%s runs twice at once", id)
		}
		c.runs += max(0, by)
	}
	return c.bad
}

// run is one run for some messages, which succeed or fail together or alone.
func (c *chaos) run(ctx context.Context, ids ...string) []error {
	bad := c.change(1, ids...)
	defer c.change(-1, ids...)
	results := make([]error, len(ids))
	if c.draw() < bad/2 {
		return slices.Repeat([]error{c.fault(ctx)}, len(ids))
	}
	for i := range ids {
		if c.draw() < bad/2 {
			results[i] = c.fault(ctx)
			continue
		}
		c.mu.Lock()
		c.done[ids[i]] = true
		c.mu.Unlock()
	}
	return results
}

func (c *chaos) fault(ctx context.Context) error {
	switch int(c.draw() * 10) {
	case 0:
		return classify.Throttled(errBusy, c.upTo(time.Minute))
	case 1:
		return classify.RetryAfter(errBusy, c.upTo(time.Minute))
	case 2:
		return classify.Defer(errBusy, c.upTo(time.Minute))
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
	case 8:
		sleep(c.upTo(time.Minute)) // it may ignore its context
	}
	return unavailable()
}

// Whatever happens, every message ends once: it is served, or dead, and never
// runs twice at once.
func TestEveryMessageEndsInChaos(t *testing.T) {
	for seed := range uint64(8) {
		bubble(t, fmt.Sprint("seed ", seed), func(t *testing.T) { runChaos(t, seed) })
	}
}

func runChaos(t *testing.T, seed uint64) {
	c := &chaos{t: t, source: rand.New(rand.NewPCG(seed, 17)), under: map[string]int{}, done: map[string]bool{}}
	broker := memory.New(memory.Options{Lease: 30 * time.Second, MaxLease: 5 * time.Minute, Fault: func(op memory.Op) memory.Fault {
		if op.Operation == memory.Publish && op.Topic == "single" || op.Operation == memory.Receive || c.draw() > 0.02 {
			return memory.Fault{}
		}
		return memory.Fault{Err: errors.New("i/o timeout"), Latency: c.upTo(time.Second)}
	}})
	limiter := flow.New(5, c.draw)
	cfg := guarded()
	cfg.HandlerTimeout, cfg.DrainTimeout, cfg.MaxHeld, cfg.Random = 20*time.Second, 2*time.Minute, 60, c.draw
	cfg.Rules = []classify.Rule{verdicts}
	cfg.Guards = map[string]consumer.Guard{"shared": {Limiter: limiter}}
	cfg.OrderByKey = seed%2 == 1
	if seed%3 == 2 {
		cfg.HoldLimit = -1
	}
	single := func(ctx context.Context, m *brokers.Message) error { return c.run(ctx, m.ID)[0] }
	begin := func() *worker {
		return start(t, broker, cfg, func(w *consumer.Consumer) {
			w.Handle("single", single)
			w.HandleWith("shared", single, consumer.TopicConfig{Concurrency: 3})
			w.HandleWith("also", single, consumer.TopicConfig{Dependency: "shared"})
			w.HandleWith("tenants", single, consumer.TopicConfig{DependencyOf: func(m *brokers.Message) string { return m.Key }})
			w.HandleBatch("batch", func(ctx context.Context, batch []brokers.Item) []error {
				var ids []string
				for _, item := range batch {
					ids = append(ids, item.Message.ID)
				}
				return c.run(ctx, ids...)
			}, consumer.TopicConfig{BatchSize: 20})
		})
	}
	topics := []string{"single", "shared", "also", "tenants", "batch"}
	var sent []string
	w := begin()
	for i := range 600 {
		topic := topics[i%len(topics)]
		m := brokers.Message{ID: fmt.Sprint(topic, "-", i), Key: fmt.Sprint("k", i%23)}
		if i%7 == 0 {
			for broker.SendBack(t.Context(), "", topic, brokers.Item{Message: &m, Meta: brokers.Meta{Send: "1." + m.ID}}) != nil {
			}
		} else {
			for broker.Publish(t.Context(), topic, m) != nil {
			}
		}
		sent = append(sent, m.ID)
		sleep(c.upTo(time.Second))
		switch i % 200 {
		case 0: // how bad the next while is
			c.mu.Lock()
			c.bad = []float64{0.05, 1, 0.3, 0.02, 0.9, 0.5}[(i/200+int(seed))%6]
			c.mu.Unlock()
		case 50:
			limiter.Adjust(time.Now(), flow.Change{Pause: "by chance"})
		case 90:
			limiter.Adjust(time.Now(), flow.Change{Resume: true})
		case 120: // another worker goes on
			if err := w.shutdown(); err != nil && !errors.Is(err, consumer.ErrUnclean) {
				t.Errorf("Run = %v", err)
			}
			w = begin()
		}
	}
	c.mu.Lock()
	c.bad = 0
	c.mu.Unlock()
	w.stopAfter(3 * time.Hour)
	dead := map[string]bool{}
	for _, topic := range topics {
		for _, letter := range deadLetters(t, broker, topic) {
			dead[letter.Message.ID] = true
		}
	}
	empty(t, broker, topics...)
	if lost := slices.DeleteFunc(sent, func(id string) bool { return c.done[id] || dead[id] }); len(lost) > 0 {
		t.Errorf("%d messages are neither served nor dead: %q", len(lost), lost)
	}
	if s := limiter.Adjust(time.Now(), flow.Change{}); c.runs > 20*600 || s.Running != 0 {
		t.Errorf("%d runs for 600 messages; %d are counted in the end", c.runs, s.Running)
	}
}
