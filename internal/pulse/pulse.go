// Package pulse tells a loop that is frozen from one that has nothing to do.
package pulse

import (
	"context"
	"sync/atomic"
	"time"
)

// Pulse is that of one loop, which says by when it ticks again. The zero value is
// that of a loop that has not begun. A nil Pulse takes in nothing.
type Pulse struct {
	Name string

	// at is the reading when the loop has to tick; while it rests, minus that since
	// when; 0 before it began, and when it has ended.
	at atomic.Int64
}

var epoch = time.Now()

// reading is t by the monotonic clock. It is above 0 for 36 years before epoch, so
// that the time of testing/synctest, which begins in 2000, is as good as any.
func reading(t time.Time) int64 { return 1<<60 + int64(t.Sub(epoch)) }

// Expect says that the loop ticks by t.
func (p *Pulse) Expect(t time.Time) {
	if p != nil {
		p.at.Store(reading(t))
	}
}

// Rest says that the loop waits for news from now on, however long that takes.
func (p *Pulse) Rest() {
	if p != nil {
		p.at.Store(-reading(time.Now()))
	}
}

// End says that the loop has ended.
func (p *Pulse) End() {
	if p != nil {
		p.at.Store(0)
	}
}

// Ask reports whether the loop has rested for as long as after. It then has to tick,
// and the caller gives it a reason.
func (p *Pulse) Ask(now time.Time, after time.Duration) bool {
	at := p.at.Load()
	return at < 0 && reading(now)+at >= int64(after) && p.at.CompareAndSwap(at, reading(now))
}

// Overdue is for how long the loop should have ticked.
func (p *Pulse) Overdue(now time.Time) time.Duration {
	at := p.at.Load()
	if at <= 0 {
		return 0
	}
	return time.Duration(max(0, reading(now)-at))
}

type key struct{}

// With returns a context that has the Pulse of a loop, for its calls.
func With(ctx context.Context, p *Pulse) context.Context { return context.WithValue(ctx, key{}, p) }

// Of returns the Pulse of the loop that ctx is for, nil if it has none.
func Of(ctx context.Context) *Pulse {
	p, _ := ctx.Value(key{}).(*Pulse)
	return p
}
