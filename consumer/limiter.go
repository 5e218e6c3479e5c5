package consumer

import (
	"sync"
	"time"
)

// limiter finds how many handlers may run at once: one more for every round of
// successes, a third less after a throttle or a slow run, and then not again
// until runs that began before that are over (additive increase,
// multiplicative decrease).
type limiter struct {
	most int

	mu     sync.Mutex
	limit  float64
	usual  float64   // moving average of the duration of runs, in seconds
	calmAt time.Time // when the last decrease has shown
}

const (
	decrease       = 0.7
	slow           = 2         // times the usual duration
	averageWeight  = 1.0 / 128 // of the moving average
	slowdownWeight = 1.0 / 32  // less when runs get slower: that is what it is to notice
	minSample      = 10 * time.Millisecond
)

func newLimiter(most int) *limiter { return &limiter{most: most, limit: float64(most)} }

// next takes in a run that took ran and returns how many may run at once now.
func (a *limiter) next(now time.Time, ran time.Duration, throttled bool) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	took := ran.Seconds()
	if a.usual == 0 {
		a.usual = took
	}
	late := took > slow*a.usual && ran > minSample
	if change := min(took, slow*a.usual) - a.usual; change < 0 {
		a.usual += change * averageWeight
	} else {
		a.usual += change * averageWeight * slowdownWeight
	}
	switch {
	case !throttled && !late:
		a.limit = min(a.limit+1/a.limit, float64(a.most))
	case !now.Before(a.calmAt):
		a.limit = max(a.limit*decrease, 1)
		a.calmAt = now.Add(max(ran, minSample))
	}
	return int(a.limit)
}

// adapt has a run of d that ended change how many of its topic may run at once.
func (p *pipeline) adapt(d *delivery, ran time.Duration, throttled bool, now time.Time) {
	if s := d.sub; s.limiter != nil && !d.returned() {
		p.pool.allow(s.line, s.limiter.next(now, ran, throttled))
	}
}
