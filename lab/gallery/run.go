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
	"github.com/redrive-go/redrive/retry/budget"
)

// run lets the incident happen to its workers, and reports what became of the
// messages. Others may watch. It belongs into a bubble of testing/synctest.
func (i Incident) run(ctx context.Context, others ...consumer.Observer) (Report, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := newTally(i)
	if i.Server != nil {
		t.server = i.Server(t)
	}
	broker := memory.New(memory.Options{})
	cfg := i.config()
	cfg.Observers = append(others, t)
	if i.Shared {
		of, err := budget.New(budget.Queue())
		if err != nil {
			return Report{}, err
		}
		cfg.Guard.Budget = shared{of, i.Workers}
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	workers := max(1, i.Workers)
	failed := make(chan error, workers+len(i.Traffic))
	for n := range workers {
		group.Go(func() { failed <- t.work(ctx, broker, cfg, n) })
	}
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

// work runs the nth worker until ctx ends. A killed worker is started again.
func (t *tally) work(ctx context.Context, broker *memory.Broker, cfg consumer.Config, n int) error {
	var lives sync.WaitGroup
	defer lives.Wait()
	for {
		w, ended := newWorker(ctx, broker, t, n), make(chan error, 1)
		lives.Go(func() { ended <- w.run(cfg) })
		select {
		case err := <-ended:
			if ctx.Err() != nil || w.killed.Err() == nil {
				return err
			}
		case <-w.killed.Done():
			if ctx.Err() != nil {
				return <-ended
			}
		}
	}
}

// publish publishes the stream s, the nth.
func (t *tally) publish(ctx context.Context, broker brokers.Broker, nth int, s Stream) error {
	random := rand.New(rand.NewPCG(uint64(nth), 0))
	for n := range s.Load.Count {
		due := s.Load.Begin + time.Duration((float64(n)+random.Float64())*float64(s.Load.Every))
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
		return broker.SendBack(ctx, "", s.topic(), brokers.Item{Message: &m})
	}
	return broker.Publish(ctx, s.topic(), m)
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
