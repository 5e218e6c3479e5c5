package consumer

import (
	"errors"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
)

// admitted returns those of job that may start. The others wait, uncounted.
func (p *pipeline) admitted(job []*delivery, now time.Time) []*delivery {
	kept := those(job, func(d *delivery) bool { return p.mayStart(d, len(job), now) })
	for len(kept) < len(job) { // what each has of the slot is more now
		job = kept
		kept = those(job, func(d *delivery) bool { return p.enters(d, len(job), now) })
	}
	return kept
}

// those returns what of job is so. It leaves job as it is: the context of an
// earlier attempt may still read it.
func those(job []*delivery, so func(*delivery) bool) []*delivery {
	first := slices.IndexFunc(job, func(d *delivery) bool { return !so(d) })
	if first < 0 {
		return job
	}
	kept := slices.Clone(job[:first])
	for _, d := range job[first+1:] {
		if so(d) {
			kept = append(kept, d)
		}
	}
	return kept
}

// mayStart reports whether a run of d, one of n together, may start: the guard of
// its message, that of its topic and, for a retry, a budget have to agree.
// Otherwise d waits.
func (p *pipeline) mayStart(d *delivery, n int, now time.Time) bool {
	if !p.enters(d, n, now) {
		return false
	}
	if g := d.guard; g != nil && !g.startOwn(now, d) {
		p.notStarted(d, now)
		p.deferRun(d, now, g.pause(now, p.cfg.Random()), ownGuard)
		return false
	}
	if !d.permit.topic.probe() && !d.sub.guard.startTopic(now, d) {
		p.notStarted(d, now)
		p.awaitGuard(d)
		return false
	}
	pacer := d.budget()
	if pacer == nil || !d.isRetry() && !d.permit.tried || d.permit.probe() || d.token {
		return true
	}
	wait, ok := pacer.Withdraw(now, d.sub.longestDelay, p.cfg.Random())
	if d.token = ok; !ok {
		p.notStarted(d, now)
		p.deferRun(d, now, wait, noToken)
	}
	return ok
}

// enters reports whether d, one of n together, has its part of one of the slots of
// its bulkhead. Otherwise it waits.
func (p *pipeline) enters(d *delivery, n int, now time.Time) bool {
	b := d.bulkhead()
	if b == nil || b.enter(n, &d.permit) {
		return true
	}
	p.notStarted(d, now) // guards may have let it through
	p.awaitSlot(d, now)
	return false
}

// deferral is why a run is put off: in one word, and in a sentence.
type deferral struct {
	reason string
	err    error
}

var (
	noToken  = deferral{"budget", errors.New("the budget has no token for a retry: it waits, uncounted")}
	ownGuard = deferral{"guard", errors.New("what the message depends on is down: it waits, uncounted")}
	noSlot   = deferral{"room", errors.New("what the message depends on has its part of the slots, and there is no room to wait in the process: the broker brings it again, uncounted")}
	noRoom   = deferral{"room", errors.New("its topic pauses, and there is no room to wait in the process: the broker brings it again, uncounted")}
)

// nearest is the guard of d's own, or else that of its topic. Its budget is the
// one for retries of d, unless that came back.
func (d *delivery) nearest() *guard {
	if d.guard != nil {
		return d.guard
	}
	return d.sub.guard
}

// startTopic takes the leave for d from the guard of its topic. A probe is for
// what has not failed before, unless there is nothing else: see openFor.
func (g *guard) startTopic(now time.Time, d *delivery) bool {
	l, ok := g.grant(now, d)
	if ok && l.probe() && d.isRetry() {
		g.giveBack(now, l)
		return false
	}
	d.permit.topic = l
	return ok
}

// enter takes a part of one of the slots that a bulkhead has, for one of n messages
// that run together, or what is wanting of it. It reports false if all are in use.
func (g *guard) enter(n int, of *permit) bool {
	part := int64((g.parts + n - 1) / n)
	wanting := part - of.entered
	if g.under.Add(wanting) > int64(g.most*g.parts) {
		g.under.Add(-wanting)
		return false
	}
	of.entered = part
	return true
}

// startOwn takes the leave for d from the guard of its own.
func (g *guard) startOwn(now time.Time, d *delivery) (ok bool) {
	d.permit.own, ok = g.grant(now, d)
	return ok
}

// longestPause is the longest that a message waits whose own guard is closed.
const longestPause = 5 * time.Minute

// pause is how long a message waits that its own guard does not let start: the
// longer the more often that has closed in a row.
func (g *guard) pause(now time.Time, random float64) time.Duration {
	wait := recheck
	for _, b := range g.breakers() {
		if s := b.Snapshot(now); s.State != breaker.Closed {
			wait = max(wait, s.Next.Sub(now), min(recheck<<min(s.Openings, 16), longestPause))
		}
	}
	return wait/2 + time.Duration(random*float64(wait))
}

// notStarted gives back what d has of its guards.
func (p *pipeline) notStarted(d *delivery, now time.Time) {
	p.tell(d, now, evidence{})
}

// tell reports to the guards of d how its run ended, and whether it was a probe.
func (p *pipeline) tell(d *delivery, now time.Time, e evidence) (probe bool) {
	held, of := d.permit, identity(keyOf(&d.Message))
	d.permit = permit{}
	report := (*guard).report
	if d.returned() {
		report = held.vouch
	}
	b := d.bulkhead()
	if b != nil {
		b.under.Add(-held.entered)
	}
	if g := d.guard; g != nil {
		if report(g, now, held.own, of, e) {
			p.announce(g, now)
		}
		of = identity(g.name)
	}
	if report(d.sub.guard, now, held.topic, of, e) {
		p.guardChanged(d.sub.guard, now)
	}
	if d.token && (e == healthy || e == evidence{}) { // it succeeded, or did not run
		d.budget().Refund(now)
	}
	d.token = false
	if b != nil {
		p.slotFree(b)
	}
	return held.probe() || held.tried
}

// awaitSlot lets d wait until fewer messages of its bulkhead run. They take turns.
func (p *pipeline) awaitSlot(d *delivery, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := d.bulkhead()
	switch {
	case p.draining.Load():
		p.settleLocked(d, brokers.Release)
	case d.yields() || !p.roomToWait(d) || !p.lasts(d, now.Add(d.sub.timeout)):
		wait := d.turnedAway()
		p.deferLocked(d, now, wait+time.Duration(p.cfg.Random()*float64(wait)), noSlot)
	case p.to(d, waiting):
		g.waiting = append(g.waiting, d)
		g.crowd.Store(int32(len(g.waiting)))
		p.crowded[g] = true
		p.observe(d, Event{Kind: EventHeld})
		p.nextOf(g) // a slot may be free since
	}
}

// slotFree lets the next message of a bulkhead go on.
func (p *pipeline) slotFree(g *guard) {
	if g.crowd.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextOf(g)
}

// nextOf is slotFree with mu held.
func (p *pipeline) nextOf(g *guard) {
	if p.draining.Load() {
		return
	}
	for len(g.waiting) > 0 && g.under.Load() <= int64((g.most-1)*g.parts) {
		d := g.waiting[0]
		g.waiting = g.waiting[1:]
		if p.to(d, queued) {
			p.enqueue(d)
			break // the next when that has started, or not
		}
	}
	g.crowd.Store(int32(len(g.waiting)))
	if len(g.waiting) == 0 {
		g.waiting = nil
		delete(p.crowded, g)
	}
}

// awaitGuard lets d wait until the guard of its topic opens: in the process, or
// in the broker if there is no room for it here, or its lease would not last.
func (p *pipeline) awaitGuard(d *delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, now := d.sub.guard, time.Now()
	switch {
	case p.draining.Load():
		p.settleLocked(d, brokers.Release)
	case d.returned() || !p.roomToWait(d) || !p.lasts(d, now.Add(recheck)):
		p.backUntil(d, g, now)
	case p.to(d, waiting):
		g.waiting = append(g.waiting, d)
		p.observe(d, Event{Kind: EventHeld})
		p.openFor(g, now) // it may have opened meanwhile
	}
}

// backUntil has the broker bring d again when its guard may have opened. mu is
// held.
func (p *pipeline) backUntil(d *delivery, g *guard, now time.Time) {
	until, _ := g.closed(now)
	wait := max(until.Sub(now), recheck)
	p.deferLocked(d, now, wait+time.Duration(p.cfg.Random()*float64(wait)), noRoom)
}

// deferRun puts the run of d off, which is not an attempt.
func (p *pipeline) deferRun(d *delivery, now time.Time, wait time.Duration, why deferral) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deferLocked(d, now, wait, why)
}

// deferLocked is deferRun with mu held.
func (p *pipeline) deferLocked(d *delivery, now time.Time, wait time.Duration, why deferral) {
	wait = min(wait, p.longestDelay) // that the broker was told of: a longer one would be cut
	m := *d.meta
	m.DueAt = now.Add(wait)
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: why.err,
		Decision: retry.Decision{Action: retry.ActionRetry, Delay: wait, Reason: why.reason}})
	p.waitLocked(d, p.holdLimit(d))
}

// freshGrace is how long a guard that lets a probe through waits for a message
// that has not failed before, if only others wait.
const freshGrace = time.Second

// openFor starts what waits at g, as far as that lets it. mu is held.
func (p *pipeline) openFor(g *guard, now time.Time) {
	for {
		g.waiting = slices.DeleteFunc(g.waiting, func(d *delivery) bool { return state(d.state.Load()) != waiting })
		ok, next := g.allows(now)
		if !ok {
			g.opened = time.Time{}
			p.lookAt(g, now, next)
			return
		}
		if len(g.waiting) == 0 {
			return
		}
		i := g.next(now)
		if i < 0 {
			p.lookAt(g, now, g.opened.Add(freshGrace))
			return
		}
		l, ok := g.start(now)
		if !ok {
			p.lookAt(g, now, now.Add(recheck))
			return
		}
		d := g.waiting[i]
		g.waiting = slices.Delete(g.waiting, i, i+1)
		d.permit.topic = l
		p.to(d, queued)
		p.enqueue(d)
	}
}

// next returns which of those that wait goes first, -1 if none should yet: the
// oldest, but before a probe is spent, one that has not failed before.
func (g *guard) next(now time.Time) int {
	if g.flows() {
		return 0
	}
	if i := slices.IndexFunc(g.waiting, func(d *delivery) bool { return !d.isRetry() }); i >= 0 {
		return i
	}
	if g.opened.IsZero() {
		g.opened = now
	}
	if now.Before(g.opened.Add(freshGrace)) {
		return -1
	}
	return 0
}

// lookAt has g looked at again at next, and sends back to the broker what cannot
// wait so long. mu is held.
func (p *pipeline) lookAt(g *guard, now, next time.Time) {
	g.waiting = slices.DeleteFunc(g.waiting, func(d *delivery) bool {
		if p.lasts(d, next) || !p.to(d, queued) {
			return false
		}
		p.backUntil(d, g, now)
		return true
	})
	p.wake(g, now, next)
}

// wake has g looked at again at next, if that is not done before. mu is held.
func (p *pipeline) wake(g *guard, now, next time.Time) {
	switch {
	case g.timer == nil:
		g.timer = time.AfterFunc(next.Sub(now), func() { p.guardChanged(g, time.Now()) })
	case g.fires.After(now) && !next.Before(g.fires):
		return
	default:
		g.timer.Reset(next.Sub(now))
	}
	g.fires = next
}

// guardChanged follows the guard of topics that may answer differently now.
func (p *pipeline) guardChanged(g *guard, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining.Load() {
		return
	}
	p.announceLocked(g, now)
	p.openFor(g, now)
	if allowed, _ := g.allows(now); allowed != g.allowed || g.flows() != g.flowed {
		p.lookAgain()
	}
}

// announce reports that g has closed, or opened again.
func (p *pipeline) announce(g *guard, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announceLocked(g, now)
}

func (p *pipeline) announceLocked(g *guard, now time.Time) {
	until, why := g.closed(now)
	switch {
	case g.gone:
	case why != nil && !g.paused:
		g.paused = true
		p.report(p.values, Event{Kind: EventPaused, Topic: g.topic, Dependency: g.name, Time: now, Until: until, Err: why})
	case why == nil && g.paused && g.flows():
		g.paused = false
		p.report(p.values, Event{Kind: EventResumed, Topic: g.topic, Dependency: g.name, Time: now})
	}
}

// retire reports that what g kept from starting may start, because the guard that
// its messages have from now on is a new one.
func (p *pipeline) retire(g *guard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.gone = true; g.paused {
		g.paused = false
		p.report(p.values, Event{Kind: EventResumed, Topic: g.topic, Dependency: g.name})
	}
}

// watchShared looks at breakers that others may change without our doing:
// another Consumer, or an operator.
func (p *pipeline) watchShared() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.guards, func(g *guard) bool { return g.shared }) {
		return
	}
	p.watch = time.AfterFunc(recheck, func() {
		for _, g := range p.guards {
			if g.shared {
				p.guardChanged(g, time.Now())
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.draining.Load() {
			p.watch.Reset(recheck)
		}
	})
}
