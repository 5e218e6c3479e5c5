package lateness

import (
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

func TestUneven(t *testing.T) {
	var even, steps []time.Duration
	for i := range 1000 {
		at := 3*time.Second + 7*time.Millisecond*time.Duration(i)
		even, steps = append(even, at), append(steps, at.Truncate(time.Second))
	}
	const from, to = 3 * time.Second, 10 * time.Second
	if got := Uneven(even, from, to); got > 0.0011 {
		t.Errorf("an even spread is uneven by %v, want at most one in a thousand", got)
	}
	if got := Uneven(steps, from, to); got < 0.13 || got > 0.15 {
		t.Errorf("seven steps are uneven by %v, want a seventh", got)
	}
	if got := Uneven([]time.Duration{time.Second, time.Second, 20 * time.Second, 20 * time.Second}, from, to); got != 0.5 {
		t.Errorf("half too early and half too late are uneven by %v, want 0.5", got)
	}
}

// One retry over two shelves that is 5 ms late, one that is early, one that is
// waited for in process, and one that has not begun.
func TestObserver(t *testing.T) {
	o := NewObserver()
	zero := time.Unix(1_800_000_000, 0)
	see := func(id string, kind string, at time.Duration) {
		o.Observe(t.Context(), consumer.Event{
			Kind: kind, Action: brokers.Retry, Time: zero.Add(at), Message: &brokers.Message{ID: id}, Decision: retry.Decision{Delay: 5 * time.Second},
		})
	}
	o.Observe(t.Context(), consumer.Event{Kind: consumer.EventError, Time: zero})
	for _, id := range []string{"late", "early", "held", "waits"} {
		see(id, consumer.EventReceived, -time.Second)
		see(id, consumer.EventStarted, -time.Second)
		see(id, consumer.EventFailed, 0)
		if id != "held" {
			see(id, consumer.EventSettled, time.Second)
		}
	}
	see("late", consumer.EventReceived, 4*time.Second)
	see("late", consumer.EventSettled, 4100*time.Millisecond)
	see("late", consumer.EventReceived, 4800*time.Millisecond)
	see("late", consumer.EventStarted, 5005*time.Millisecond)
	see("early", consumer.EventReceived, 4*time.Second)
	see("early", consumer.EventStarted, 4*time.Second)
	see("held", consumer.EventStarted, 5*time.Second)

	if o.Most() != 4 {
		t.Errorf("%d waited at once, want 4", o.Most())
	}
	got := o.Take()
	if want := []time.Duration{5 * time.Millisecond, -time.Second, 0}; !slices.Equal(got.Late(), want) {
		t.Errorf("late %v, want %v", got.Late(), want)
	}
	if got.Early() != 1 {
		t.Errorf("early %d, want 1", got.Early())
	}
	due := zero.Add(5 * time.Second)
	want := Retries{
		{Failed: zero, Due: due, Stored: zero.Add(time.Second), Came: zero.Add(4800 * time.Millisecond), Began: due.Add(5 * time.Millisecond), Hops: 2},
		{Failed: zero, Due: due, Stored: zero.Add(time.Second), Came: zero.Add(4 * time.Second), Began: zero.Add(4 * time.Second), Hops: 1},
	}
	if !slices.Equal(got.Stored(), want) {
		t.Errorf("stored %+v, want %+v", got.Stored(), want)
	}
	if again := o.Take(); len(again) > 0 {
		t.Errorf("a second Take returned %+v", again)
	}
}
