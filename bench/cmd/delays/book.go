package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/consumer"
)

// entry is what happened to one message.
type entry struct {
	failed time.Time // the first run
	due    time.Time // of the retry
	stored time.Time // the retry is durable
	came   time.Time // back from its last shelf
	began  time.Time // the second run
	hops   int
}

// book is an Observer that keeps an entry for each message.
type book struct {
	complete context.Context // ends when every message has begun its second run
	done     context.CancelFunc

	mu      sync.Mutex
	missing int
	trouble int // operations that the broker failed
	entries map[string]*entry
}

func newBook(n int) *book {
	b := &book{missing: n, entries: make(map[string]*entry, n)}
	b.complete, b.done = context.WithCancel(context.Background())
	return b
}

// Observe notes the events of a retry.
func (b *book) Observe(_ context.Context, e consumer.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == consumer.EventError || e.Kind == consumer.EventLeaseLost {
		b.trouble++
	}
	if e.Message == nil {
		return
	}
	r := b.entries[e.Message.ID]
	if r == nil {
		r = &entry{}
		b.entries[e.Message.ID] = r
	}
	now := e.Time.Round(0) // due times are of the wall clock, which may be adjusted meanwhile
	switch {
	case e.Kind == consumer.EventFailed && r.failed.IsZero():
		r.failed, r.due = now, e.Meta.DueAt.Round(0)
	case e.Kind == consumer.EventRetried:
		if r.hops++; r.hops == 1 {
			r.stored = now
		}
	case e.Kind == consumer.EventReceived && r.hops > 0:
		r.came = now
	case e.Kind == consumer.EventStarted && e.Attempt == 2 && r.began.IsZero():
		r.began = now
		if b.missing--; b.missing == 0 {
			b.done()
		}
	}
}

// starts returns the entries whose second run has begun.
func (b *book) starts() []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*entry
	for _, r := range b.entries {
		if !r.began.IsZero() {
			all = append(all, r)
		}
	}
	return all
}

// print writes the result of the trial t.
func (b *book) print(w io.Writer, t trial) {
	all := b.starts()
	var first, last time.Time
	early, hops, most := 0, 0, 0
	var late, held, arrival, start []float64
	for _, r := range all {
		if r.began.Before(r.due) {
			early++
		}
		if r.hops > 0 {
			held = append(held, max(0, r.due.Sub(r.came)).Seconds())
			arrival = append(arrival, r.came.Sub(r.failed).Seconds())
			if first.IsZero() || r.failed.Before(first) {
				first = r.failed
			}
			if r.stored.After(last) {
				last = r.stored
			}
		}
		hops, most = hops+r.hops, max(most, r.hops)
		late = append(late, r.began.Sub(r.due).Seconds())
		start = append(start, r.began.Sub(r.failed).Seconds())
	}
	n := float64(len(all))
	stored := last.Sub(first).Seconds()
	fmt.Fprintf(w, "retries   %.0f, to wait for %v to %v\n", n, t.from, t.to)
	fmt.Fprintf(w, "stored    in %.1f s, %.0f a second\n", stored, n/stored)
	fmt.Fprintf(w, "hops      %.2f in the mean, %d at most\n", float64(hops)/n, most)
	fmt.Fprintf(w, "held      %s\n", quantiles(held))
	fmt.Fprintf(w, "early     %d\n", early)
	fmt.Fprintf(w, "late      %s\n", quantiles(late))
	fmt.Fprintf(w, "trouble   %d\n", b.trouble)
	fmt.Fprintf(w, "uneven    %.1f %% when they ran, %.1f %% when they came from the shelves, %.1f %% by chance\n",
		100*uneven(start, t.from, t.to), 100*uneven(arrival, t.from, t.to), 100*1.36/math.Sqrt(n))
}

// quantiles spells some of xs, which are seconds.
func quantiles(xs []float64) string {
	if len(xs) == 0 {
		return "none"
	}
	slices.Sort(xs)
	at := func(q float64) float64 { return 1000 * xs[int(q*float64(len(xs)-1))] }
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, most %.1f ms", at(0.5), at(0.99), at(1))
}

// uneven is how far the share of xs up to any moment is from that of an even
// spread between from and to, at most (Kolmogorov and Smirnov). By chance it
// is less than 1.36/√n in 19 cases of 20.
func uneven(xs []float64, from, to time.Duration) float64 {
	slices.Sort(xs)
	most := 0.0
	for i, x := range xs {
		even := min(1, max(0, (x-from.Seconds())/(to-from).Seconds()))
		n := float64(len(xs))
		most = max(most, math.Abs(float64(i)/n-even), math.Abs(float64(i+1)/n-even))
	}
	return most
}
