package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// dependency is what handlers call. It is down from one time to another.
type dependency struct {
	takes time.Duration // for each call

	mu     sync.Mutex
	down   func() error // nil while it is up
	calls  []visit
	served map[string]time.Time // by body
	under  int                  // calls under way
	most   int                  // of them
}

// visit is one call.
type visit struct {
	at   time.Time
	body string
}

func (d *dependency) set(down func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

func (d *dependency) handle(_ context.Context, m *brokers.Message) error {
	d.mu.Lock()
	d.calls = append(d.calls, visit{time.Now(), string(m.Body)})
	d.under++
	d.most = max(d.most, d.under)
	down := d.down
	d.mu.Unlock()
	if d.takes > 0 {
		time.Sleep(d.takes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.under--
	if down != nil {
		return down()
	}
	if d.served == nil {
		d.served = map[string]time.Time{}
	}
	d.served[string(m.Body)] = time.Now()
	return nil
}

// since returns the bodies of the calls from a time on.
func (d *dependency) since(t time.Time) (bodies []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if !c.at.Before(t) {
			bodies = append(bodies, c.body)
		}
	}
	return bodies
}

// runs returns how many calls there were.
func (d *dependency) runs() int { return len(d.since(time.Time{})) }

// done returns how many messages were served.
func (d *dependency) done() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.served)
}

// guarded is quiet with the default Guard.
func guarded() consumer.Config {
	cfg := quiet()
	cfg.Guard = consumer.Guard{}
	return cfg
}

func (d *dependency) register(topic string, settings ...consumer.Topic) func(*consumer.Consumer) {
	return func(c *consumer.Consumer) { c.Handle(topic, d.handle, settings...) }
}

func flood(t *testing.T, broker brokers.Broker, topic string, n int) {
	t.Helper()
	bodies := make([]string, n)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i)
	}
	publish(t, broker, topic, bodies...)
}

func unavailable() error { return classify.Transient(errBusy) }

// uncounted fails the test if a message has used more attempts than most.
func uncounted(t *testing.T, seen *recorder, most int) {
	t.Helper()
	for _, e := range seen.of(consumer.EventFailed) {
		if e.Meta.Attempt > most {
			t.Errorf("message %s of %s has used %d attempts up, want %d at most", e.Message.Body, e.Topic, e.Meta.Attempt, most)
			return
		}
	}
}

// only passes on events of one kind.
type only struct {
	kind consumer.EventKind
	to   consumer.Observer
}

func (o only) Observe(ctx context.Context, e consumer.Event) {
	if e.Kind == o.kind {
		o.to.Observe(ctx, e)
	}
}
