package gallery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
)

// worker is one life of a worker, and the broker as it sees it.
type worker struct {
	*memory.Broker
	*tally
	number int
	killed context.Context // ends when it is killed
	die    context.CancelFunc
	source brokers.Source // under mu
}

func newWorker(ctx context.Context, broker *memory.Broker, t *tally, number int) *worker {
	w := &worker{Broker: broker, tally: t, number: number}
	w.killed, w.die = context.WithCancel(ctx)
	return w
}

// run runs the worker until ctx ends or it is killed.
func (w *worker) run(cfg consumer.Config) error {
	if w.KillEvery > 0 {
		death := time.AfterFunc(w.KillEvery, func() {
			if at := time.Since(w.began); w.Warm <= at && at < w.end() {
				w.kill()
			}
		})
		defer death.Stop()
	}
	c, err := consumer.New(w, cfg)
	if err != nil {
		return err
	}
	for _, topic := range w.topics() {
		if w.Batch > 0 {
			c.HandleBatch(topic, w.handleBatch, w.settings())
		} else {
			c.HandleWith(topic, w.handle, w.settings())
		}
	}
	life, end := context.WithCancel(w.killed)
	defer end()
	go w.watch(life, health.Handler(c))
	return c.Run(w.killed)
}

// watchEvery is how often a kubelet asks for /livez by default.
const watchEvery = 10 * time.Second

// watch counts the times that a kubelet would restart the worker, until ctx ends.
func (w *worker) watch(ctx context.Context, h http.Handler) {
	for wait(ctx, watchEvery) == nil {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/livez", nil))
		if answer.Code != http.StatusOK && ctx.Err() == nil {
			w.unlively(answer.Body.String())
		}
	}
}

// kill kills the worker. Its handlers may still run for a while, but it cannot
// tell the broker.
func (w *worker) kill() {
	w.mu.Lock()
	src := w.source
	w.mu.Unlock()
	w.Crash(src)
	w.die()
}

// Open implements brokers.Broker.
func (w *worker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := w.Broker.Open(ctx, sub)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source = s
	return source{s, w.tally}, err
}

// Publish refuses dead letters if the incident says so.
func (w *worker) Publish(ctx context.Context, topic string, ms ...brokers.Message) error {
	if w.killed.Err() != nil {
		return brokers.ErrClosed
	}
	if lasts := w.asked(); lasts && w.NoDeadLetters && strings.HasSuffix(topic, ".dead") {
		return fmt.Errorf("topic %q is full", topic)
	}
	return w.Broker.Publish(ctx, topic, ms...)
}

// source counts the calls of the broker.
type source struct {
	brokers.Source
	*tally
}

func (s source) Receive(ctx context.Context, most int) ([]*brokers.Delivery, error) {
	s.asked()
	return s.Source.Receive(ctx, most)
}

func (s source) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	s.asked()
	return s.Source.Settle(ctx, batch)
}

func (s source) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	if lasts := s.asked(); lasts && s.NoExtensions {
		errs := make([]error, len(ds))
		for i := range errs {
			errs[i] = errors.New("leases cannot be extended")
		}
		return errs
	}
	return s.Source.Extend(ctx, lease, ds)
}

// handle is the handler of single messages.
func (w *worker) handle(ctx context.Context, m *brokers.Message) error {
	stream, nth := place(m)
	calls := w.Traffic[stream].Calls
	if calls == nil {
		calls = w.server
	}
	c := w.runs(stream, nth)
	c.Worker, c.Kill = w.number, w.kill
	return calls(ctx, c)
}

// handleBatch is the handler of batches: one call for all, which any of them can
// make fail for all.
func (w *worker) handleBatch(ctx context.Context, batch []brokers.Item) []error {
	calls := make([]error, len(batch))
	var group sync.WaitGroup
	for i, item := range batch {
		group.Go(func() { calls[i] = w.handle(ctx, item.Message) })
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
