package main

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// ledger looks over the worker's shoulder: it counts the runs of every message
// and those that came before their due time. It shares no counter with the
// consumer.
type ledger struct {
	mu    sync.Mutex
	runs  map[string]int // by message ID
	early int
}

func newLedger() *ledger { return &ledger{runs: map[string]int{}} }

// watch is middleware.
func (l *ledger) watch(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, m *brokers.Message) error {
		l.enter(m.ID, consumer.MetaFrom(ctx).DueAt, time.Now())
		return next(ctx, m)
	}
}

// enter records a run at now of a message that is due at due.
func (l *ledger) enter(id string, due, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id]++
	if now.Before(due) {
		l.early++
	}
}
