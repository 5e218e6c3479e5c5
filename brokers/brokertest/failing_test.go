package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// failAt fails one call of a method, counted over the whole broker.
type failAt struct {
	method string
	nth    int

	mu    sync.Mutex
	calls int
}

const injected = "injected failure"

// hit counts a call and tells whether it is the one to fail.
func (f *failAt) hit(method string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method != f.method {
		return false
	}
	f.calls++
	return f.calls == f.nth
}

func (f *failAt) reached() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls >= f.nth
}

func (f *failAt) hooks() hooks {
	fault := func(of error) error { return fmt.Errorf("%s: %w", injected, of) }
	return hooks{
		openSource: func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
			if f.hit("open") {
				return nil, fault(brokers.ErrMisconfigured)
			}
			return b.inner.Open(ctx, sub)
		},
		publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			if f.hit("publish") {
				return fault(brokers.ErrMisconfigured)
			}
			return b.inner.Publish(ctx, topic, msgs...)
		},
		sendBack: func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
			if f.hit("return") {
				return fault(brokers.ErrMisconfigured)
			}
			return b.inner.SendBack(ctx, group, topic, letters...)
		},
		receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			if f.hit("receive") {
				return nil, fault(brokers.ErrMisconfigured)
			}
			return s.take(ctx, max)
		},
		settle: func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			if f.hit("settle") {
				errs := make([]error, len(batch))
				for i := range errs {
					errs[i] = fault(brokers.ErrSettled)
				}
				return errs
			}
			return s.settle(ctx, batch...)
		},
		closeSource: func(ctx context.Context, s *faultySource) error {
			err := s.inner.Close(ctx)
			if f.hit("close") {
				return fault(brokers.ErrUnknownOutcome)
			}
			return err
		},
	}
}

// TestClausesReportFailures lets each call of each clause fail in turn. A
// clause may only pass if the failure is one that it looks for, and it must
// end in any case.
func TestClausesReportFailures(t *testing.T) {
	// Clauses that look at the answer of that method themselves, or that close
	// a source only to clean up.
	looksAt := map[string]string{
		"publish": "publish-interrupted publish-unconfirmed publish-refused",
		"return":  "return-unconfirmed return-refused",
		"settle":  "settle-answers settle-once settle-interrupted publish-delivers capabilities-constant broker-closes retry-unsent retry-unconfirmed",
		"receive": "receive-max receive-ends receive-cause close-unblocks broker-closes receive-waits",
	}
	for _, c := range clauses() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{"open", "publish", "return", "receive", "settle", "close"} {
				for nth := 1; nth <= 12; nth++ {
					f := &failAt{method: method, nth: nth}
					err := harness(memory.Options{MaxLease: 20 * time.Second, MessageLimit: 256 << 10, Ordered: true}, f.hooks).bubble(t, c)
					if !f.reached() {
						break
					}
					if _, skipped := errors.AsType[skip](err); skipped {
						continue
					}
					if (err == nil || !strings.Contains(err.Error(), injected)) && !strings.Contains(looksAt[method], c.name) && method != "close" {
						t.Errorf("call %d of %s failed, and the clause said: %v", nth, method, err)
					}
				}
			}
		})
	}
}
