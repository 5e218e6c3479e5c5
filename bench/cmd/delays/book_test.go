package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

func TestUneven(t *testing.T) {
	var even, steps []float64
	for i := range 1000 {
		at := 3 + 7*float64(i)/1000
		even, steps = append(even, at), append(steps, float64(int(at)))
	}
	if got := uneven(even, 3*time.Second, 10*time.Second); got > 0.0011 {
		t.Errorf("an even spread is uneven by %v, want at most one in a thousand", got)
	}
	if got := uneven(steps, 3*time.Second, 10*time.Second); got < 0.13 || got > 0.15 {
		t.Errorf("seven steps are uneven by %v, want a seventh", got)
	}
	if got := uneven([]float64{1, 1, 20, 20}, 3*time.Second, 10*time.Second); got != 0.5 {
		t.Errorf("half too early and half too late are uneven by %v, want 0.5", got)
	}
}

// One retry over two shelves that is 5 ms late, and one that is early.
func TestBook(t *testing.T) {
	b := newBook(2)
	zero := time.Unix(1_800_000_000, 0)
	see := func(id string, kind consumer.EventKind, attempt int, at time.Duration) {
		b.Observe(t.Context(), consumer.Event{
			Kind: kind, Time: zero.Add(at), Attempt: attempt,
			Message: &brokers.Message{ID: id}, Meta: brokers.Meta{DueAt: zero.Add(5 * time.Second)},
		})
	}
	b.Observe(t.Context(), consumer.Event{Kind: consumer.EventError, Time: zero})
	for _, id := range []string{"late", "early"} {
		see(id, consumer.EventReceived, 0, -time.Second)
		see(id, consumer.EventFailed, 1, 0)
		see(id, consumer.EventRetried, 1, time.Second)
	}
	see("late", consumer.EventReceived, 1, 4*time.Second)
	see("late", consumer.EventRetried, 1, 4100*time.Millisecond)
	see("late", consumer.EventReceived, 1, 4800*time.Millisecond)
	see("late", consumer.EventStarted, 2, 5005*time.Millisecond)
	if b.complete.Err() != nil {
		t.Error("the book is complete with one retry to come")
	}
	see("early", consumer.EventReceived, 1, 4*time.Second)
	see("early", consumer.EventStarted, 2, 4*time.Second)
	if b.complete.Err() != context.Canceled {
		t.Error("the book is not complete after both retries")
	}
	var out strings.Builder
	b.print(&out, trial{from: 3 * time.Second, to: 10 * time.Second})
	for _, want := range []string{
		"retries   2, to wait for 3s to 10s\n",
		"stored    in 1.0 s, 2 a second\n",
		"hops      1.50 in the mean, 2 at most\n",
		"early     1\n",
		"late      p50 -1000.0 ms, p99 -1000.0 ms, most 5.0 ms\n",
		"trouble   1\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the result lacks %q:\n%s", want, &out)
		}
	}
}
