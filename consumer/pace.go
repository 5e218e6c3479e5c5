package consumer

import (
	"sync"
	"time"
)

// pace finds how many handlers may run at once: one more for every round of
// successes, a third less after a throttle or a slow run, and then not again
// until runs that began before that are over (additive increase,
// multiplicative decrease).
type pace struct {
	most int

	mu      sync.Mutex
	limit   float64
	usual   float64   // moving average of the duration of runs, in seconds
	settled time.Time // when the last decrease has shown
}

const (
	decrease = 0.7
	slow     = 2         // times the usual duration
	inertia  = 1.0 / 128 // of the moving average
	stubborn = 1.0 / 32  // less when runs get slower: that is what it is to notice
	briefest = 10 * time.Millisecond
)

func newPace(most int) *pace { return &pace{most: most, limit: float64(most)} }

// next takes in a run that took ran and returns how many may run at once now.
func (a *pace) next(now time.Time, ran time.Duration, throttled bool) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	took := ran.Seconds()
	if a.usual == 0 {
		a.usual = took
	}
	late := took > slow*a.usual && ran > briefest
	if change := min(took, slow*a.usual) - a.usual; change < 0 {
		a.usual += change * inertia
	} else {
		a.usual += change * inertia * stubborn
	}
	switch {
	case !throttled && !late:
		a.limit = min(a.limit+1/a.limit, float64(a.most))
	case !now.Before(a.settled):
		a.limit = max(a.limit*decrease, 1)
		a.settled = now.Add(max(ran, briefest))
	}
	return int(a.limit)
}

// adapt has a run that ended change how many may run at once.
func (p *pipeline) adapt(ran time.Duration, throttled bool, now time.Time) {
	if p.pace != nil {
		p.crew.allow(p.pace.next(now, ran, throttled))
	}
}
