package main

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// ledger looks over the worker's shoulder: it counts the runs of every
// message, and those that came too early. It shares no counter with the
// consumer.
type ledger struct {
	mu        sync.Mutex
	runs      map[string]int // by message ID
	early     int
	notBefore map[string]time.Time // by idempotency key, as the payment server asked
}

func newLedger() *ledger {
	return &ledger{runs: map[string]int{}, notBefore: map[string]time.Time{}}
}

// watch is middleware.
func (l *ledger) watch(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, m *brokers.Message) error {
		l.ran(m.ID, consumer.MetaFrom(ctx).DueAt, time.Now())
		return next(ctx, m)
	}
}

// ran records a run at now of a message that is due at due.
func (l *ledger) ran(id string, due, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id]++
	if now.Before(due) {
		l.early++
	}
}

// tap returns a transport that checks that the worker waits as long as the
// answers on this very line asked it to.
func (l *ledger) tap(next http.RoundTripper) http.RoundTripper {
	return tapped(func(r *http.Request) (*http.Response, error) {
		key := r.Header.Get("Idempotency-Key")
		l.asked(key, time.Now())
		resp, err := next.RoundTrip(r)
		if err == nil && resp.StatusCode == http.StatusTooManyRequests {
			l.told(key, time.Now().Add(retryAfter(resp.Header)))
		}
		return resp, err
	})
}

type tapped func(*http.Request) (*http.Response, error)

func (f tapped) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (l *ledger) asked(key string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.notBefore[key]) {
		l.early++
	}
}

func (l *ledger) told(key string, notBefore time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notBefore[key] = notBefore
}

// retryAfter returns the wait that a header asks for, in seconds or as a date.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(seconds) * time.Second
	}
	due, _ := http.ParseTime(value)
	sent, _ := http.ParseTime(h.Get("Date"))
	return due.Sub(sent)
}
