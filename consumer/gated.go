package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry/breaker"
)

// gated is what waits at the gate, and who must hear of it. It belongs to the
// pipeline, under its mu.
type gated struct {
	runs   []*run             // oldest first; those that are not held any more have left
	timer  *time.Timer        // asks the gate again; nil until something waits
	look   *time.Timer        // looks at a breaker that others change; nil if nobody else has it
	end    context.CancelFunc // of the Receive under way; nil if none is
	paused bool               // EventPaused was the last to be reported
}

// awaitGate returns how many of n deliveries may be fetched, 0 if ctx ended.
// What waits in the process goes first.
func (p *pipeline) awaitGate(ctx context.Context, n int) (granted permit, most int) {
	for {
		granted, most, next := p.askGate(n)
		if most > 0 {
			return granted, most
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return permit{}, 0
		case <-p.opened:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (p *pipeline) askGate(n int) (granted permit, most int, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pump(now)
	if len(p.gated.runs) > 0 {
		return permit{}, 0, now.Add(recheck)
	}
	granted, most, next = p.gate.fetch(now, n)
	if p.gated.paused {
		p.resumed(now)
	}
	return granted, most, next
}

// fetch receives what the gate has granted, until the gate closes.
func (p *pipeline) fetch(ctx context.Context, n int, granted permit) ([]*brokers.Delivery, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.mu.Lock()
	p.gated.end = func() { end(errGateClosed) }
	p.mu.Unlock()
	deliveries, err := p.source.Receive(ctx, n)
	p.mu.Lock()
	p.gated.end = nil
	p.mu.Unlock()
	if len(deliveries) == 0 && granted.probe() {
		p.gate.done(time.Now(), granted, breaker.Ignored, breaker.Ignored)
	}
	if errors.Is(err, errGateClosed) {
		return nil, nil
	}
	return deliveries, err
}

// permitted returns those of job that may start. The others wait at the gate.
func (p *pipeline) permitted(job []*run, now time.Time) []*run {
	refused := func(r *run) bool {
		var ok bool
		r.permit, ok = p.gate.start(now, r.permit)
		return !ok
	}
	first := slices.IndexFunc(job, refused)
	if first < 0 {
		return job
	}
	kept := slices.Clone(job[:first]) // the context of an earlier attempt may still read job
	p.wait(job[first])
	for _, r := range job[first+1:] {
		if refused(r) {
			p.wait(r)
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}

// wait lets r wait at the gate: in the process, or in the broker if there is no
// room for it here, or its lease would not last.
func (p *pipeline) wait(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case p.draining.Load():
		p.settleLocked(r, brokers.Release)
	case !p.roomToHold() || !p.lasts(r, now.Add(recheck)):
		p.postpone(r, now)
	default:
		p.gated.runs = append(p.gated.runs, r)
		p.hold(r)
		p.pump(now) // the gate may have opened meanwhile
	}
}

// postpone has the broker bring r again when the gate may have opened. That
// is not an attempt. mu is held.
func (p *pipeline) postpone(r *run, now time.Time) {
	until, _ := p.gate.closed(now)
	wait := max(until.Sub(now), recheck)
	m := *r.meta
	m.DueAt = now.Add(wait + time.Duration(p.cfg.Random()*float64(wait)))
	r.setMeta(m)
	p.settleLocked(r, brokers.Retry)
}

// pump starts what waits at the gate, as far as the gate lets it. mu is held.
func (p *pipeline) pump(now time.Time) {
	g := &p.gated
	for len(g.runs) > 0 {
		r := g.runs[0]
		if r.held {
			granted, n, next := p.gate.fetch(now, 1)
			if n == 0 {
				p.pumpAt(now, next)
				return
			}
			p.unhold(r)
			r.permit = granted
			p.enqueue(r)
		}
		g.runs[0] = nil
		g.runs = g.runs[1:]
	}
}

// pumpAt has the gate asked again at next, and sends back to the broker what
// cannot wait so long. mu is held.
func (p *pipeline) pumpAt(now, next time.Time) {
	g := &p.gated
	g.runs = slices.DeleteFunc(g.runs, func(r *run) bool {
		if p.lasts(r, next) {
			return false
		}
		if p.unhold(r) {
			p.postpone(r, now)
		}
		return true
	})
	if g.timer == nil {
		g.timer = time.AfterFunc(next.Sub(now), p.pumpNow)
		return
	}
	g.timer.Reset(next.Sub(now))
}

func (p *pipeline) pumpNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pump(time.Now())
	p.signalOpen()
}

// signalOpen has the receiver ask the gate again.
func (p *pipeline) signalOpen() {
	select {
	case p.opened <- struct{}{}:
	default:
	}
}

// watchBreaker looks at a breaker that others may change without our doing:
// another Consumer, or an operator.
func (p *pipeline) watchBreaker() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gated.look = time.AfterFunc(recheck, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.draining.Load() {
			return
		}
		p.followGate(time.Now())
		p.gated.look.Reset(recheck)
	})
}

// gateChanged follows a gate that may answer differently now.
func (p *pipeline) gateChanged(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followGate(now)
}

// followGate is gateChanged with mu held.
func (p *pipeline) followGate(now time.Time) {
	until, why := p.gate.closed(now)
	if why == nil {
		p.pump(now)
		p.signalOpen()
		p.resumed(now)
		return
	}
	if p.gated.end != nil {
		p.gated.end()
	}
	if !p.gated.paused {
		p.gated.paused = true
		p.report(p.values, Event{Kind: EventPaused, Time: now, Until: until, Err: why})
	}
}

// resumed reports that the gate lets everything pass again, if it does. mu is
// held.
func (p *pipeline) resumed(now time.Time) {
	if p.gated.paused && p.gate.flows(now) {
		p.gated.paused = false
		p.report(p.values, Event{Kind: EventResumed, Time: now})
	}
}
