// Package lateness tells when retries were due, and when they ran.
package lateness

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// Retry is what happened to a message from a failure to its next run.
type Retry struct {
	Failed time.Time
	Due    time.Time // the failure plus the decided delay, and not what the message carried
	Stored time.Time // the broker has it; zero for what is waited for in process
	Came   time.Time // from the broker, the last time
	Began  time.Time
	Hops   int // times that the broker stored it
}

// Late is how long after it was due r began, negative if it ran early.
func (r Retry) Late() time.Duration { return r.Began.Sub(r.Due) }

// Observer watches the retries of a worker.
type Observer struct {
	mu      sync.Mutex
	waiting map[string]*Retry // by message
	done    Retries
	most    int
}

// NewObserver returns an Observer that has seen nothing.
func NewObserver() *Observer { return &Observer{waiting: map[string]*Retry{}} }

// Observe implements consumer.Observer.
func (o *Observer) Observe(_ context.Context, e consumer.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Message == nil {
		return
	}
	now := e.Time.Round(0) // due times are of the wall clock, which may be adjusted meanwhile
	if e.Kind == consumer.EventFailed {
		o.waiting[e.Message.ID] = &Retry{Failed: now, Due: now.Add(e.Decision.Delay)}
		o.most = max(o.most, len(o.waiting))
		return
	}
	r := o.waiting[e.Message.ID]
	if r == nil {
		return
	}
	switch e.Kind {
	case consumer.EventSettled:
		if e.Action != brokers.Retry {
			return
		}
		if r.Hops++; r.Hops == 1 {
			r.Stored = now
		}
	case consumer.EventReceived:
		r.Came = now
	case consumer.EventStarted:
		r.Began = now
		o.done = append(o.done, *r)
		delete(o.waiting, e.Message.ID)
	}
}

// Take returns the retries that have begun since the last call.
func (o *Observer) Take() Retries {
	o.mu.Lock()
	defer o.mu.Unlock()
	done := o.done
	o.done = nil
	return done
}

// Most returns how many retries waited at once.
func (o *Observer) Most() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most
}

// Retries are some that have begun.
type Retries []Retry

// Late returns how late each was.
func (rs Retries) Late() []time.Duration {
	late := make([]time.Duration, len(rs))
	for i, r := range rs {
		late[i] = r.Late()
	}
	return late
}

// Early returns how many began before they were due.
func (rs Retries) Early() (n int) {
	for _, r := range rs {
		if r.Late() < 0 {
			n++
		}
	}
	return n
}

// Stored returns those that the broker had.
func (rs Retries) Stored() Retries {
	return slices.DeleteFunc(slices.Clone(rs), func(r Retry) bool { return r.Hops == 0 })
}

// Uneven is how far the share of ds up to any moment is from that of an even
// spread between from and to, at most (Kolmogorov and Smirnov). By chance it
// is less than 1.36/√n in 19 cases of 20.
func Uneven(ds []time.Duration, from, to time.Duration) float64 {
	slices.Sort(ds)
	most, n := 0.0, float64(len(ds))
	for i, d := range ds {
		even := min(1, max(0, float64(d-from)/float64(to-from)))
		most = max(most, math.Abs(float64(i)/n-even), math.Abs(float64(i+1)/n-even))
	}
	return most
}
