package consumer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry/breaker"
)

// gate decides what may be fetched and what may start: both breakers must
// agree, and no throttle be in force.
type gate struct {
	breaker *breaker.Breaker // nil if switched off
	poison  *breaker.Breaker // nil if switched off
	random  func() float64

	throttled atomic.Bool // notBefore has been set

	mu        sync.Mutex
	notBefore time.Time // a throttling dependency asked for it
}

// permit is the leave of one run. The zero permit is none.
type permit struct{ breaker, poison breaker.Permit }

// probe reports whether p is one of the few of a half-open gate.
func (p permit) probe() bool { return p.breaker.Probe() || p.poison.Probe() }

// throttledUntil returns when a throttle ends, if one is in force.
func (g *gate) throttledUntil(now time.Time) (time.Time, bool) {
	if !g.throttled.Load() {
		return time.Time{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	still := now.Before(g.notBefore)
	g.throttled.Store(still)
	return g.notBefore, still
}

// recheck is how often a gate is asked again whose breaker others share: it may
// change without our doing.
const recheck = time.Second

// fetch returns how many of limit deliveries may be fetched. If that is 0, it
// returns when to ask again.
func (g *gate) fetch(now time.Time, limit int) (p permit, n int, next time.Time) {
	if until, ok := g.throttledUntil(now); ok {
		return permit{}, 0, until
	}
	n = limit
	if g.breaker != nil {
		if p.breaker, n, next = g.breaker.Fetch(now, n); n == 0 {
			return permit{}, 0, soonest(now, next)
		}
	}
	if g.poison != nil {
		if p.poison, n, next = g.poison.Fetch(now, n); n == 0 {
			g.done(now, p, breaker.Ignored, breaker.Ignored)
			return permit{}, 0, soonest(now, next)
		}
	}
	return p, n, time.Time{}
}

// soonest is next, or the time to look again if that comes before.
func soonest(now, next time.Time) time.Time {
	if look := now.Add(recheck); next.IsZero() || look.Before(next) {
		return look
	}
	return next
}

// start returns the permit for a run that is about to start, and whether it
// may. P is that of its delivery.
func (g *gate) start(now time.Time, p permit) (run permit, ok bool) {
	if _, throttled := g.throttledUntil(now); throttled {
		g.done(now, p, breaker.Ignored, breaker.Ignored)
		return permit{}, false
	}
	if g.breaker != nil {
		if run.breaker, ok = g.breaker.Start(now, p.breaker); !ok {
			g.done(now, permit{poison: p.poison}, breaker.Ignored, breaker.Ignored)
			return permit{}, false
		}
	}
	if g.poison != nil {
		if run.poison, ok = g.poison.Start(now, p.poison); !ok {
			g.done(now, permit{breaker: run.breaker}, breaker.Ignored, breaker.Ignored)
			return permit{}, false
		}
	}
	return run, true
}

// done reports outcomes to both breakers. It reports whether the gate may
// answer differently now.
func (g *gate) done(now time.Time, p permit, health, poison breaker.Outcome) (changed bool) {
	if g.breaker != nil {
		changed = g.breaker.Done(now, p.breaker, health, g.draw(health))
	}
	if g.poison != nil && g.poison.Done(now, p.poison, poison, g.draw(poison)) {
		changed = true
	}
	return changed
}

// draw returns what the length of a pause is drawn with. Only failures open a
// breaker.
func (g *gate) draw(o breaker.Outcome) float64 {
	if o != breaker.Failure {
		return 0
	}
	return g.random()
}

// conclude reports how a run ended, v being the verdict on its error, and nil
// that it succeeded.
func (g *gate) conclude(now time.Time, p permit, v *classify.Verdict) (changed bool) {
	switch {
	case v == nil:
		return g.done(now, p, breaker.Success, breaker.Success)
	case v.Skip, v.Deferred, v.Class == classify.ClassShutdown, v.Class == classify.ClassLost:
		return g.done(now, p, breaker.Ignored, breaker.Ignored)
	case v.Class == classify.ClassPoison:
		return g.done(now, p, breaker.Ignored, breaker.Failure)
	case v.Class == classify.ClassEnvironment && g.breaker != nil:
		tripped := g.breaker.Trip(now, p.breaker, "environment: "+v.Rule, g.random())
		return g.done(now, permit{poison: p.poison}, breaker.Ignored, breaker.Success) || tripped
	}
	return g.done(now, p, breaker.Failure, breaker.Success)
}

// throttle closes the gate for as long as the dependency asked for, at most
// limit, and a little longer, so that a fleet does not come back together. It
// reports whether that is longer than before.
func (g *gate) throttle(now time.Time, hint, limit time.Duration) bool {
	if hint <= 0 {
		return false
	}
	hint = min(hint, limit)
	until := now.Add(hint + time.Duration(g.random()*float64(min(hint/10, 5*time.Second))))
	g.mu.Lock()
	defer g.mu.Unlock()
	if !until.After(g.notBefore) {
		return false
	}
	g.notBefore = until
	g.throttled.Store(true)
	return true
}

// flows reports whether everything may pass.
func (g *gate) flows(now time.Time) bool {
	if _, throttled := g.throttledUntil(now); throttled {
		return false
	}
	for _, b := range []*breaker.Breaker{g.breaker, g.poison} {
		if b != nil && b.Snapshot(now).State != breaker.Closed {
			return false
		}
	}
	return true
}

// errGateClosed ends a Receive.
var errGateClosed = errors.New("consumer: receiving pauses")

// closed says why nothing may pass at now, and until when at least; nil if
// something may.
func (g *gate) closed(now time.Time) (until time.Time, why error) {
	if until, ok := g.throttledUntil(now); ok {
		return until, errors.New("the dependency is throttling and asked to come back later")
	}
	for _, b := range []struct {
		*breaker.Breaker
		what string
	}{
		{g.breaker, "the breaker is %s: %s"},
		{g.poison, "most messages are poison, as after a faulty deployment (%s: %s); mend it, or send the dead letters back later"},
	} {
		if b.Breaker == nil {
			continue
		}
		if s := b.Snapshot(now); s.State == breaker.Open || s.State == breaker.Isolated {
			return s.Next, fmt.Errorf(b.what, s.State, s.Reason)
		}
	}
	return time.Time{}, nil
}
