package consumer_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// How a handler waits for its context makes no difference to how it ends.
func TestTimeoutReachesDerivedContexts(t *testing.T) {
	for name, derive := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"itself":     func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
		"WithCancel": context.WithCancel,
		"WithTimeout": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"WithValue": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithCancel(context.WithValue(ctx, valueKey{}, 1))
		},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := brokerWith("orders", "one")
			began := time.Now()
			cfg := quiet()
			cfg.HandlerTimeout = time.Minute
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				if !consumer.MetaFrom(ctx).LastFailedAt.IsZero() {
					return nil
				}
				before := runtime.NumGoroutine()
				child, cancel := derive(ctx)
				defer cancel()
				if after := runtime.NumGoroutine(); after > before {
					t.Errorf("%d goroutines to watch the handler's context, want none", after-before)
				}
				<-child.Done()
				if took, cause := time.Since(began), context.Cause(child); took != time.Minute || !errors.Is(cause, classify.ErrAttemptTimeout) || child.Err() != context.DeadlineExceeded {
					t.Errorf("ended after %v with %v because of %v, want a timeout after 1m", took, child.Err(), cause)
				}
				return child.Err()
			}))
			w.stopAfter(10 * time.Minute)
			empty(t, broker, "orders", "orders.dead")
		})
	}
}

func TestContextEndsWithTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := brokerWith("orders", "one")
		var kept, child context.Context
		var cancel context.CancelFunc
		var after atomic.Bool
		w := start(t, broker, quiet(), func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, _ *brokers.Message) error {
				kept = ctx
				child, cancel = context.WithTimeout(ctx, time.Hour)
				context.AfterFunc(ctx, func() { after.Store(true) })
				return nil
			})
		})
		synctest.Wait()
		if kept.Err() != context.Canceled || child.Err() != context.Canceled || !after.Load() {
			t.Errorf("after the return: %v, %v, AfterFunc %v; want all ended", kept.Err(), child.Err(), after.Load())
		}
		cancel()
		w.mustShutdown()
	})
}

// The timer of a worker serves one handler after the other.
func TestEachHandlerHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		cfg := quiet()
		cfg.Concurrency, cfg.HandlerTimeout = 1, time.Minute
		d := newDiary()
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			handle := func(ctx context.Context, m *brokers.Message) error {
				wait, _ := time.ParseDuration(string(m.Body))
				select {
				case <-ctx.Done():
					d.write("%s timed out", m.Body)
				case <-time.After(wait):
					d.write("%s finished", m.Body)
				}
				return nil
			}
			c.Handle("orders", handle)
			c.HandleWith("quick", handle, consumer.TopicConfig{HandlerTimeout: 10 * time.Second})
		})
		publish(t, broker, "orders", "50s")
		time.Sleep(55 * time.Second)
		publish(t, broker, "orders", "59s") // runs past the first one's deadline
		time.Sleep(60 * time.Second)
		publish(t, broker, "quick", "20s") // has a deadline before the timer fires
		time.Sleep(60 * time.Second)
		publish(t, broker, "orders", "2m0s")
		w.stopAfter(10 * time.Minute)
		d.expect(t, "50s 50s finished", "1m54s 59s finished", "2m5s 20s timed out", "3m55s 2m0s timed out")
	})
}
