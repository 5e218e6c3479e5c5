package gallery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

// Run lets the incident happen to one Consumer, and reports what became of the
// messages. It belongs into a bubble of testing/synctest. Changes are made to the default Config.
func (i Incident) Run(ctx context.Context, changes ...func(*consumer.Config)) (Report, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := newTally(i)
	var broker brokers.Broker = memory.New(memory.Options{})
	if i.NoDeadLetters {
		broker = refusing{broker, t}
	}
	cfg := i.config()
	cfg.Observers = []consumer.Observer{t}
	for _, change := range changes {
		change(&cfg)
	}
	c, err := consumer.New(broker, cfg)
	if err != nil {
		return Report{}, err
	}
	for _, topic := range i.topics() {
		if i.Batch > 0 {
			c.HandleBatch(topic, t.batch, i.settings())
		} else {
			c.Handle(topic, t.handle, i.settings())
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	failed := make(chan error, 1+len(i.Traffic))
	group.Go(func() { failed <- c.Run(ctx) })
	for n, s := range i.Traffic {
		group.Go(func() {
			if err := t.publish(ctx, broker, n, s); err != nil {
				failed <- err
			}
		})
	}
	over := time.NewTimer(i.end() + i.Watch)
	defer over.Stop()
	select {
	case err := <-failed:
		return Report{}, fmt.Errorf("stopped early: %w", err)
	case <-over.C:
	case <-t.finished:
	}
	return t.result(), nil
}

// refusing is a broker that takes no dead letter as long as the incident lasts.
type refusing struct {
	brokers.Broker
	*tally
}

func (b refusing) Publish(ctx context.Context, topic string, ms ...brokers.Message) error {
	at := time.Since(b.began)
	if strings.HasSuffix(topic, ".dead") && b.Warm <= at && at < b.end() {
		return fmt.Errorf("topic %q is full", topic)
	}
	return b.Broker.Publish(ctx, topic, ms...)
}

// publish publishes the stream s, the nth.
func (t *tally) publish(ctx context.Context, broker brokers.Broker, nth int, s Stream) error {
	random := rand.New(rand.NewPCG(uint64(nth), 0))
	for n := range s.Load.Count {
		due := time.Duration((float64(n) + random.Float64()) * float64(s.Load.Every))
		if late := due - time.Since(t.began); late > 0 && wait(ctx, late) != nil {
			return nil // the run is over
		}
		m := brokers.Message{ID: strconv.Itoa(nth) + "-" + strconv.Itoa(n), Body: []byte("{}")}
		if s.Keys > 0 {
			m.Key = s.Name + " " + strconv.Itoa(n%s.Keys)
		}
		t.published(nth)
		if err := s.send(ctx, broker, m); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// send publishes m, or sends it back.
func (s Stream) send(ctx context.Context, broker brokers.Broker, m brokers.Message) error {
	if s.Back {
		return broker.Return(ctx, "", s.topic(), brokers.Returned{Message: m})
	}
	return broker.Publish(ctx, s.topic(), m)
}

// handle is the handler of single messages.
func (t *tally) handle(ctx context.Context, m *brokers.Message) error {
	stream, nth := place(m)
	return t.Traffic[stream].Calls(ctx, t.runs(stream, nth))
}

// batch is the handler of batches: one call for all, which any of them can make
// fail for all.
func (t *tally) batch(ctx context.Context, batch []consumer.Item) []error {
	calls := make([]error, len(batch))
	var group sync.WaitGroup
	for i, item := range batch {
		group.Go(func() { calls[i] = t.handle(ctx, item.Message) })
	}
	group.Wait()
	err := errors.Join(calls...)
	if err == nil {
		return nil
	}
	for i := range calls {
		calls[i] = err
	}
	return calls
}

// place is which stream m belongs to, and which message of that it is.
func place(m *brokers.Message) (stream, n int) {
	first, second, _ := strings.Cut(m.ID, "-")
	stream, err := strconv.Atoi(first)
	n, err2 := strconv.Atoi(second)
	if err := errors.Join(err, err2); err != nil {
		panic(fmt.Sprintf("gallery: message %q is not from here", m.ID))
	}
	return stream, n
}
