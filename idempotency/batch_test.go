package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/settings"
)

// batched is a batch handler that notes what it gets, and fails as then says.
type batched struct {
	calls []string
	then  func(ctx context.Context, ids []string) []error
}

func (b *batched) handle(ctx context.Context, batch []brokers.Item) []error {
	var ids []string
	for _, item := range batch {
		ids = append(ids, item.Message.ID)
	}
	b.calls = append(b.calls, strings.Join(ids, "+"))
	if b.then == nil {
		return nil
	}
	return b.then(ctx, ids)
}

func (b *batched) want(t *testing.T, calls ...string) {
	t.Helper()
	if !slices.Equal(b.calls, calls) {
		t.Errorf("the handler got %q, want %q", b.calls, calls)
	}
}

func wrapBatch(t *testing.T, s idempotency.Store, h consumer.BatchHandler) consumer.BatchHandler {
	t.Helper()
	once, err := idempotency.OnceBatch(s, idempotency.Options{Retention: week, Redrive: week, Logger: slog.New(slog.DiscardHandler)})
	ok(t, err)
	return once(h)
}

func orders(ids ...string) (batch []brokers.Item) {
	for _, id := range ids {
		batch = append(batch, brokers.Item{Message: order(id, "x")})
	}
	return batch
}

// TestBatchWithDuplicates has a message twice in a batch, and others that were
// handled before or are being handled.
func TestBatchWithDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(0)
		h := &batched{}
		handle := wrapBatch(t, s, h.handle)
		hold(t, s, "orders:elsewhere", "other", time.Hour)
		began := time.Now()
		got := handle(t.Context(), orders("a", "elsewhere", "b", "a", ""))
		first, second := got[0], got[3]
		if first != nil {
			first, second = second, first
		}
		if first != nil || got[2] != nil {
			t.Errorf("results %v, want success for b and one a", got)
		}
		wantUncounted(t, second, idempotency.ErrInProgress)
		wantUncounted(t, got[1], idempotency.ErrInProgress)
		if v := classify.Of(got[4]); v.Class != classify.ClassPoison {
			t.Errorf("without a key: %v, %+v, want poison", got[4], v)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the batch waited for %v, want none to hold up the others", took)
		}
		ok(t, errors.Join(handle(t.Context(), orders("b", "a"))...))
		handle(t.Context(), orders("c", "a"))
		if h.calls[0] == "b+a" { // either of the two
			h.calls[0] = "a+b"
		}
		h.want(t, "a+b", "c")
	})
}

// TestBatchAsksForManyAtOnce counts the round trips, of a second each.
func TestBatchAsksForManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprintf("order-%d", i))
		}
		s := newFaulty(func(string, int) error { time.Sleep(time.Second); return nil })
		began := time.Now()
		ok(t, errors.Join(wrapBatch(t, s, (&batched{}).handle)(t.Context(), orders(ids...))...))
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("40 messages took %v, want 3s to claim and 3s to record them", took)
		}
	})
}

// TestEachResultOfABatchCounts runs again what failed, and that alone.
func TestEachResultOfABatchCounts(t *testing.T) {
	run := 0
	h := &batched{then: func(_ context.Context, ids []string) []error {
		results := make([]error, len(ids))
		if run++; run == 1 {
			results[1] = errBusy
		}
		return results
	}}
	handle := wrapBatch(t, idempotency.NewMemory(0), h.handle)
	if got := handle(t.Context(), orders("a", "b", "c")); got[0] != nil || !errors.Is(got[1], errBusy) || got[2] != nil {
		t.Errorf("results %v, want those of the handler", got)
	}
	handle(t.Context(), orders("a", "b", "c"))
	h.want(t, "a+b+c", "b")
}

// TestFailedBatchIsNotRecorded is about the ways in which a batch fails as one.
func TestFailedBatchIsNotRecorded(t *testing.T) {
	for name, end := range map[string]func() []error{
		"panic":            func() []error { panic(errBusy) },
		"goexit":           func() []error { runtime.Goexit(); return nil },
		"too few results":  func() []error { return []error{nil} },
		"too many results": func() []error { return make([]error, 3) },
		"an empty slice":   func() []error { return []error{} },
	} {
		t.Run(name, func(t *testing.T) {
			h := &batched{}
			h.then = func(context.Context, []string) []error {
				if len(h.calls) == 1 {
					return end()
				}
				return nil
			}
			handle := wrapBatch(t, idempotency.NewMemory(0), h.handle)
			apart(t, name == "panic", func() {
				if got := handle(t.Context(), orders("a", "b")); slices.Contains(got, nil) {
					t.Errorf("results %v, want no success", got)
				}
			})
			ok(t, errors.Join(handle(t.Context(), orders("a", "b"))...))
			h.want(t, "a+b", "a+b")
		})
	}
}

// robbed is a Store in which some claims go to another run after they began.
type robbed struct {
	*idempotency.Memory
	gone []string // keys

	mu    sync.Mutex
	began map[string]int
}

func (s *robbed) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	s.mu.Lock()
	s.began[c.Key]++
	again := s.began[c.Key] > 1
	s.mu.Unlock()
	if again && slices.Contains(s.gone, c.Key) {
		return idempotency.Record{State: idempotency.InProgress, Left: time.Minute}, nil
	}
	return s.Memory.Begin(ctx, c, lease)
}

// TestBatchLosesClaims lets a handler run for longer than its claims last.
func TestBatchLosesClaims(t *testing.T) {
	for _, all := range []bool{false, true} {
		bubble(t, fmt.Sprintf("all=%v", all), func(t *testing.T) {
			s := &robbed{Memory: idempotency.NewMemory(0), gone: []string{"orders:a"}, began: map[string]int{}}
			if all {
				s.gone = append(s.gone, "orders:b")
			}
			hold(t, s.Memory, "orders:elsewhere", "other", time.Hour)
			h := &batched{then: func(ctx context.Context, ids []string) []error {
				time.Sleep(time.Minute)
				if ended := errors.Is(context.Cause(ctx), idempotency.ErrClaimLost); ended != all {
					t.Errorf("the context ended: %v (%v), want %v", ended, context.Cause(ctx), all)
				}
				return []error{errBusy, errBusy}
			}}
			got := wrapBatch(t, s, h.handle)(t.Context(), orders("a", "b", "elsewhere"))
			h.want(t, "a+b")
			wantUncounted(t, got[0], idempotency.ErrClaimLost)
			if all {
				wantUncounted(t, got[1], idempotency.ErrClaimLost)
			} else if !errors.Is(got[1], errBusy) || classify.Of(got[1]).Deferred {
				t.Errorf("b: %v, want the error of the handler, which counts", got[1])
			}
		})
	}
}

func TestBatchWithoutAStore(t *testing.T) {
	s := newFaulty(func(string, int) error { return errDown })
	h := &batched{}
	for _, err := range wrapBatch(t, s, h.handle)(t.Context(), orders("a", "b")) {
		if !errors.Is(err, errDown) {
			t.Errorf("%v, want the error of the store", err)
		}
	}
	h.want(t)
}

func TestOnceBatchReportsFaults(t *testing.T) {
	_, err := idempotency.OnceBatch(nil, idempotency.Options{Redrive: week})
	var fault *settings.Error
	if !errors.As(err, &fault) || fault.Field != "Options.Retention" || !strings.Contains(err.Error(), "the store is nil") {
		t.Errorf("%v, want both faults", err)
	}
	if wrapBatch(t, idempotency.NewMemory(0), nil) != nil {
		t.Error("a nil handler becomes one that is not")
	}
}

// TestBatchesInThePipeline publishes each message twice. The key of some is
// one that only their Meta knows.
func TestBatchesInThePipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		broker := memory.New(memory.Options{})
		for round := range 2 {
			for i := range n {
				m := brokers.Message{ID: fmt.Sprintf("order-%d", i), Body: []byte("x")}
				if i%2 == 1 {
					m.ID = fmt.Sprintf("order-%d-%d", i, round)
					m.Headers = brokers.Headers{{Name: "redrive-idempotency-key", Value: fmt.Sprintf("order-%d", i)}}
				}
				ok(t, broker.Publish(t.Context(), "orders", m))
			}
		}
		var mu sync.Mutex
		done := map[string]int{}
		worker, err := consumer.New(broker, consumer.Config{DeadLetter: "*.dead", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		worker.HandleBatch("orders", wrapBatch(t, idempotency.NewMemory(0), func(_ context.Context, batch []brokers.Item) []error {
			mu.Lock()
			defer mu.Unlock()
			results := make([]error, len(batch))
			for i, item := range batch {
				key := item.Meta.IdempotencyKey
				if !strings.HasPrefix(item.Message.ID, key) {
					t.Errorf("message %d of %d is %s, its meta has the key %s", i, len(batch), item.Message.ID, key)
				}
				if item.Meta.Attempt == 1 && key == "order-7" {
					results[i] = errBusy
					continue
				}
				done[key]++
			}
			return results
		}), consumer.TopicConfig{BatchSize: 16, BatchWait: time.Second})
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		ok(t, worker.Run(ctx))
		for i := range n {
			if key := fmt.Sprintf("order-%d", i); done[key] != 1 {
				t.Errorf("%s was handled %d times, want once", key, done[key])
			}
		}
		if left, dead := broker.Len("orders"), broker.Len("orders.dead"); left != 0 || dead != 0 {
			t.Errorf("%d messages left and %d dead letters, want none", left, dead)
		}
	})
}
